"""A margin nearly always holds: over many corpora, of each kind of source."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard

from shardmill.inspection import Amount, Kind, expected, places, working_seconds
from shardmill.inspection.places import SampledPlace, SampledSource
from shardmill.run import inspect
from shardmill.storage import Source
from tests.inspection.material import corpus, few_long, true_tokens

pytestmark = pytest.mark.thorough

KINDS = ("jsonl", "txt", "parquet", "parquets", "jsonl.gz", "jsonls.zst", "csv", "feather")
FROM_THEIR_START = ("jsonl.gz", "jsonls.zst", "csv")
CORPORA = 5


@pytest.fixture
def fewer_places(few_places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "UNIT", 1 << 14)


@cache
def known(seed: int) -> tuple[list[str], dict[str, int]]:
    """A corpus and what is true of it, once for all kinds."""
    made = few_long(2_500_000, seed) if seed == CORPORA - 1 else corpus(2_500_000, seed)
    truth = {"documents": len(made), "tokens": true_tokens(made), "text": sum(len(text.encode()) for text in made)}
    return made, truth


@cache
def books() -> tuple[list[str], int]:
    """Documents of three megabytes, and how many tokens they have."""
    text = " ".join(corpus(6_000_000, 1))
    made = [text[i * 100_000 :][:3_000_000] for i in range(24)]
    return made, true_tokens(made)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "jsonl.gz", "csv", "feather"])
def test_documents_of_megabytes_are_looked_at_where_there_are_no_others(tmp_path: Path, kind: str) -> None:
    made, tokens = books()
    report = inspect(tmp_path / f"a.{kind}", **write(tmp_path / f"a.{kind}", made, kind))
    assert not report.troubles
    for amount, truth in ((report.text_bytes, sum(map(len, made))), (report.tokens, tokens)):
        assert abs(amount.value - truth) < 0.1 * truth


def test_of_forty_estimates_nearly_all_hold_the_truth_and_all_are_near(tmp_path: Path, fewer_places: None) -> None:
    outside: dict[str, list[str]] = {"documents": [], "tokens": [], "text": []}
    far: list[str] = []
    for kind in KINDS:
        for seed in range(CORPORA):
            made, truth = known(seed)
            path = tmp_path / f"{seed}.{kind}"
            report = inspect(path, **write(path, made, kind))
            # An Arrow file of this size is read whole.
            assert report.tokens.exact == (kind == "feather") and not report.troubles, (kind, seed)
            said = {"documents": report.documents, "tokens": report.tokens, "text": report.text_bytes}
            for what, amount in said.items():
                off = 100 * (amount.value / truth[what] - 1)
                shown = f"{kind} {seed}, {what}: {off:+.2f} %, margin {amount.margin}"
                assert (amount.margin is None) == (kind in FROM_THEIR_START), shown
                if amount.margin is not None and abs(amount.value - truth[what]) > amount.margin:
                    outside[what].append(shown)
                if abs(off) > 10:
                    far.append(shown)
            # A margin of anything would hold the truth.
            assert (report.tokens.margin or 0) < 0.3 * truth["tokens"], (kind, seed)
    assert max(map(len, outside.values())) <= 1, outside
    assert len(far) <= 12, "\n".join(far)


def write(path: Path, made: list[str], kind: str) -> dict[str, str]:
    """A file or a folder of them; gives the options to read it with."""
    table = pa.table({"text": made})
    if kind == "txt":
        path.write_text("\n\n".join(made))
        return {"separator": r"\n\n"}
    if kind.startswith("jsonl"):
        lines = [json.dumps({"text": text}).encode() + b"\n" for text in made]
        if kind == "jsonls.zst":
            path.mkdir()
            for i in range(12):
                (path / f"{i}.jsonl.zst").write_bytes(zstandard.compress(b"".join(lines[i::12])))
        else:
            path.write_bytes(gzip.compress(b"".join(lines), 1) if kind.endswith("gz") else b"".join(lines))
    elif kind == "parquet":
        pq.write_table(table, path, row_group_size=70, compression="zstd")
    elif kind == "parquets":
        path.mkdir()
        bounds = np.sort(np.random.default_rng(0).integers(0, len(made), 59)).tolist()
        for i, (begin, end) in enumerate(zip([0, *bounds], [*bounds, len(made)], strict=True)):
            pq.write_table(table.slice(begin, end - begin), path / f"{i}.parquet", row_group_size=100)
    elif kind == "feather":
        pyarrow.feather.write_feather(table, path, chunksize=50)
    else:
        pyarrow.csv.write_csv(table, path)
    return {}


def test_a_part_that_was_drawn_by_its_size_does_not_count_by_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of short documents and files of long ones: each is one part, and all of a part is read."""
    monkeypatch.setattr(places, "UNIT", 1 << 14)
    for i in range(300):
        many, words = (60, 5) if i % 3 else (20, 100)
        line = json.dumps({"text": "some " * words}) + "\n"
        (tmp_path / f"{i:03}.jsonl").write_text(line * many)
    report = inspect(tmp_path)
    assert not report.documents.exact
    assert abs(report.documents.value - (200 * 60 + 100 * 20)) <= report.documents.margin
    assert report.documents.margin < 0.3 * report.documents.value


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "txt"])
def test_documents_longer_than_a_place_are_neither_missed_nor_counted_twice(
    tmp_path: Path, fewer_places: None, kind: str
) -> None:
    made = ["short words " * 10] * 20_000
    for i in range(0, 20_000, 200):
        made[i] = "long words of it " * 1000
    path = tmp_path / f"a.{kind}"
    report = inspect(path, **write(path, made, kind))
    assert not report.documents.exact
    assert abs(report.documents.value / len(made) - 1) < 0.2
    if report.documents.margin is not None:
        assert abs(report.documents.value - len(made)) <= report.documents.margin


def test_a_row_group_that_is_one_long_text_and_many_short_ones_is_read_whole(
    tmp_path: Path, fewer_places: None
) -> None:
    """The long one has other tokens; some rows of each group would leave it out of most samples."""
    made = [*(["plain words here " * 20] * 150), "0123456789" * 20_000] * 12
    table, path = pa.table({"text": made}), tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=151, use_dictionary=False, compression="none")
    report, truth = inspect(path), true_tokens(made)
    assert not report.tokens.exact
    assert abs(report.tokens.value - truth) <= report.tokens.margin < 0.1 * truth


def sampled(values: list[int]) -> Kind:
    """A gigabyte of JSON Lines, with places of a megabyte that have so many tokens."""
    looking: Any = None  # nothing is read
    source = SampledSource(0, Source("a", "a", 10**9, ""), looking, lambda: False)
    source.places = [SampledPlace(1e6, 1e6, 1000 / len(values), 10**6, 10**6, tokens) for tokens in values]
    return Kind("jsonl", "", False, [0], np.array([10**9]), [source], cpu_seconds=2.0)


def test_a_margin_is_three_standard_errors_and_unknown_if_there_are_few_places() -> None:
    def told(values: list[int]) -> Amount:
        return expected(sampled(values), separated=False, eot=False).tokens

    assert told([250_000] * 5) == Amount(250_000_000, None)
    assert told([250_000] * 40) == Amount(250_000_000, 500_000)  # the least margin, 0.2 %
    values = np.random.default_rng(1).normal(250_000, 20_000, 40).astype(int)
    standard_error = np.std(values, ddof=1) / np.sqrt(40) * 1000
    tokens = told(values.tolist())
    assert tokens.margin == pytest.approx(3 * standard_error + 0.002 * tokens.value, rel=0.001)


def test_the_time_of_a_run_is_that_of_the_sample_for_all_text_divided_by_the_workers() -> None:
    kind = sampled([250_000] * 40)  # 40 MB in two CPU seconds
    holds = expected(kind, separated=False, eot=False)
    assert working_seconds([kind], [holds], workers=1) == pytest.approx(50)
    assert working_seconds([kind, kind], [holds, holds], workers=4) == pytest.approx(25)


def test_csv_with_quotes_and_line_breaks_is_read_as_rows(tmp_path: Path, few_places: None) -> None:
    made = [text.replace(" wo", ' "wo",\n').replace(" ti", "\n\nti") for text in corpus(3_000_000, 1)]
    pyarrow.csv.write_csv(pa.table({"id": range(len(made)), "text": made}), tmp_path / "two.csv")
    report = inspect(tmp_path / "two.csv")
    assert not report.troubles
    assert abs(report.documents.value / len(made) - 1) < 0.1
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.1


def test_a_block_of_csv_is_read_to_its_end_or_not_counted(tmp_path: Path, few_places: None) -> None:
    """Among others that are larger, so that little of it is read: less than two blocks."""
    made = corpus(3_000_000, 0)
    (tmp_path / "a.jsonl").write_bytes(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in made * 7))
    pyarrow.csv.write_csv(pa.table({"text": made}), tmp_path / "b.csv")
    report = inspect(tmp_path)
    (kind,) = [kind for kind in report.kinds if kind.format == "csv"]
    assert kind.beginnings == 1
    assert abs(kind.text_bytes.value / sum(map(len, made)) - 1) < 0.02
    assert abs(kind.documents.value / len(made) - 1) < 0.1


def test_bad_rows_of_csv_are_part_of_the_sample(tmp_path: Path, few_places: None) -> None:
    made = corpus(4_000_000, 4)
    rows = [f'{i},"{text}"' if i % 8 else f'{i},"{text}",and a field too many' for i, text in enumerate(made)]
    (tmp_path / "a.csv").write_text("id,text\n" + "\n".join(rows))
    report = inspect(tmp_path / "a.csv")
    assert not report.documents.exact
    assert abs(report.documents.value / len(made) - 1) < 0.1
    (trouble,) = [trouble for trouble in report.troubles if trouble.what == "rejects"]
    assert "3 fields where the header has 2" in trouble.message
    assert 0.09 < float(trouble.message.split(" %")[0]) / 100 < 0.16


def test_csv_whose_rows_end_with_carriage_returns_is_sampled_too(tmp_path: Path, few_places: None) -> None:
    made = corpus(4_000_000, 4)
    (tmp_path / "a.csv").write_bytes(b"id,text\r" + b"".join(f"{i},{text}\r".encode() for i, text in enumerate(made)))
    report = inspect(tmp_path / "a.csv")
    assert not report.troubles
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.05


def test_csv_of_which_little_is_text_is_read_on_until_there_is_enough(tmp_path: Path, few_places: None) -> None:
    made = corpus(2_000_000, 0)
    beside = "x" * (60_000_000 // len(made))
    (tmp_path / "a.csv").write_text("other,text\n" + "".join(f"{beside},{text}\n" for text in made))
    report = inspect(tmp_path / "a.csv")
    assert report.documents == Amount(len(made))
    assert report.tokens == Amount(true_tokens(made))
