"""A margin holds in about 95 of 100 cases: over many corpora, of each kind of source."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard

from shardmill.documents import Reading
from shardmill.inspection import inspect
from shardmill.sampling import places
from shardmill.sampling.estimate import expected
from shardmill.sampling.places import SampledPlace, SampledSource
from shardmill.sampling.sample import Kind
from shardmill.storage import Source
from tests.inspection.material import corpus, few_long, true_tokens

KINDS = ("jsonl", "txt", "parquet", "parquets", "jsonl.gz", "jsonls.zst", "csv", "feather")
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
    assert abs(report.documents.value - len(made)) <= max(1, report.documents.margin)
    for amount, truth in ((report.text_bytes, sum(map(len, made))), (report.tokens, tokens)):
        assert abs(amount.value - truth) < 0.03 * truth
        assert amount.margin < 0.2 * truth


def test_of_forty_estimates_at_least_thirty_eight_hold_the_truth(tmp_path: Path, fewer_places: None) -> None:
    outside: dict[str, list[str]] = {"documents": [], "tokens": [], "text": []}
    estimates = 0
    for kind in KINDS:
        for seed in range(CORPORA):
            made, truth = known(seed)
            path = tmp_path / f"{seed}.{kind}"
            report = inspect(path, **write(path, made, kind))
            assert not report.tokens.exact and not report.troubles, (kind, seed)
            estimates += 1
            said = {"documents": report.documents, "tokens": report.tokens, "text": report.text_bytes}
            for what, amount in said.items():
                off = amount.value - truth[what]
                if abs(off) > amount.margin:
                    share = 100 / truth[what]
                    outside[what].append(f"{kind} {seed}: {off * share:+.2f} % ± {amount.margin * share:.2f}")
            # A margin of anything would hold the truth.
            assert report.tokens.margin < (0.05 if seed < CORPORA - 1 else 0.15) * truth["tokens"], (kind, seed)
    assert estimates == 40
    assert max(map(len, outside.values())) <= 2, outside


def test_short_streams_are_neither_over_nor_underestimated(tmp_path: Path, few_places: None) -> None:
    """Of each file a part is read from its start, which is compressed less well than what follows, and in blocks that
    are large beside it."""
    rng = np.random.default_rng(5)
    off = []
    for seed in range(6):
        path = tmp_path / f"{seed}"
        path.mkdir()
        made = corpus(6_000_000, 4 * seed)
        bounds = np.sort(rng.integers(0, len(made), 11)).tolist()
        for i, (begin, end) in enumerate(zip([0, *bounds], [*bounds, len(made)], strict=True)):
            lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in made[begin:end])
            (path / f"{i}.jsonl.zst").write_bytes(zstandard.compress(lines))
        report, truth = inspect(path), true_tokens(made)
        assert not report.tokens.exact
        assert abs(report.tokens.value - truth) <= report.tokens.margin, seed
        off.append(report.tokens.value / truth - 1)
    # So near zero on average as chance allows.
    assert abs(np.mean(off)) < 0.01, off


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


@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz", "feather"])
def test_tokens_have_a_margin_where_all_was_read_and_only_some_of_it_encoded(tmp_path: Path, kind: str) -> None:
    made = corpus(5_000_000, 1)
    report = inspect(tmp_path / f"a.{kind}", **write(tmp_path / f"a.{kind}", made, kind))
    assert report.documents.value == len(made)
    off = abs(report.tokens.value - true_tokens(made))
    assert off <= report.tokens.margin, f"off by {off:,}, said ± {report.tokens.margin:,}"


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
    assert abs(report.documents.value - len(made)) <= report.documents.margin
    long = sum(count for up_to, count in report.sizes if up_to > 4096)
    assert 50 <= long <= 200


def test_a_row_group_that_is_one_long_text_and_many_short_ones_is_sampled_by_its_bytes(
    tmp_path: Path, fewer_places: None
) -> None:
    """The long one has other tokens; to take rows of a group by their number would leave it out of most samples."""
    made = [*(["plain words here " * 20] * 200), "0123456789" * 20_000] * 12
    pq.write_table(pa.table({"text": made}), tmp_path / "a.parquet", row_group_size=201, use_dictionary=False)
    report = inspect(tmp_path / "a.parquet")
    truth = true_tokens(made)
    assert not report.tokens.exact
    assert abs(report.tokens.value - truth) <= report.tokens.margin < 0.5 * truth


def test_one_long_document_makes_the_margin_wider_and_few_places_too() -> None:
    def told(values: list[float]) -> float:
        kind = Kind("jsonl", "", [0], np.array([10**9]), np.array([10**9]))
        kind.places = [
            SampledPlace(1e6, 1e6, 1e6, 100, tokens=value, weight=1000 / len(values), cluster=i)
            for i, value in enumerate(values)
        ]
        tokens = expected(kind, separated=False, eot=False).tokens
        return tokens.margin / tokens.value

    alike = told([250_000.0] * 40)
    assert 0 < alike < 0.01
    assert told([250_000.0] * 4) > 2 * alike
    assert told([250_000.0] * 39 + [750_000.0]) > 0.1


def test_what_is_read_from_its_start_says_that_the_rest_was_not_seen() -> None:
    kind = Kind("csv", "", [0], np.array([10**9]), np.array([10**9]))
    kind.looked = [SampledSource(0, Source("a.csv", "a.csv", 10**9, ""), 10**9, Reading())]
    kind.looked[0].unseen = 9 * 10**8
    kind.places = [SampledPlace(1e6, 1e6, 1e6, 100, tokens=2.5e5, weight=25, cluster=i) for i in range(40)]
    far = expected(kind, separated=False, eot=False)
    kind.looked[0].unseen = 0
    near = expected(kind, separated=False, eot=False)
    assert far.tokens.margin > 3 * near.tokens.margin
    assert far.documents.margin > far.tokens.margin * (far.documents.value / far.tokens.value)


def test_csv_with_quotes_and_line_breaks_is_read_as_rows(tmp_path: Path, few_places: None) -> None:
    made = [text.replace(" wo", ' "wo",\n').replace(" ti", "\n\nti") for text in corpus(3_000_000, 1)]
    pyarrow.csv.write_csv(pa.table({"id": range(len(made)), "text": made}), tmp_path / "two.csv")
    report = inspect(tmp_path / "two.csv")
    assert not report.troubles
    assert report.sampled_places > 40
    assert abs(report.documents.value - len(made)) <= report.documents.margin
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.03


def test_bad_rows_of_csv_are_part_of_the_sample(tmp_path: Path, few_places: None) -> None:
    made = corpus(4_000_000, 4)
    rows = [f'{i},"{text}"' if i % 8 else f'{i},"{text}",and a field too many' for i, text in enumerate(made)]
    (tmp_path / "a.csv").write_text("id,text\n" + "\n".join(rows))
    report = inspect(tmp_path / "a.csv")
    assert not report.documents.exact
    assert abs(report.documents.value - len(made)) <= report.documents.margin
    (trouble,) = [trouble for trouble in report.troubles if trouble.what == "rejects"]
    assert "3 fields where the header has 2" in trouble.message
    assert 0.09 < float(trouble.message.split(" %")[0]) / 100 < 0.16


def test_csv_whose_rows_end_with_carriage_returns_is_sampled_too(tmp_path: Path, few_places: None) -> None:
    made = corpus(4_000_000, 4)
    (tmp_path / "a.csv").write_bytes(b"id,text\r" + b"".join(f"{i},{text}\r".encode() for i, text in enumerate(made)))
    report = inspect(tmp_path / "a.csv")
    assert not report.troubles
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.05


def test_csv_of_which_little_is_text_is_not_taken_for_read_to_its_end(tmp_path: Path, few_places: None) -> None:
    made = corpus(2_000_000, 0)
    beside = "x" * (60_000_000 // len(made))
    (tmp_path / "a.csv").write_text("other,text\n" + "".join(f"{beside},{text}\n" for text in made))
    report = inspect(tmp_path / "a.csv")
    assert not report.documents.exact and not report.troubles
    assert abs(report.documents.value - len(made)) <= report.documents.margin
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.05


def test_where_every_place_was_read_nothing_is_uncertain_but_the_least() -> None:
    kind = Kind("jsonl", "", [0], np.array([4 * 10**7]), np.array([4 * 10**7]))
    values = [1e5 * (1 + i % 5) for i in range(40)]
    for weight in (1.0, 2.0):
        kind.places = [
            SampledPlace(1e6, 1e6, 1e6, 100, tokens=value, encoded=10**6, weight=weight, cluster=i)
            for i, value in enumerate(values[:: int(weight)])
        ]
        tokens = expected(kind, separated=False, eot=False).tokens
        assert (tokens.margin < 0.01 * tokens.value) == (weight == 1.0), weight
