"""What is seen while a run goes on: on terminals of any width, without colour, in a notebook; and what results show."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import shardmill
from shardmill.write.progress import Done, Meter, progress_of, shorten, view
from tests.corpus import documents, write_jsonl

DONE = Done(5_000_000_000, 1_234_567, 2_310_000_000, 12, "folder/of some/very/long/path/to/part-0003.jsonl.zst", 3)


def meter(total: int | None = 12_000_000_000, trouble: str = "") -> Meter:
    budget = SimpleNamespace(sample=lambda: 412_000_000, memory=1_000_000_000)
    made = Meter()
    made.status = lambda: trouble
    made.begin(total, Done(), budget)
    made._history = [(time.monotonic() - 10, Done())]
    made.done = DONE
    return made


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, so that speeds are the same on every machine."""
    monkeypatch.setattr("shardmill.write.progress.time.monotonic", lambda: 1000.0)


def drawn(width: int, *, color: Any = None, **more: Any) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color is not None, color_system=color)
    console.print(view(meter(**more), width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [24, 40, 63, 80, 120, 250])
def test_the_view_fits_in_any_width_and_says_all_of_it(width: int, still: None) -> None:
    said = drawn(width, trouble="retrying: the server said 503, try 2 of 8")
    lines = said.rstrip("\n").split("\n")
    assert max(map(len, lines)) < width and len(lines) <= 9
    if width >= 40:
        for words in ("42%", "left", "jsonl.zst", "5 GB of 12 GB", "500 MB/s", "231M tokens/s", "1,234,567 documents"):
            assert words in said, words
        for words in ("2.31B tokens", "412 MB of 1 GB", "12 rejected", "3 retries", "try 2 of 8"):
            assert words in said, words


def test_the_view_of_a_source_of_unknown_size_has_no_share_and_no_end() -> None:
    said = drawn(80, total=None)
    assert "%" not in said and "left" not in said and "5 GB ·" in said


def test_without_colour_there_are_no_escapes_for_it() -> None:
    assert "\x1b[3" in drawn(80, color="truecolor")
    assert "\x1b" not in drawn(80)


@pytest.mark.parametrize("text", ["a" * 300, "日本語" * 60, "short", "", "tab\tbell\x07" * 30])
@pytest.mark.parametrize("width", [20, 21, 80])
def test_a_long_text_keeps_its_end_and_never_takes_more_columns_than_there_are(text: str, width: int) -> None:
    from rich.cells import cell_len

    assert cell_len(shorten(text, width)) <= width
    assert shorten(text, width)[-5:] == "".join(c if c.isprintable() else "�" for c in text)[-5:]


def test_a_result_and_a_dataset_show_themselves_at_the_prompt_and_in_a_notebook(tmp_path: Path) -> None:
    out = tmp_path / "<b>out"
    result = shardmill.prepare(write_jsonl(tmp_path / "a.jsonl", documents(60)), out, val=0.3)
    data = shardmill.open(out)
    tokens = sum(len(data[split]) for split in data)
    assert re.fullmatch(r"<shardmill result '.*': [\d,]+ tokens of [\d,]+ documents, 0 rejected, in .*>", repr(result))
    assert f"{tokens:,} tokens" in repr(result) and len(repr(result)) < 300
    again = shardmill.prepare(tmp_path / "a.jsonl", out, val=0.3)
    assert "complete before" in repr(again) and "complete before" in again._repr_html_()
    for shown in (result._repr_html_(), data._repr_html_()):
        assert "&lt;b&gt;out" in shown and "<b>out" not in shown
        assert f"{len(data['train']):,}" in shown and "gpt2" in shown


def test_python_shows_no_progress_where_there_is_no_notebook() -> None:
    assert type(progress_of(None)).__name__ == "Progress"


def test_in_a_notebook_the_progress_is_a_cell_that_is_replaced(tmp_path: Path) -> None:
    client = pytest.importorskip("jupyter_client", reason="jupyter_client is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    source = write_jsonl(tmp_path / "a.jsonl", documents(60))
    manager, kernel = client.manager.start_new_kernel(startup_timeout=120)
    try:
        shown = []
        kernel.execute_interactive(
            f"import sys; sys.path[:0] = {sys.path!r}; import shardmill\n"
            f"shardmill.prepare({str(source)!r}, {str(tmp_path / 'out')!r})",
            timeout=120,
            output_hook=lambda message: shown.append((message["msg_type"], message["content"])),
        )
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    kinds = [kind for kind, _ in shown]
    assert "error" not in kinds, shown
    assert kinds.count("display_data") == 1 and "update_display_data" in kinds
    last = [content for kind, content in shown if kind == "update_display_data"][-1]["data"]["text/html"]
    assert "<progress" in last and "100%" in last and "<meter" in last
    assert "<table>" in next(content for kind, content in shown if kind == "execute_result")["data"]["text/html"]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("width", [40, 80])
def test_on_a_real_terminal_the_view_stands_still_and_leaves_nothing_behind(width: int, tmp_path: Path) -> None:
    """A run that stands still until it was looked at, in tmux."""
    code = f"""
import sys, time, os
from types import SimpleNamespace
from shardmill.write.progress import Bar, Done
bar = Bar()
bar.begin(1000, Done(), SimpleNamespace(sample=lambda: 5 * 10**8, memory=10**9))
for step in range(1, 41):
    bar.update(Done(step * 10, step, step * 1000, 2, "some/source.jsonl", 1))
    time.sleep(0.02)
while not os.path.exists({str(tmp_path / "seen")!r}):
    time.sleep(0.05)
bar.end()
print("over")
time.sleep(60)
"""
    (tmp_path / "run.py").write_text(code)
    session = f"shardmill-{tmp_path.name}-{time.monotonic_ns()}"
    path = ":".join(sys.path)
    start = ["tmux", "-L", session, "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", "20"]
    subprocess.run(
        [*start, f"env -u COLUMNS -u LINES PYTHONPATH='{path}' {sys.executable} {tmp_path / 'run.py'}"],
        check=True,
        timeout=60,
    )

    def screen(wanted: str) -> list[str]:
        until = time.monotonic() + 100
        while time.monotonic() < until:
            shown = subprocess.run(
                ["tmux", "-L", session, "capture-pane", "-p"], capture_output=True, text=True, check=True, timeout=60
            ).stdout
            if wanted in shown:
                return shown.rstrip("\n").split("\n")
            time.sleep(0.2)
        raise AssertionError(f"{wanted!r} was not shown:\n{shown}")

    try:
        seen = screen("40%")
        text = "\n".join(seen)
        assert len(seen) <= 8 and text.count("memory") == 1 and text.count("some/source.jsonl") == 1
        assert "40 documents" in text and "2 rejected" in text and "1 retry" in text
        (tmp_path / "seen").touch()
        assert [line for line in screen("over") if line] == ["over"]
    finally:
        subprocess.run(["tmux", "-L", session, "kill-server"], check=False, timeout=60)


def test_the_summary_of_a_resumed_run_counts_what_the_last_attempt_has_written() -> None:
    from shardmill.write import Result, as_text

    splits = {"train": {"tokens": 10, "documents": 1, "bytes": 9_000_000, "files": []}}
    counts = dict.fromkeys(("documents", "empty", "rejected", "replaced"), 0)
    manifest: Any = {"fingerprint": "", "format": "nanogpt", "dtype": "<u2", "eot": "after",
                     "tokenizer": {"name": "gpt2"}, "splits": splits, **counts}  # fmt: skip
    whole = as_text(Result("out", manifest, seconds=2.0)).splitlines()[-1]
    resumed = as_text(Result("out", manifest, seconds=2.0, resumed=True, text_before=7_000_000)).splitlines()[-1]
    assert whole.startswith("2.0 s, 4.5 MB/s") and resumed.startswith("resumed: 2.0 s, 1 MB/s")
