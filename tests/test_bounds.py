"""What `python -m benchmarks bounds` computes from what it has measured, and that its steps do all of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bound_shares import BAR, NEEDS, RUN, SCALED, Need, bound, gain, least_seconds, page, table
from tests.corpus import documents

STEPS = {
    Need("engine", "jsonl", each=True): 4.0,
    Need("write", thread="writer"): 1.0,
    Need("hash", thread="keeper"): 1.0,
}


def test_the_cores_share_all_steps() -> None:
    assert least_seconds(STEPS, workers=2, cores=2) == 3.0


def test_one_worker_does_its_own_steps_alone_and_the_rest_runs_beside_it() -> None:
    assert least_seconds(STEPS, workers=1, cores=2) == 4.0


def test_a_stream_cannot_be_faster_than_its_one_thread() -> None:
    stream = {Need("read", "jsonl.gz", "feeder"): 1.0, Need("decompress", "jsonl.gz", "feeder"): 6.0}
    assert least_seconds({**STEPS, **stream}, workers=8, cores=8) == 7.0


def result(*, workers: int = 2) -> dict:
    """A run in which every step took 0.25 s of CPU, the engines 4.25 s together, and shardmill 8 s of CPU in 5 s."""
    rows = {(need.step, need.measured, 0): (0.25, 0.25) for needs in NEEDS.values() for need in needs if not need.each}
    for n in {1, workers}:
        rows[("load", "", n)] = (0.25 * n, 0.25 * n)
        rows |= {("engine", text, n): (4.0 + 0.25 * n, 9.0) for text in ("jsonl", "text", "plain")}
        rows |= {(RUN, container, n): (8.0, 10.0 / n) for container in (NEEDS if n == workers else SCALED)}
    rows[(BAR, "jsonl", workers)] = (6.0, 3.5)
    return {
        "kind": "bounds",
        "date": "2026-11-16T00:00:00+00:00",
        "machine": {"cpu": "a CPU", "cores": 2, "memory": 8 * 10**9, "system": "a system"},
        "text": {"description": "a text", "bytes": 500 * 10**6, "documents": 1000},
        "workers": workers,
        "memory": "512MB",
        "repeat": 2,
        "rows": [
            # The other repeat is worse in both, and must not count.
            {"step": s, "container": c, "workers": n, "cpu": [2 * x, x], "seconds": [y, 2 * y], "others": [0.1, 0.2]}
            for (s, c, n), (x, y) in rows.items()
        ],
    }


def test_the_bound_is_what_the_steps_leave_of_the_bars_speed() -> None:
    found = bound(result(), "jsonl")
    # Engines made 0.5, engines 4.5; and read, validate, parse, narrow, write, sync, hash.
    assert found.needed == 0.5 + 4.5 + 7 * 0.25
    assert found.least == found.needed / 2
    assert found.bound == 6.0 / found.needed
    assert found.beyond == 8.0 - found.needed
    assert (found.share_of_cpu, found.share_of_time, found.busy) == (6 / 8, 3.5 / 5, 0.8)


def test_what_a_compressed_file_needs_more_is_its_decompression() -> None:
    assert bound(result(), "jsonl.gz").needed - bound(result(), "jsonl").needed == 0.25


def test_the_gain_of_workers_is_bounded_by_what_runs_beside_one_of_them() -> None:
    found = gain(result(), "text")
    one = 0.25 + 4.25 + 4 * 0.25  # read, find, validate, narrow; writing, syncing and hashing run beside it
    assert found.by_steps == one / (bound(result(), "text").needed / 2)
    assert (found.by_cpu, found.reached) == (10 / (8 / 2), 2.0)


def test_the_table_has_a_row_for_each_container_and_each_step() -> None:
    lines = table(result()).splitlines()
    assert "| JSON Lines | 6.75 s | 0.89 | 8.00 s | 0.75 | 5.00 s | 100 | 0.70 | 80% | 1.25 s |" in lines
    assert "| JSON Lines | 0.50 | 0.25 | – | 0.25 | 0.25 | 4.50 | 0.25 | 0.50 | 0.25 | 6.75 |" in lines
    assert "| text with separators | 1.63 | 2.50 | 2.00 | 10.00 s |" in lines
    assert sum(line.startswith("| `pread` from the page cache |") for line in lines) == len(NEEDS)
    assert "### 2 workers against one" in lines


def test_with_one_worker_there_is_no_gain_to_tell() -> None:
    assert "against one" not in table(result(workers=1))


def test_the_page_names_the_command_and_links_to_the_result_and_shows_no_folder_of_this_machine(tmp_path: Path) -> None:
    kept, where = tmp_path / "benchmarks" / "results" / "r.json", tmp_path / "docs" / "bounds.md"
    text = page(result(), kept, Path("/somewhere/web.jsonl"), where)
    assert "`python -m benchmarks bounds web.jsonl` ([result](../benchmarks/results/r.json))" in text
    assert "somewhere" not in text


def test_every_step_that_a_container_needs_is_measured_and_goes_over_all_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("resource")
    from benchmarks import bounds, steps
    from benchmarks.containers import SUFFIXES, WRITERS, Text

    monkeypatch.setattr(steps, "PIECE", 1 << 14)  # several pieces
    separator = steps.SEPARATOR.decode()
    rows = [text for text in documents(400) if text and separator not in text]
    texts = {}
    for container in NEEDS:
        path = tmp_path / container / f"text{SUFFIXES[container]}"
        path.parent.mkdir()
        WRITERS[container](path, rows)
        texts[container] = Text(path, container, 0, len(rows))
    bench = bounds.Bench(texts, "512MB", 60, {}, tokens=3_000_000)
    out = tmp_path / "out"
    out.mkdir()
    did = {}
    for item in bounds.items(2):
        if item.name not in (BAR, RUN):
            for step, clock in steps.STEPS[item.name](*bench._command(item, out)[3:]).items():
                did[step, item.container, item.workers] = clock.did
                assert clock.cpu > 0 and clock.seconds > 0
    assert {
        (need.step, need.measured, n)
        for needs in NEEDS.values()
        for need in needs
        for n in ((1, 2) if need.each else (0,))
    } <= set(did)
    sizes = {container: text.path.stat().st_size for container, text in texts.items()}
    assert {container: did["read", container, 0] for container in NEEDS} == sizes
    assert all(did["validate", container, 0] == sizes[container] for container in ("text", "plain", "jsonl"))
    assert did["find", "text", 0] == len(rows) - 1
    assert did["parse", "jsonl", 0] == did["decode", "parquet-zstd", 0] == len(rows)
    assert did["decompress", "jsonl.zst", 0] == did["decompress", "jsonl.gz", 0] == sizes["jsonl"]
    # With one worker and with two the same. In text the separators are encoded too, each in several tokens.
    assert did["engine", "jsonl", 1] == did["engine", "jsonl", 2]
    assert did["engine", "text", 1] == did["engine", "text", 2] > did["engine", "jsonl", 1] + len(rows)
    assert did["narrow", "", 0] == 3_000_000
    assert did["write", "", 0] == did["sync", "", 0] == did["hash", "", 0] == 6_000_000
