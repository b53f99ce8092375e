"""A report of a large dataset: time, memory, the size of the page, and how soon a browser has drawn it.

The dataset is one of real size on disk whose shards are links to those of a smaller one: what is measured is reading
and counting, to which it makes no difference that tokens come again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import shardmill
from benchmarks import results
from benchmarks.containers import CACHE
from benchmarks.corpus import Corpus
from benchmarks.environment import ours
from benchmarks.measure import run

_MEASURED = """
import json, sys, time, resource
import shardmill
shardmill.report(sys.argv[1], out=sys.argv[2])
spent = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu": spent.ru_utime + spent.ru_stime}))
"""


def measure(corpus: Corpus, *, tokens: int, memory: str, timeout: float) -> dict[str, Any]:
    folder = _build(corpus, tokens)
    page = folder / "report.html"
    done = run([sys.executable, "-c", _MEASURED, str(folder), str(page)], timeout=timeout)
    data = shardmill.open(folder)
    row = {
        "tokens": len(data["train"]) + len(data["val"]),
        "seconds": [done.seconds],
        "cpu": done.said.get("cpu"),
        "peaks": [done.peak],
        "others": [done.others],
        "failure": done.failure,
        "page_bytes": page.stat().st_size if page.exists() else None,
        "interactive_seconds": _drawn(page) if page.exists() else None,
    }
    text = {"description": f"{corpus.describe(0)}, its shards linked again and again", "bytes": 0}
    return results.frame("report", versions={"shardmill": ours()}, text=text, memory=memory, workers=1, rows=[row])


def _build(corpus: Corpus, tokens: int) -> Path:
    """The dataset, kept for the next time."""
    folder = CACHE / f"report-{corpus.key}-{tokens}"
    if (folder / "manifest.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = folder / "text.jsonl"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in corpus.documents())
    small = folder / "small"
    shardmill.prepare(source, small, format="shards", shard_tokens="10M", val=0.001)
    source.unlink()
    manifest = json.loads((small / "manifest.json").read_text())
    train = manifest["splits"]["train"]
    files = [file for file in train["files"] if not file.get("role")]
    for file in manifest["splits"]["val"]["files"]:
        os.link(small / file["name"], folder / file["name"])
    many: list[dict[str, Any]] = []
    while sum(file["tokens"] for file in many) < tokens:
        file = files[len(many) % len(files)]
        many.append({**file, "name": f"many_{len(many):06}.bin"})
        os.link(small / file["name"], folder / many[-1]["name"])
    train["files"] = many
    factor = sum(file["tokens"] for file in many) / train["tokens"]
    train |= {key: int(train[key] * factor) for key in ("tokens", "documents", "bytes")}
    train["tokens"] = sum(file["tokens"] for file in many)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _drawn(page: Path) -> float | None:
    """Seconds until a browser has the page ready; None where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if browser is None:
        return None
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=browser, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        shown = opened.new_page()
        shown.goto(page.as_uri())
        milliseconds: float = shown.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        opened.close()
    return milliseconds / 1000


def table(result: dict[str, Any]) -> str:
    (row,) = result["rows"]
    if row["failure"]:
        return f"failed: {row['failure']}"
    lines = [
        ("tokens", f"{row['tokens']:,}"),
        ("seconds", f"{row['seconds'][0]:.1f}"),
        ("CPU seconds", f"{row['cpu']:.1f}"),
        ("peak memory, MB", f"{row['peaks'][0] / 1e6:.0f}"),
        ("page, MB", f"{row['page_bytes'] / 1e6:.2f}"),
        ("seconds until a browser has it ready", f"{row['interactive_seconds'] or float('nan'):.2f}"),
        ("cores busy with other work", f"{row['others'][0]:.1f}"),
    ]
    return "\n".join(["| a report | |", "|---|---:|", *(f"| {name} | {value} |" for name, value in lines)])
