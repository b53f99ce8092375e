"""The slow, obvious twin of the main job: read everything, encode every document with tiktoken, compare.

It shares no code with the fast path but the vocabulary. `twin(paths)` says what a run must give, and
`check(folder, twin)` raises AssertionError where a dataset is anything else.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

COMPRESSIONS = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
}
FORMATS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".arrow": "arrow",
    ".feather": "arrow",
}
BAD = object()
"""Stands for a record that is not a document."""


@cache
def gpt2() -> Callable[[str], list[int]]:
    from shardmill.tokens import load_tokenizer

    return load_tokenizer("gpt2").reference()


@dataclass
class Twin:
    """What a run must give for some sources."""

    texts: list[str] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    empty: int = 0
    rejected: int = 0
    streams: set[int] = field(default_factory=set)
    """Which of the texts are streams: each stretch that lies in one split is a document there."""

    def documents(self, eot: str = "after", eot_id: int = 50256) -> list[np.ndarray]:
        """The tokens of each document, EOT placed `after`, `before`, or `none`."""
        mark = np.array([eot_id], dtype=np.uint32)
        placed = {"after": lambda t: [t, mark], "before": lambda t: [mark, t], "none": lambda t: [t]}[eot]
        return [np.concatenate(placed(tokens)) for tokens in self.tokens]

    def stream(self, eot: str = "after") -> np.ndarray:
        """All tokens in order, as train holds them with `--val 0`."""
        return np.concatenate([np.empty(0, dtype=np.uint32), *self.documents(eot)])


def twin(
    paths: Path | str | Sequence[Path | str],
    *,
    text_field: str = "text",
    separator: str | None = None,
    input_format: str | None = None,
    encode: Callable[[str], list[int]] | None = None,
    stream_bytes: int = 16 * 1024 * 1024,
) -> Twin:
    """The documents of all sources in order; `encode` is the tokenizer's own library, tiktoken for GPT-2 by default.

    A text file without a separator is a document, unless it is the only source or has `stream_bytes` or more.
    """
    encode = encode or gpt2()
    result = Twin()
    found = list(files(paths))
    for path in found:
        data, form = load(path)
        form = input_format or form
        alone = len(found) == 1 or path.stat().st_size >= stream_bytes
        for text in records(data, form, text_field, separator):
            if text is BAD:
                result.rejected += 1
            elif text == "":
                result.empty += 1
            else:
                if form == "text" and separator is None and alone:
                    result.streams.add(len(result.texts))
                result.texts.append(text)
                result.tokens.append(np.array(encode(text), dtype=np.uint32))
    return result


def files(paths: Path | str | Sequence[Path | str]) -> Iterator[Path]:
    """The files themselves; a folder stands for those in it, sorted, without hidden ones."""
    for path in map(Path, [paths] if isinstance(paths, (str, Path)) else paths):
        if path.is_dir():
            yield from (p for p in sorted(path.rglob("*")) if p.is_file() and not hidden(p.relative_to(path)))
        else:
            yield path


def hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def load(path: Path) -> tuple[bytes, str]:
    """The decompressed bytes of a file, and the format that its name tells."""
    data, suffixes = path.read_bytes(), path.suffixes
    if suffixes and suffixes[-1] in COMPRESSIONS:
        data = COMPRESSIONS[suffixes.pop()](data)
    return data, FORMATS.get(suffixes[-1] if suffixes else "", "text")


def records(data: bytes, form: str, text_field: str, separator: str | None) -> Iterator[Any]:
    """Each record's text, "" for an empty one, BAD for one that is no document."""
    if form == "text":
        text = decode(data)
        pieces = [text] if separator is None else text.split(separator)
        # What follows the last separator is a document only if there is something.
        yield from pieces if separator is None or pieces[-1] else pieces[:-1]
    elif form == "jsonl":
        for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
            if line.strip(b" \t\r"):
                yield parse(line, text_field)
    elif form in ("csv", "tsv"):
        yield from table(decode(data), "\t" if form == "tsv" else ",", text_field)
    else:
        for row in (read_parquet if form == "parquet" else read_arrow)(data).to_pylist():
            yield dig(row, text_field)


def decode(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")


def parse(line: bytes, text_field: str) -> Any:
    try:
        # As floats, because Python refuses integers of more than 4,300 digits.
        return dig(json.loads(line.decode("utf-8"), parse_int=float), text_field)
    except (ValueError, RecursionError):
        return BAD


def table(text: str, delimiter: str, text_field: str) -> Iterator[Any]:
    csv.field_size_limit(1 << 30)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header = next(rows, [])
    for row in rows:
        if row:
            yield row[header.index(text_field)] if len(row) == len(header) else BAD


def read_parquet(data: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(data))


def read_arrow(data: bytes) -> pa.Table:
    opener = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    with opener(pa.BufferReader(data)) as reader:
        return reader.read_all()


def dig(record: Any, text_field: str) -> Any:
    """The text at `a.b` of a record, or BAD."""
    for name in text_field.split("."):
        if not isinstance(record, dict) or name not in record:
            return BAD
        record = record[name]
    try:
        text = record.decode("utf-8") if isinstance(record, bytes) else record
        # A lone surrogate is a character of a Python string and has no UTF-8.
        if isinstance(text, str):
            text.encode("utf-8")
            return text
    except UnicodeError:
        pass
    return BAD


def check(folder: Path | str, expected: Twin, eot: str = "after") -> dict[str, Any]:
    """Compare a whole dataset with the twin, file by file and count by count; gives the manifest."""
    folder = Path(folder)
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    streams_of = {name: read_split(folder, split, manifest["dtype"]) for name, split in manifest["splits"].items()}
    train, val = (streams_of.get(name, np.empty(0, dtype=np.uint32)) for name in ("train", "val"))
    whole = expected.stream(eot)
    dealing = str(manifest.get("options", {}).get("val", ""))
    first = dealing.startswith("first")
    if not len(val) or first:
        every = np.concatenate([val, train])
        assert len(every) == len(whole), f"{len(every):,} tokens, not {len(whole):,}"
        differ = np.flatnonzero(every != whole)
        assert not len(differ), f"the tokens differ from the reference first at token {differ[0]:,}"
    else:
        pieces, streams = expected.documents(eot), expected.streams
        if dealing.startswith("tail") and manifest["options"].get("separator") is None:
            streams = set(range(len(pieces)))
        assert dealt(pieces, train, val, streams, eot), "train and val are not the documents, dealt out in order"
    assert manifest["empty"] == expected.empty
    assert manifest["rejected"] == expected.rejected
    counts = {name: split.get("documents", 0) for name, split in manifest["splits"].items()}
    if not expected.streams:
        assert sum(counts.values()) == len(expected.tokens)
    elif eot != "none" and not first:
        assert counts == {name: int(np.count_nonzero(stream == 50256)) for name, stream in streams_of.items()}
    return manifest


def read_split(folder: Path, split: dict[str, Any], dtype: str) -> np.ndarray:
    """The tokens of a split across its raw files, each compared with what the manifest says of it."""
    parts = [np.empty(0, dtype=np.uint32)]
    for entry in split.get("files", []):
        data = (folder / entry["name"]).read_bytes()
        assert len(data) == entry["bytes"], entry["name"]
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry["name"]
        parts.append(np.frombuffer(data, dtype=np.dtype(dtype).newbyteorder("<")).astype(np.uint32))
        assert len(parts[-1]) == entry["tokens"], entry["name"]
    stream = np.concatenate(parts)
    assert len(stream) == split.get("tokens", 0)
    return stream


def dealt(
    pieces: Sequence[np.ndarray],
    train: np.ndarray,
    val: np.ndarray,
    streams: Collection[int] = (),
    eot: str = "after",
) -> bool:
    """Whether giving each piece, in order, wholly to train or wholly to val can lead to these two.

    A piece that is a stream may be cut: each stretch goes to the other split than the one before, with EOT of its own.
    """
    # A piece may fit both (a document may begin as another does), so all ways are followed at once: the set holds
    # every pair of lengths that may have been reached so far.
    splits = [tokens.astype("<u4") for tokens in (train, val)]
    raw = [tokens.tobytes() for tokens in splits]
    marks = [np.append(np.flatnonzero(tokens == 50256), len(tokens)) for tokens in splits]
    reached = {(0, 0)}
    for i, tokens in enumerate(pieces):
        if i in streams and eot != "none":
            text = tokens[1:] if eot == "before" else tokens[:-1]
            ways = (_stretches(text, splits, marks, at, side, eot) for at in reached for side in (0, 1))
            reached = {at for at in ways if at is not None}
            continue
        if i in streams:  # nothing shows where it is cut
            alone = [tokens[k : k + 1].astype("<u4").tobytes() for k in range(len(tokens))]
        else:
            alone = [tokens.astype("<u4").tobytes()]
        for piece in alone:
            size = len(piece) // 4
            to_train = {(t + size, v) for t, v in reached if raw[0][4 * t : 4 * (t + size)] == piece}
            to_val = {(t, v + size) for t, v in reached if raw[1][4 * v : 4 * (v + size)] == piece}
            reached = to_train | to_val
    return (len(train), len(val)) in reached


def _stretches(
    text: np.ndarray, splits: list[np.ndarray], marks: list[np.ndarray], start: tuple[int, int], side: int, eot: str
) -> tuple[int, int] | None:
    """Where the splits are read to when documents, now of the one and now of the other, have given the whole text."""
    at, done = list(start), 0
    while done < len(text):
        first = at[side] + (eot == "before")
        end = int(marks[side][np.searchsorted(marks[side], first)]) if first <= len(splits[side]) else first
        part = splits[side][first:end]
        if not len(part) or not np.array_equal(part, text[done : done + len(part)]):
            return None
        at[side], done, side = end + (eot == "after"), done + len(part), 1 - side
    return at[0], at[1]
