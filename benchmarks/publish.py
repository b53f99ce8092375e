"""The figures of README.md, docs/speed.md and their chart, all from the newest result of `compare`."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import plot, results

ROOT = Path(__file__).parents[1]
README, PAGE, CHART = ROOT / "README.md", ROOT / "docs" / "speed.md", ROOT / "docs" / "pictures" / "speed.svg"
_NAMES = {
    "shardmill": ("shardmill", "EOT, train and val, documents table, checksums, sync; resumes"),
    "gigatoken encode_files + tofile": ("gigatoken, `encode_files`", "tokens only: no EOT, no splits"),
    "tiktoken, a loop over documents": ("a loop over tiktoken", "EOT"),
    "build-nanogpt's pool over tiktoken": ("build-nanogpt's script", "EOT, shards"),
    "Megatron's script over tokenizers": ("Megatron's script", "EOT, index"),
    "HF tokenizers encode_batch": ("Hugging Face tokenizers", "EOT"),
    "nanoGPT's datasets.map": ("nanoGPT's script", "EOT, val"),
    "datatrove DocumentTokenizer": ("datatrove", "EOT, index; resumes by task"),
}
"""Programs that README compares: what they are called there, and what they do beside encoding."""
_CONTAINERS = {
    "text": "text with separators", "plain": "text without separators", "jsonl": "JSON Lines",
    "parquet-zstd": "parquet (zstd)", "jsonl.zst": "`.jsonl.zst`", "jsonl.gz": "`.jsonl.gz`",
}  # fmt: skip
_TOKENS = 10_000_000_000


def newest(folder: Path = results.FOLDER) -> Path:
    return max(folder.glob("*-compare.json"))


def publish(path: Path) -> None:
    """Write the figures of a result into both pages, and the chart."""
    for page, text in pages(path).items():
        page.write_text(text, encoding="utf-8")


def pages(path: Path) -> dict[Path, str]:
    """What README.md, docs/speed.md and the chart have to be."""
    result = json.loads(path.read_text())
    link = path.relative_to(ROOT)
    return {
        README: _replaced(README, "\n".join(_readme(result, str(link)))),
        PAGE: _replaced(PAGE, "\n".join(_page(result, f"../{link}"))),
        CHART: plot.bars(
            [(_NAMES[row["way"]][0].replace("`", ""), speed) for row, speed in _english(result)],
            f"MB/s of English text, on {result['machine']['cores']} cores",
        ),
    }


def _replaced(page: Path, figures: str) -> str:
    """The text of a page with other figures between its marks."""
    text = page.read_text(encoding="utf-8")
    marks = re.compile(r"(<!-- figures:[^>]*-->\n).*?(<!-- end of figures -->)", re.DOTALL)
    found = marks.subn(lambda mark: f"{mark[1]}{figures}\n{mark[2]}", text)
    assert found[1] == 1, f"{page} has no marks for figures"
    return found[0]


def _readme(result: dict[str, Any], link: str) -> Iterator[str]:
    yield "| program | MB/s of text | peak memory | beside encoding |"
    yield "|---|---:|---:|---|"
    for row, _ in _english(result):
        name, does = _NAMES[row["way"]]
        name = f"**{name}**" if row["way"] == "shardmill" else name
        yield f"| {name} | {_spread(row)} | {_peak(row)} | {does} |"
    yield ""
    ours = next(row for row, _ in _english(result) if row["way"] == "shardmill")
    minutes = _TOKENS / (ours["tokens"] / min(ours["seconds"])) / 60
    cores, sizes = result["machine"]["cores"], sorted({round(row["bytes"] / 1e6) for row, _ in _english(result)})
    said = (
        f"At this speed **10 billion tokens take {minutes:.2g} minutes on {cores} cores**, computed from this run. "
        f"All rows are [one run]({link}): GPT-2's tokens, {sizes[-1]} MB of English web text as JSON Lines, "
        f"{result['workers']} workers, each program {len(ours['seconds'])} times in turns; the fastest, and in "
        "brackets the slowest."
    )
    if len(sizes) > 1:
        said += f" Slow programs read only the first {' or '.join(map(str, sizes[:-1]))} MB."
    yield from textwrap.wrap(said, 100, break_long_words=False, break_on_hyphens=False)


def _page(result: dict[str, Any], link: str) -> Iterator[str]:
    machine = result["machine"]
    repeats = max(len(row["seconds"]) for row in result["rows"])
    said = (
        f"{result['date'][:10]}, {machine['cpu']}, {machine['cores']} cores, `--memory {result['memory']}`, the "
        f"fastest of {repeats} runs in turns, in brackets the slowest ([full result]({link})):"
    )
    yield from textwrap.wrap(said, 100, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield "| program | input | text | MB/s | tokens/s | start-up | peak memory | tokens equal tiktoken's |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for row in result["rows"]:
        kind, _, language = row["container"].partition(", ")
        container = _CONTAINERS.get(kind, kind) + (f", {language}" if language else "")
        head = f"| {row['way']} | {container} | {row['bytes'] / 1e6:,.0f} MB "
        if row["failure"]:
            yield f"{head}| – | – | – | – | failed: {row['failure']} |"
            continue
        rate = f"{row['tokens'] / min(row['seconds']) / 1e6:,.1f} M" if row["tokens"] else "–"
        start = min(whole - work for whole, work in zip(row["whole_seconds"], row["seconds"], strict=True))
        yield f"{head}| {_spread(row)} | {rate} | {start:.1f} s | {_peak(row)} | {row['verdict']} |"


def _english(result: dict[str, Any]) -> list[tuple[dict[str, Any], float]]:
    """The rows of JSON Lines of the first text, with their speed; the fastest first."""
    rows = [
        row for row in result["rows"] if row["container"] == "jsonl" and row["way"] in _NAMES and not row["failure"]
    ]
    return sorted(((row, _speed(row, min)) for row in rows), key=lambda found: -found[1])


def _speed(row: dict[str, Any], which: Any) -> float:
    return float(row["bytes"] / 1e6 / which(row["seconds"]))


def _spread(row: dict[str, Any]) -> str:
    return f"{_speed(row, min):,.3g} ({_speed(row, max):,.3g})"


def _peak(row: dict[str, Any]) -> str:
    return f"{max(row['peaks']) / 1e6:,.0f} MB"
