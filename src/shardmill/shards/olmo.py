"""OLMo-core's files: raw tokens that are called `.npy`, and beside them where documents are, as dolma writes it."""

from __future__ import annotations

import gzip
import io
import re
import struct
import zlib
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from shardmill.errors import DamageError
from shardmill.shards import SPLITS
from shardmill.shards.document_index import Ends
from shardmill.shards.documents import DocumentOutput, Pair
from shardmill.shards.format import Format, Order, Recognised, headless
from shardmill.shards.token_files import TokenFile, TokenFiles
from shardmill.storage import PartialFile, Written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILES = 2  # whose documents are held
_STORED = 65535  # bytes of a block that is not compressed


class Olmo(Format):
    name, eot, indexed = "olmo", "after", True

    def output(self, order: Order) -> OlmoOutput:
        return OlmoOutput(self, order)

    def index(self, tokens: TokenFiles) -> Ends | None:
        # A file without a list is none of ours: then the end-of-text tokens tell.
        if not all(_list_of(file.path).exists() for file in tokens.files):
            return None
        ends = lru_cache(_FILES)(partial(_ends, tokens.files))
        return Ends(tokens, [_count(file.path) for file in tokens.files], ends)

    def recognise(self, path: Path, raw: np.dtype[Any]) -> Recognised | None:
        """A `.npy` that is none of NumPy's."""
        with open(path, "rb") as file:
            if path.suffix != ".npy" or file.read(6) == b"\x93NUMPY":
                return None
        return headless(raw, path)

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        within = max(1, min(tokens, shard_tokens))  # positions are counted in a file; most have as many digits as it
        most = len(str(within))
        digits = most - (int("1" * most) - 1) / within  # 10 + 100 + … numbers have a digit less than the next
        return tokens * width + round(documents * (2 * digits + 2)) + 28 * (tokens // shard_tokens + 2)

    def warnings(self, splits: dict[str, dict[str, Any]], dtype: np.dtype[Any], eot: str) -> list[str]:
        return [] if eot == "after" else ["OLMo-core expects the end-of-text token after each document: see `--eot`"]


class OlmoOutput(DocumentOutput):
    """The files of all splits."""

    cumulative = True

    def tokens_name(self, split: str, index: int) -> str:
        return f"{split}/part-0-{self.first + index:05}.npy"

    def owns(self) -> re.Pattern[str]:
        """The tokens, the list of documents, and what it is made of."""
        return re.compile(rf"(?:{'|'.join(SPLITS)})/part-0-\d{{5,}}\.(?:npy|npy\.lengths|csv\.gz)")

    def complete(self, pair: Pair) -> list[Written]:
        """The list is made from where the documents end."""
        name = pair.tokens.name.removesuffix(".npy") + ".csv.gz"
        with closing(PartialFile(self.folder / name, name=name)) as listed:
            _write_list(listed, pair)
            self.obsolete(pair.lengths)
            return [pair.tokens.finish(pair.token_count), listed.finish(0, role="index")]


def _write_list(listed: PartialFile, pair: Pair) -> None:
    """A line `start,end` for each document, in gzip's blocks that are not compressed.

    How well a library compresses depends on its version, and the bytes of a dataset must not.
    """
    listed.append(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")
    crc = size = begin = 0
    for ends in pair.blocks():
        starts = np.concatenate([[begin], ends[:-1]])
        sink = io.BytesIO()
        pa_csv.write_csv(pa.table({"start": starts, "end": ends}), sink, pa_csv.WriteOptions(include_header=False))
        text = sink.getvalue()
        for at in range(0, len(text), _STORED):
            block = text[at : at + _STORED]
            listed.append(struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF) + block)
        crc, size = zlib.crc32(text, crc), size + len(text)
        begin = int(ends[-1])
    listed.append(struct.pack("<BHHII", 1, 0, 0xFFFF, crc, size & 0xFFFFFFFF))


def _list_of(path: Path) -> Path:
    return path.with_suffix(".csv.gz")


def _text(path: Path) -> bytes:
    """What a list says; DamageError when it cannot be read."""
    try:
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as why:
        raise DamageError(f"the list of documents cannot be read: {why}", place=str(path)) from None


def _count(path: Path) -> int:
    return _text(_list_of(path)).count(b"\n")


def _ends(files: list[TokenFile], i: int) -> NDArray[np.int64]:
    """Where the documents of a file end, in tokens."""
    text = _text(_list_of(files[i].path))
    if not text:
        return np.empty(0, np.int64)
    try:
        # dolma's own lists have more columns.
        wanted = pa_csv.ConvertOptions(column_types={"f1": pa.int64()}, include_columns=["f1"])
        columns = pa_csv.ReadOptions(autogenerate_column_names=True)
        ends: NDArray[Any] = pa_csv.read_csv(pa.BufferReader(text), columns, convert_options=wanted)["f1"].to_numpy()
    except (pa.ArrowInvalid, ValueError) as why:
        raise DamageError(f"the list of documents cannot be read: {why}", place=str(_list_of(files[i].path))) from None
    if np.isnan(ends).any() or (np.diff(ends) < 0).any() or ends[-1] != files[i].tokens:
        raise DamageError("the list of documents does not fit the tokens", place=str(_list_of(files[i].path)))
    return np.asarray(ends, np.int64)


FORMAT = Olmo()
