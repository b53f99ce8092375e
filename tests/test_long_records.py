"""A record that is too large to be encoded at once gives the bytes that it gives where there is room."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import feather

import shardmill
from shardmill.cluster import make_part, merge, missing_parts, plan_parts
from tests.corpus import HARD, contents, random_words
from tests.crashing import allow, crash_everywhere
from tests.reference import check, twin

pytestmark = pytest.mark.thorough

LARGEST = 100_000


def _texts() -> dict[str, str]:
    """Long texts of all kinds."""
    chance = random.Random(7)
    letters = "aé日😀\n\"\\\t 0/'\u2028\x7f"
    return {
        "words": random_words(300_000).decode(),
        "any characters": "".join(chance.choice(letters) for _ in range(150_000)),
        "hard ones": "".join(chance.choice(HARD) for _ in range(1500)),
        "no place to cut": "x" * 250_000,
        "surrogate pairs": "😀" * 60_000,
        "backslashes": "\\" * 150_001,
        "quotes": '"' * 150_001,
        "white space": " \n" * 100_000,
    }


def _bad() -> Iterator[bytes]:
    """Long lines that are no documents, of all kinds of reasons."""
    text = json.dumps(_texts()["any characters"])[1:-1].encode()
    for spoiler in (b"\\x", b"\\u12", b"\t", b"\xff", b"\\ud83d", b"\\ude00 \\ud83d", b'"', b'",'):
        yield b'{"text": "%s%s%s"}' % (text, spoiler, text)
    yield b'{"text": "%s' % text
    yield b'["%s"]' % text
    yield b'  {"text": 1, "other": "%s"} \r' % text
    yield b'{"text": null, "other": "%s"}' % text
    yield b'{"other": "%s"}' % text
    yield b'{"text": "%s"} {}' % text
    yield b'{"text": "%s", "other": %s}' % (text, b"[" * 3000)


def _odd() -> Iterator[bytes]:
    """Long lines that are documents, with the text in odd places."""
    text = json.dumps(_texts()["any characters"])[1:-1].encode()
    yield b'{"other": "%s", "text": "short"}' % text
    yield b'{"other": "%s", "text": ""}' % text
    yield b'{"text": "first", "other": "%s", "text": "last %s", "more": {"text": "%s"}}' % (text, text, text)
    yield b' \t{"%s": 1, "te\\u0078t": "%s", "more": %s}\r' % (text, text, b"[" * 300 + b"]" * 300)
    yield b'{"text": "%s", "more": %s}' % (text, json.dumps(list(range(3000))).encode())


def _lines(*, bad: bool = True) -> list[bytes]:
    lines = [json.dumps({"text": text}, ensure_ascii=a).encode() for text in _texts().values() for a in (True, False)]
    lines += [*_odd(), *(_bad() if bad else ())]
    random.Random(3).shuffle(lines)
    for i in range(0, len(lines), 4):
        lines.insert(i, b'{"text": "a short one, number %d"}' % i)
    return [b'{"text": "the first"}', *lines]


WRITERS = {
    "a.jsonl": lambda data: data,
    "a.jsonl.gz": gzip.compress,
    "a.jsonl.zst": zstandard.compress,
}


def _both(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What a run makes where there is room for every record, and where there is not."""
    shardmill.prepare(source, folder / "roomy", **options)
    with monkeypatch.context() as patch:
        allow(LARGEST, patch.setattr)
        shardmill.prepare(source, folder / "narrow", **options)
    return contents(folder / "roomy"), contents(folder / "narrow")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", WRITERS)
def test_a_line_for_which_there_is_no_room_at_once_gives_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / name
    source.write_bytes(WRITERS[name](b"\n".join(_lines())))
    roomy, narrow = _both(source, tmp_path, monkeypatch, val=0.4, max_bad="any")
    assert narrow == roomy
    assert len(narrow["rejects.jsonl"].splitlines()) == len(list(_bad()))
    check(tmp_path / "narrow", twin(source))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "options",
    [
        {"format": ["shards", "megatron", "llmc"], "shard_tokens": 50_000, "val": 0.4},
        {"val": "first:150k"},
        {"limit": "150k tokens", "val": 0},
        {"limit": "9", "val": 0.5},
        {"specials": "error", "max_bad": "any", "val": 0.4},
        {"tokenizer": "p50k_base", "val": 0},
    ],
    ids=str,
)
def test_no_option_makes_a_difference(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\n".join(_lines(bad=False)))
    roomy, narrow = _both(source, tmp_path, monkeypatch, **options)
    assert narrow == roomy


def test_a_run_may_be_killed_inside_of_a_long_line(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\n".join(_lines()[:12]))
    options: dict[str, Any] = {"format": "shards", "shard_tokens": 50_000, "val": 0.4, "max_bad": "any"}
    crash_everywhere(source, tmp_path / "out", every=17, largest=LARGEST, **options)


@pytest.mark.parametrize("name", ["snappy.parquet", "a.csv"])
def test_or_inside_of_a_long_row(name: str, tmp_path: Path) -> None:
    _table(tmp_path / name)
    options: dict[str, Any] = {"format": "shards", "shard_tokens": 100_000, "val": 0.4, "max_bad": "any"}
    crash_everywhere(tmp_path / name, tmp_path / "out", every=61, largest=LARGEST, **options)


def _table(path: Path) -> None:
    """All texts as rows of a table, with rows between them that are null or not UTF-8."""
    texts: list[bytes | None] = [b"first", *(text.encode() for text in _texts().values())]
    if path.suffix in (".parquet", ".arrow"):
        texts += [None, b"short", b"\xff" * 200_000, _texts()["words"].encode() + b"\xc3", b"last"]
    table = pa.table({"other": [text or b"" for text in texts], "text": texts})
    if path.suffix == ".parquet":
        codec, _, encoding = path.stem.partition("-")
        encodings = {"text": encoding} if encoding else None
        pq.write_table(table, path, compression=codec, use_dictionary=encoding == "", column_encoding=encodings)
    elif path.suffix == ".arrow":
        feather.write_feather(table, path, compression=path.stem)
    else:
        with open(path, "w", newline="") as file:
            rows = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            rows.writerow(["other", "text", "more"])
            rows.writerows(["a", (text or b"").decode(), "b"] for text in texts)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("options", [{"val": 0.4, "max_bad": "any"}, {"limit": "6", "val": 0}], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "snappy.parquet", "zstd-PLAIN.parquet", "none-PLAIN.parquet", "snappy-DELTA_BYTE_ARRAY.parquet",
        "snappy-DELTA_LENGTH_BYTE_ARRAY.parquet", "uncompressed.arrow", "lz4.arrow", "a.csv", "a.tsv",
    ],
)  # fmt: skip
def test_a_row_for_which_there_is_no_room_at_once_gives_the_same_bytes(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / name
    _table(source)
    roomy, narrow = _both(source, tmp_path, monkeypatch, **options)
    assert narrow == roomy
    if "limit" not in options:
        check(tmp_path / "narrow", twin(source))


@pytest.mark.usefixtures("small_chunks")
def test_parts_of_a_cluster_make_no_difference_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "parts"
    source.write_bytes(b"\n".join(_lines()))
    shardmill.prepare(source, tmp_path / "roomy", val=0.4, max_bad="any")
    allow(LARGEST, monkeypatch.setattr)
    for number in missing_parts(plan_parts(source, out, parts=5, val=0.4, max_bad="any")):
        make_part(out, number)
    merge(out)
    assert contents(out) == contents(tmp_path / "roomy")
