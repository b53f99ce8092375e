"""A packed dataset has rows that begin with a piece of a document, every token once, and only long documents cut."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.arrange import PackingPlan, count_pieces
from shardmill.dataset import TracedRow, show, verify
from shardmill.errors import BudgetError, MismatchError, UsageError
from shardmill.options import FORMATS
from shardmill.permutation import Permutations
from tests.corpus import contents
from tests.crashing import crash_everywhere
from tests.meter import metered_command
from tests.shards.readers import read_stream

pytestmark = pytest.mark.thorough

TEXTS = [f"text {i}: " + f"{i} and " * (i * 7 % 50) + "the end " * (i % 13 == 0) * 60 for i in range(400)]
T = 64


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(scope="module")
def before(corpus: Path) -> Path:
    shardmill.prepare(corpus, corpus.parent / "before", val="0.2", shard_tokens=2000)
    return corpus.parent / "before"


def check(before: Path, after: Path, row: int) -> None:
    """The slow twin: cut every document, and find each piece once, whole, within a row."""
    old, new = shardmill.open(before), shardmill.open(after)
    for name in old:
        table, tokens = old[name].table, old[name][:]
        expected: Counter[tuple[int, bytes]] = Counter()
        ends = [] if table is None else table.table["end"].tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            record = int(table.table["record"][number]) if table is not None else 0
            for at in range(start, end, row):
                expected[record, tokens[at : min(at + row, end)].astype(np.int64).tobytes()] += 1
        packed = new[name].table
        assert packed is not None and len(new[name]) % row == 0
        begin, padding, sizes = 0, 0, Counter[int]()
        for number in range(len(packed)):
            start, end = packed.bounds(number)
            assert start == begin and start // row == (end - 1) // row, "no piece crosses the border of two rows"
            begin, record = end, int(packed.table["record"][number])
            piece = new[name][start:end].astype(np.int64)
            free = 0
            while expected[record, piece.tobytes()] <= 0:  # without padding
                assert piece[-1] == new.eot_id and end % row == 0, "padding is EOT at the end of a row"
                piece, free = piece[:-1], free + 1
            expected[record, piece.tobytes()] -= 1
            padding, sizes[len(piece)] = padding + free, sizes[len(piece)] + 1
        assert begin == len(new[name]) and not +expected, "every piece is there"
        made = new.manifest["arranged"]["splits"][name]
        assert (made["padding"], made["rows"] * row) == (padding, len(new[name]))
    assert not verify(after).damage


@pytest.mark.parametrize("format", FORMATS)
def test_every_piece_of_every_document_is_there_once_in_any_format(before: Path, tmp_path: Path, format: str) -> None:
    result = shardmill.pack(before, tmp_path / "after", block_size=T, format=format)
    check(before, tmp_path / "after", T)
    assert result.manifest["format"] == format


@pytest.mark.parametrize("row", [2, 7, 100, 1025, 100_000])
def test_rows_may_be_short_or_longer_than_any_document(before: Path, tmp_path: Path, row: int) -> None:
    shardmill.pack(before, tmp_path / "after", block_size=row, seed=3)
    check(before, tmp_path / "after", row)


@pytest.mark.parametrize("eot", ["before", "none"])
def test_end_of_text_tokens_stay_where_they_are(corpus: Path, tmp_path: Path, eot: str) -> None:
    shardmill.prepare(corpus, tmp_path / "before", val="0", eot=eot)
    shardmill.pack(tmp_path / "before", tmp_path / "after", block_size=T)
    check(tmp_path / "before", tmp_path / "after", T)
    assert shardmill.open(tmp_path / "after").eot == eot


def test_padding_is_that_of_best_fit_and_only_long_documents_are_cut(before: Path, tmp_path: Path) -> None:
    result = shardmill.pack(before, tmp_path / "after", block_size=T)
    table = shardmill.open(before)["train"].table
    assert table is not None
    lengths = np.diff(table.table["end"], prepend=0)
    made = result.manifest["arranged"]["splits"]["train"]
    assert made["padding"] == PackingPlan(count_pieces(lengths, T), T).padding
    assert made["cut"] == np.count_nonzero(lengths > T)


def test_every_shard_begins_with_a_row(before: Path, tmp_path: Path) -> None:
    shardmill.pack(before, tmp_path / "after", block_size=T, format="shards", shard_tokens=1000)
    files = shardmill.open(tmp_path / "after")["train"].described["files"]
    assert len(files) > 3 and {file["tokens"] % T for file in files} == {0}


@pytest.mark.parametrize("format", ["shards", "npy", "llmc"])
def test_a_trainer_that_reads_each_shard_with_a_stride_gets_the_rows(before: Path, tmp_path: Path, format: str) -> None:
    """As build-nanogpt, llm.c and modded-nanogpt read: x is the next T tokens of a shard, y the same one later."""
    shardmill.pack(before, tmp_path / "after", block_size=T, format=format, shard_tokens=1000)
    split = shardmill.open(tmp_path / "after")["train"]
    assert split.table is not None
    begins, first = {0, *split.table.table["end"].tolist()}, 0
    for file in split.described["files"]:
        tokens = read_stream(format, tmp_path / "after", [file["name"]], "<u2")
        for at in range(0, len(tokens) - T, T):
            assert first + at in begins and tokens[at : at + T].tolist() == split[first + at : first + at + T].tolist()
        first += len(tokens)
    assert first == len(split)


def test_rows_and_what_shares_a_row_are_not_in_the_order_of_the_input(tmp_path: Path) -> None:
    texts = "".join(json.dumps({"text": "word " * (i * 7919 % 23 + 1)}) + "\n" for i in range(6000))
    (tmp_path / "a.jsonl").write_text(texts)
    shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "before", val="0")
    for seed in (0, 1):
        shardmill.pack(tmp_path / "before", tmp_path / f"after{seed}", block_size=256, seed=seed)
        table = shardmill.open(tmp_path / f"after{seed}")["train"].table
        assert table is not None
        record = table.table["record"].astype(np.float64)
        places = np.corrcoef(record, np.arange(len(record)))[0, 1]
        neighbours = np.corrcoef(record[1:], record[:-1])[0, 1]
        limit = 4 / len(record) ** 0.5
        assert abs(places) < limit and abs(neighbours) < limit
    assert contents(tmp_path / "after0")["train.bin"] != contents(tmp_path / "after1")["train.bin"]


def test_several_permutations_at_once_are_permutations() -> None:
    sizes = np.array([0, 1, 2, 3, 7, 8, 255, 256, 1000, 5000])
    many = Permutations(sizes, 3, "x")
    which = np.repeat(np.arange(len(sizes)), sizes)
    numbers = np.concatenate([np.arange(size) for size in sizes])
    found = many(which, numbers)
    for number, size in enumerate(sizes.tolist()):
        assert sorted(found[which == number].tolist()) == list(range(size))
    draws = [tuple(Permutations(np.array([3]), seed)(np.zeros(3, int), np.arange(3)).tolist()) for seed in range(6000)]
    counts = Counter(draws)
    assert len(counts) == 6 and sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 25  # chi-square, 5 free


def test_seed_and_documents_alone_choose_the_bytes(corpus: Path, tmp_path: Path) -> None:
    expected: dict[str, bytes] = {}
    settings: list[dict[str, Any]] = [{}, {"format": "npy"}, {"format": "shards", "shard_tokens": 500}]
    for number, options in enumerate(settings):
        shardmill.prepare(corpus, tmp_path / f"before{number}", val="0.2", eot="after", **options)
        after = tmp_path / f"after{number}"
        call = ["pack", str(tmp_path / f"before{number}"), "-o", str(after), "--block-size", str(T), "-f", "nanogpt"]
        memory = f"{180 + 200 * number}MB"
        subprocess.run([sys.executable, "-m", "shardmill", *call, "--memory", memory, "-q"], check=True, timeout=120)
        found = {name: data for name, data in contents(after).items() if name != "manifest.json"}
        expected = expected or found
        assert found == expected


def test_killed_at_any_step_it_ends_with_the_same_bytes(before: Path, tmp_path: Path) -> None:
    left = crash_everywhere(before, tmp_path / "out", every=9, pack=True, block_size=T, format="shards")
    assert len(left) > 3


def test_the_memory_of_the_whole_command_stays_below_the_limit(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    words = np.array(["alpha ", "beta ", "gamma ", "delta ", "of ", "the ", "and\n", "zeta-"])
    with open(tmp_path / "big.jsonl", "w") as file:
        for i in range(60):
            text = "".join(words[random.integers(0, len(words), 4_000_000 if i == 30 else 500_000)].tolist())
            file.write(json.dumps({"text": text}) + "\n")
    shardmill.prepare(tmp_path / "big.jsonl", tmp_path / "before", val="0")
    call = [sys.executable, "-m", "shardmill", "pack", str(tmp_path / "before"), "-o", str(tmp_path / "after")]
    assert metered_command([*call, "--block-size", "2048", "--memory", "200MB"]).peak <= 200_000_000
    assert not list((tmp_path / "after").glob(".sorted*"))
    assert not verify(tmp_path / "after", sample=2).damage


def test_a_step_of_the_loader_is_traced_through_shuffle_mix_and_pack(
    corpus: Path, before: Path, tmp_path: Path
) -> None:
    lines = corpus.read_text().splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(line.replace("text ", "other ") for line in lines[:150]))
    shardmill.prepare(tmp_path / "other.jsonl", tmp_path / "other", val="0.1")
    shardmill.shuffle(before, tmp_path / "shuffled", seed=1)
    shardmill.mix({tmp_path / "shuffled": 2, tmp_path / "other": 1}, tmp_path / "mixed")
    shardmill.pack(tmp_path / "mixed", tmp_path / "packed", block_size=T)
    data = shardmill.open(tmp_path / "packed")
    texts = {Path(name).name: [json.loads(line)["text"] for line in (corpus.parent if "texts" in name else tmp_path)
             .joinpath(name).read_text().splitlines()] for name in ("texts.jsonl", "other.jsonl")}  # fmt: skip
    settings: dict[str, Any] = {"batch_size": 3, "block_size": T, "seed": 5}
    seen = 0
    for step, (x, _) in enumerate(data["train"].batches(**settings)):
        for row in data.trace(step=step, **settings):
            assert isinstance(row, TracedRow) and row.start % T == 0
            at = row.start
            assert row.documents[0].start == row.start, "a row begins with a piece"
            for document in row.documents:
                tokens = x[row.row][document.start - row.start : document.end - row.start]
                text = data.decode(np.array([token for token in tokens.tolist() if token != data.eot_id]))
                assert text in texts[Path(document.source).name][document.record]
                at, seen = document.end, seen + 1
            assert at == row.end
    assert seen > 300
    found = data.trace(source="texts.jsonl", record=13)
    whole = "".join(data.decode(data[one.split][one.start : one.end]).replace("<|endoftext|>", "") for one in found)
    assert sorted(whole) == sorted(TEXTS[13])


def test_what_cannot_work_is_an_error_that_names_the_way_out(before: Path, tmp_path: Path) -> None:
    shardmill.pack(before, tmp_path / "after", block_size=T, seed=1)
    assert shardmill.pack(before, tmp_path / "after", block_size=T, seed=1).already
    with pytest.raises(MismatchError, match="block"):
        shardmill.pack(before, tmp_path / "after", block_size=T + 1, seed=1)
    for again in (shardmill.shuffle, shardmill.convert):
        with pytest.raises(UsageError, match="packed"):
            again(tmp_path / "after", tmp_path / "again")
    with pytest.raises(UsageError, match="packed"):
        shardmill.mix({tmp_path / "after": 1}, tmp_path / "again")
    with pytest.raises(UsageError, match="packed"):
        shardmill.pack(tmp_path / "after", tmp_path / "again", block_size=T)
    with pytest.raises(UsageError):
        shardmill.pack(before, tmp_path / "again", block_size=1)
    with pytest.raises(BudgetError, match="does not suffice"):
        shardmill.pack(before, tmp_path / "again", block_size=T, memory="20MB")
    shardmill.mix({before: 1}, tmp_path / "stages", stages={100: {before: 2}})
    with pytest.raises(UsageError, match="stages"):
        shardmill.pack(tmp_path / "stages", tmp_path / "again", block_size=T)


def test_the_command_says_how_much_is_padding_and_cut_before_it_begins(before: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "shardmill", "pack", str(before), "-o", str(tmp_path / "out"), "--block-size", str(T)]
    said = subprocess.run(call, capture_output=True, text=True, check=True, timeout=120).stderr
    assert f"rows of {T} tokens" in said.splitlines()[0] and "padding" in said and "cut" in said
    again = subprocess.run([*call, "--json"], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(again.stdout)["packed"]["train"]["rows"] > 50
    check(before, tmp_path / "out", T)


def test_report_card_and_show_work_over_a_mixture_and_its_rows(before: Path, tmp_path: Path) -> None:
    shardmill.mix({before: 1}, tmp_path / "mixed")
    shardmill.pack(tmp_path / "mixed", tmp_path / "packed", block_size=T)
    for name in ("mixed", "packed"):
        shardmill.report(tmp_path / name, out=tmp_path / f"{name}.html")
        assert "texts.jsonl" in (tmp_path / f"{name}.html").read_text()
        assert shardmill.card(tmp_path / name).startswith("---")
        lines = list(show(shardmill.open(tmp_path / name), first=3, documents=1))
        assert "texts.jsonl, line " in lines[0]
