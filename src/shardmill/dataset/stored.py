"""Stored tokens: a dataset of ours or files of other tools, with EOT moved to where an output needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.dataset.dataset import Dataset, document_index, open_dataset
from shardmill.errors import UsageError
from shardmill.run import MANIFEST as NAME
from shardmill.run import Rows, Stream
from shardmill.shards import TableIndex, find_foreign, format_named
from shardmill.tokens import load_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards import DocumentIndex, TokenFiles


@dataclass(frozen=True)
class StoredSplit:
    """A split, with the position of EOT in its documents (`after`, `before`, `none`), and their index if it has one."""

    tokens: TokenFiles
    eot: str
    eot_id: int | None
    index: DocumentIndex | None = None
    """A documents table also says where its documents come from."""
    begins_inside: bool = False
    """Its first document begins in the other split: the stream was cut inside it."""
    ends_inside: bool = False
    """Its last document continues in the other split."""

    @property
    def has_documents(self) -> bool:
        """Whether something says where documents end."""
        return self.index is not None or (self.eot != "none" and self.eot_id is not None)

    def blocks(self, at: int, size: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The tokens from `at` on, as they are: (where a block begins, its tokens)."""
        for start in range(at, len(self.tokens), size):
            yield start, self.tokens.read(start, min(start + size, len(self.tokens)))

    def stream(self, name: str, start: int, block: NDArray[Any], eot: str) -> Stream:
        """A block with EOT where `eot` wants it. The blocks of a split together are the whole split."""
        last = start + len(block) == len(self.tokens)
        if self.index is not None:
            tokens, ends = self._move_eot_by_index(start, block, eot, self.index, last)
        elif self.eot == "none" or self.eot_id is None:
            tokens, ends = block, np.empty(0, np.int64)
        else:
            tokens, ends = self._move_eot(start, block, eot, self.eot_id, last)
        stream = _stream(name, tokens, ends, last, repeated=isinstance(self.index, TableIndex))
        return self._with_origins(stream, start) if isinstance(self.index, TableIndex) else stream

    def _with_origins(self, stream: Stream, start: int) -> Stream:
        """The rows with what the documents table says of them."""
        assert isinstance(self.index, TableIndex)
        rows, first = stream.rows, self.index.holding(start)
        found = self.index.table[first : first + len(rows)]
        opens = rows.opens.copy()
        opens[:1] = self.index.bounds(first)[0] == start if first < len(self.index) else False
        size = np.where(rows.closes, found["bytes"], 0)
        rows = replace(rows, bytes=size, opens=opens, source=found["source"], record=found["record"])
        return stream._replace(rows=rows)

    def _move_eot(
        self, start: int, block: NDArray[Any], eot: str, eot_id: int, last: bool
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Its tokens, and where documents end in them; only EOT says that."""
        if eot == "none":
            marks = np.flatnonzero(block == eot_id)
            return np.delete(block, marks), np.unique(marks - np.arange(len(marks)))
        if (self.eot, eot) == ("after", "before"):
            first = np.full(int(start == 0 and not self.begins_inside), eot_id, block.dtype)
            block = np.concatenate([first, block[: len(block) - int(last and block[-1] == eot_id)]])
        elif (self.eot, eot) == ("before", "after"):
            if start == 0 and block[0] == eot_id:
                block = block[1:]
            block = np.append(block, block.dtype.type(eot_id)) if last and not self.ends_inside else block
        marks = np.flatnonzero(block == eot_id)
        return block, marks + 1 if eot == "after" else marks[marks > 0] if start == 0 else marks

    def _move_eot_by_index(
        self, start: int, block: NDArray[Any], eot: str, index: DocumentIndex, last: bool
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Its tokens, and where documents end in them; an index says that, and EOT may be missing."""
        ends = index.ends(start, start + len(block), block) - start
        if eot == self.eot or self.eot_id is None:
            return block, ends
        opens = not self.begins_inside if start == 0 else len(index.ends(start - 1, start, block[:0])) > 0
        starts = np.concatenate([np.zeros(int(opens), np.int64), ends[ends < len(block)]])
        if self.eot != "none":
            marks = ends - 1 if self.eot == "after" else starts
            gone = marks[block[marks] == self.eot_id]
            block = np.delete(block, gone)
            ends, starts = ends - np.searchsorted(gone, ends), starts - np.searchsorted(gone, starts)
        if eot == "after":
            marks = ends[:-1] if self.ends_inside and last else ends
            return np.insert(block, marks, self.eot_id), ends + np.minimum(np.arange(len(ends)) + 1, len(marks))
        if eot == "before":
            return np.insert(block, starts, self.eot_id), ends + np.arange(len(ends)) + int(opens)
        return block, ends


def _stream(name: str, tokens: NDArray[Any], ends: NDArray[np.int64], last: bool, *, repeated: bool) -> Stream:
    """Tokens as rows, each a document or a part of one; the last block of a split ends its last document.

    `repeated`: several documents may end at the start.
    """
    # Otherwise a document from before ends here once.
    stops = ends if repeated else ends[max(0, np.count_nonzero(ends == 0) - 1) :]
    closes = np.ones(len(stops), np.bool_)
    if not len(stops) or stops[-1] < len(tokens):
        stops, closes = np.append(stops, len(tokens)), np.append(closes, last)
    opens, val = np.append(False, closes[:-1]), np.full(len(stops), name == "val")
    none = np.zeros_like(stops)
    rows = Rows(np.diff(stops, prepend=0), none, val, opens, closes, none.astype(np.int32), none)
    return Stream(rows, {name: tokens})


@dataclass(frozen=True)
class Origin:
    """Splits of tokens, and what is known about them."""

    path: Path
    name: str
    """Prefix of file names."""
    format: str
    version: str
    """Differs if the tokens differ."""
    dtype: np.dtype[Any]
    """The type in which to write them."""
    width: int
    """Bytes of a token as it is stored."""
    largest: int
    """The largest valid id."""
    splits: dict[str, StoredSplit]
    tokenizer: dict[str, Any]
    """As the manifest describes it."""
    tokenizer_options: dict[str, Any]
    """The options that name the tokenizer."""
    counts: dict[str, int] = field(default_factory=dict)
    """Documents in each split, where that is known."""
    text_bytes: dict[str, int] = field(default_factory=dict)
    listed_sources: Any = None
    """The sources that its documents table refers to; None: it has none."""

    @property
    def bytes(self) -> int:
        return sum(len(split.tokens) for split in self.splits.values()) * self.width

    def check(self, eot: str, format: str) -> None:
        """Raise UsageError when documents cannot be marked as `eot` says, or listed as the format needs it."""
        for name, split in self.splits.items():
            if split.eot_id is None and eot != "none":
                raise UsageError(
                    f"the tokenizer `{self.tokenizer['name']}` has no end-of-text token", hint="add `--eot none`"
                )
            if not split.has_documents:
                what = "nothing says where documents end: there are no end-of-text tokens"
                if format_named(format).indexed and self.counts.get(name, 0) > 1:
                    raise UsageError(what, hint=f"make `{format}` with `prepare`; its index is a list of documents")
                if eot != "none":
                    raise UsageError(what, hint="add `--eot none`")

    def amounts(self, name: str, start: int, block: NDArray[Any]) -> tuple[int, int]:
        """Documents that end in a block of a split, and bytes of text; all blocks together have those of the split.

        Where the number for the whole split is known, a block has its share of it.
        """
        split = self.splits[name]
        total, end = len(split.tokens), start + len(block)
        known = self.counts.get(name, None if split.index is None else len(split.index))

        def share(amount: int) -> int:
            return amount * end // total - amount * start // total

        text = share(self.text_bytes.get(name, 0))
        if known is not None:
            return share(known), text
        last = end == total
        if split.eot == "none" or split.eot_id is None:
            return int(last), text
        # A document counts where it ends. EOT at the very start ends one only if it began in the other split.
        begun = start > 0 or split.begins_inside or block[0] != split.eot_id
        rest = last and block[-1] != split.eot_id and not split.ends_inside
        return int(np.count_nonzero(block == split.eot_id)) - int(not begun) + int(rest), text


def find_origin(path: Path, tokenizer: str, eot: str | None = None, delimiter: str | None = None) -> Origin:
    """The tokens at a path; UsageError when there are none that can be converted, DamageError when files are damaged.

    `eot`: where it is in files of other tools; None: detect it. `delimiter`: which token it is there.
    """
    if path.is_dir() and ((path / NAME).exists() or (path / ".shardmill").is_dir()):
        if eot is not None or delimiter is not None:
            raise UsageError(
                "a dataset of shardmill's says itself what stands between documents",
                hint="leave `--source-eot` and `--delimiter` out",
            )
        return _of_dataset(path, open_dataset(path))
    return _of_files(path, tokenizer, eot, delimiter)


def _of_dataset(path: Path, data: Dataset) -> Origin:
    manifest = data.manifest
    indexed = format_named(data.format).indexed
    options = manifest["options"]
    tables = {name: data[name].table for name in data}
    indices: dict[str, DocumentIndex | None] = {
        name: table if table is not None else document_index(data[name]) if indexed else None
        for name, table in tables.items()
    }
    return Origin(
        path=path,
        name=options.get("name") or path.resolve().name,
        format=data.format,
        version=manifest["fingerprint"],
        dtype=_output_dtype(data.dtype, manifest["tokenizer"]["vocab_size"]),
        width=data.dtype.itemsize,
        largest=int(np.iinfo(_output_dtype(data.dtype, manifest["tokenizer"]["vocab_size"])).max),
        splits=_with_cut_document(
            {name: StoredSplit(data[name].tokens, data.eot, data.eot_id, indices[name]) for name in data},
            ends_elsewhere=[name for name in data if data[name].described.get("dropped")],
        ),
        tokenizer=manifest["tokenizer"],
        tokenizer_options={
            key: options[key] for key in ("tokenizer", "pattern", "specials", "delimiter") if key in options
        },
        # What `--tail drop` left out is counted in the manifest, and not there to be converted.
        counts={name: data[name].described["documents"] for name in data if not data[name].described.get("dropped")},
        text_bytes={name: _text_bytes(data, name) for name in data},
        listed_sources=None if None in tables.values() else manifest["sources"],
    )


def _text_bytes(data: Dataset, name: str) -> int:
    """Bytes of text of the documents that are there; without a table, also of those that `--tail drop` left out."""
    described, table = data[name].described, data[name].table
    if "dropped" in described and table is not None:
        return int(table.table["bytes"].sum())
    return int(described["bytes"])


def _of_files(path: Path, tokenizer: str, eot: str | None, delimiter: str | None) -> Origin:
    known = load_tokenizer(tokenizer).with_delimiter(delimiter)
    found = find_foreign(path, known.dtype)
    if known.eot is None:
        eot = "none"
    elif eot is None:
        eot = found.find_eot(known.eot)
    stats = [one.stat() for one in found.paths]
    return Origin(
        path=path,
        name=path.resolve().name.split(".")[0],
        format=found.format.name,
        version=hashlib.sha256(repr([(s.st_size, s.st_mtime_ns) for s in stats]).encode()).hexdigest(),
        dtype=_output_dtype(found.dtype, known.vocab_size),
        width=found.dtype.itemsize,
        largest=known.largest_id,
        splits=_with_cut_document(
            {
                split: StoredSplit(tokens, eot, known.eot, found.indices.get(split))
                for split, tokens in found.splits.items()
            }
        ),
        tokenizer=known.describe(),
        tokenizer_options={"tokenizer": tokenizer, **({"delimiter": delimiter} if delimiter else {})},
    )


def _with_cut_document(splits: dict[str, StoredSplit], ends_elsewhere: Collection[str] = ()) -> dict[str, StoredSplit]:
    """The splits, with `begins_inside` and `ends_inside` set if a document begins in one and ends in the other.

    `ends_elsewhere`: splits that end inside a document for another reason.
    """
    cut = []
    for name, split in splits.items():
        if len(split.tokens) and split.eot_id is not None and split.eot != "none":
            at = 0 if split.eot == "before" else len(split.tokens) - 1
            if int(split.tokens.read(at, at + 1)[0]) != split.eot_id and name not in ends_elsewhere:
                cut.append(name)
    if len(cut) != 1 or len(splits) != 2 or not all(len(split.tokens) for split in splits.values()):
        return splits
    (other,) = splits.keys() - set(cut)
    later, earlier = (cut[0], other) if splits[other].eot == "before" else (other, cut[0])
    joined = {later: replace(splits[later], begins_inside=True), earlier: replace(splits[earlier], ends_inside=True)}
    return {name: joined[name] for name in splits}


def _output_dtype(stored: np.dtype[Any], vocab_size: int) -> np.dtype[Any]:
    """The narrower of the two types that trainers read, if it suffices."""
    narrow = stored == np.uint16 or (stored != np.uint32 and vocab_size <= 1 << 16)
    return np.dtype(np.uint16 if narrow else np.uint32)
