"""Stored tokens: a dataset of ours, or files of other tools, read block by block with where their documents are."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from shardmill.dataset import Dataset, document_index, row_size
from shardmill.errors import DamageError, UsageError
from shardmill.shards import TableIndex, find_foreign, format_named
from shardmill.storage import AnyPath
from shardmill.tokens import load_tokenizer
from shardmill.write import MANIFEST, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards import DocumentIndex

MOST_ROWS = 1 << 16
"""Documents of a block at most: what is kept for each of them takes memory too."""


class StoredTokens(Protocol):
    """The tokens of a split by their position."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of some tokens."""


class StoredTable(Protocol):
    """A documents table."""

    def overlapping(self, start: int, stop: int, most: int) -> tuple[int, NDArray[Any]]:
        """Return the rows of the documents with tokens from `start` to `stop`, and where the first of them begins.

        `most`: rows at most.
        """


class TokenBlock(NamedTuple):
    """Some tokens of a split as they are stored, and the documents in them; the first and the last may be cut."""

    rows: Rows
    tokens: NDArray[Any]


@dataclass(frozen=True)
class InputSplit:
    """A split, with the position of EOT in its documents (`after`, `before`, `none`)."""

    name: str
    tokens: StoredTokens
    eot: str
    eot_id: int | None
    table: StoredTable | None = None
    index: DocumentIndex | None = None
    """The index of its files, where there is no table. Without it, EOT says where documents end."""
    begins_inside: bool = False
    """Its first document begins elsewhere: in the other split, if the stream was cut inside it."""
    ends_inside: bool = False
    """Its last document continues elsewhere."""

    @property
    def has_documents(self) -> bool:
        """Whether something says where documents end."""
        return self.table is not None or self.index is not None or self._scanned

    @property
    def _scanned(self) -> bool:
        return self.eot != "none" and self.eot_id is not None

    def blocks(self, at: int, size: int) -> Iterator[tuple[int, TokenBlock]]:
        """Yield the tokens from `at` on: (where a block begins, the block). DamageError if the documents do not fit.

        A block has at most `size` tokens, and at most MOST_ROWS documents.
        """
        start = at
        while start < len(self.tokens):
            stop = min(start + size, len(self.tokens))
            if self.table is not None:
                begin, found = self.table.overlapping(start, stop, MOST_ROWS)
                if not len(found):
                    raise self._damage()
                stop = min(stop, int(found["end"][-1]))
                tokens, ends, opens = self.tokens.read(start, stop), found["end"], begin == start
            else:
                tokens, found = self.tokens.read(start, stop), None
                ends = self._ends(start, stop, tokens)
                opens = start == 0 or len(self._ends(start - 1, start, None)) > 0
                if len(ends) > MOST_ROWS:
                    ends, stop = ends[:MOST_ROWS], int(ends[MOST_ROWS - 1])
                elif not len(ends) or ends[-1] < stop:
                    # The last document of a split ends with it.
                    ends = np.append(ends, stop if stop == len(self.tokens) else stop + 1)
                tokens = tokens[: stop - start]
            yield start, TokenBlock(self._rows(start, stop, ends, opens, found), tokens)
            start = stop

    def _rows(self, start: int, stop: int, ends: NDArray[np.int64], opens: bool, found: NDArray[Any] | None) -> Rows:
        """The rows of the documents that end at `ends`; `opens`: one begins at `start`. `found`: their table."""
        lengths, closes = np.diff(np.minimum(ends, stop), prepend=start), ends <= stop
        if not (lengths > 0).all() or not closes[:-1].all():
            raise self._damage()
        none = np.zeros(len(ends), np.int64)
        # Only a part of the text of a cut document counts here, if any: what the table says.
        size = none if found is None else np.where(closes, found["bytes"], 0)
        if self.ends_inside and stop == len(self.tokens):
            closes[-1] = False
        opening = np.ones(len(ends), np.bool_)
        opening[0] = opens and not (self.begins_inside and start == 0)
        val = np.full(len(ends), self.name == "val")
        if found is None:
            return Rows(lengths, size, val, opening, closes, none.astype(np.int32), none)
        return Rows(lengths, size, val, opening, closes, found["source"].copy(), found["record"].copy())

    def _damage(self) -> DamageError:
        return DamageError("the documents do not fit the tokens", place=self.name)

    def _ends(self, start: int, stop: int, tokens: NDArray[Any] | None) -> NDArray[np.int64]:
        """Where documents end after `start` and up to `stop`; `tokens`: those between them, if they are at hand."""
        if self.index is not None:
            return self.index.ends(start, stop, np.empty(0) if tokens is None else tokens)
        if not self._scanned:
            return np.empty(0, np.int64)
        if self.eot == "after":
            tokens = self.tokens.read(start, stop) if tokens is None else tokens
            return np.flatnonzero(tokens == self.eot_id) + start + 1
        # A document ends where the next begins: that of the last token, only the token after it can say.
        after = self.tokens.read(stop, min(stop + 1, len(self.tokens)))
        inside = self.tokens.read(start + 1, stop) if tokens is None else tokens[1:]
        return np.flatnonzero(np.concatenate([inside, after]) == self.eot_id) + start + 1


@dataclass(frozen=True)
class Input:
    """Splits of tokens, and what is known about them."""

    path: AnyPath
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
    splits: dict[str, InputSplit]
    tokenizer: dict[str, Any]
    """As the manifest describes it."""
    tokenizer_options: dict[str, Any]
    """The options that name the tokenizer."""
    counts: dict[str, int] = field(default_factory=dict)
    """Documents in each split, where only the manifest says that."""
    text_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of text in each split, where only the manifest says that."""
    memory_bytes: int = 0
    """What reading takes, beside the tokens that are asked for and buffers of a few megabytes."""
    listed_sources: Any = None
    """The sources that its documents tables refer to; None: it has none."""

    @property
    def tokens(self) -> int:
        return sum(len(split.tokens) for split in self.splits.values())

    @property
    def bytes(self) -> int:
        return self.tokens * self.width

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

    def narrowed(self, split: str, start: int, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return tokens in the type of the outputs; DamageError when an id is not one of the tokenizer's."""
        if len(tokens) and (int(tokens.max()) > self.largest or int(tokens.min()) < 0):
            wrong = int(np.argmax((tokens > self.largest) | (tokens < 0)))
            raise DamageError(
                f"{int(tokens[wrong]):,} is no token of `{self.tokenizer['name']}`",
                place=f"{self.path}, {split}, token {start + wrong:,}",
            )
        return tokens.astype(self.dtype, copy=False)

    def share(self, amount: int, split: str, start: int, stop: int) -> int:
        """Return the share of some tokens in what is known of a whole split; all shares together are that amount."""
        total = len(self.splits[split].tokens)
        return amount * stop // total - amount * start // total


def open_input(path: AnyPath, tokenizer: str = "gpt2", eot: str | None = None, delimiter: str | None = None) -> Input:
    """Open the tokens at a path; UsageError when there are none that can be read, DamageError when files are damaged.

    `eot`: where it is in files of other tools; None: detect it. `delimiter`: which token it is there.
    """
    if path.is_dir() and ((path / MANIFEST).exists() or (path / ".shardmill").is_dir()):
        if eot is not None or delimiter is not None:
            raise UsageError(
                "a dataset of shardmill's says itself what stands between documents",
                hint="leave `--source-eot` and `--delimiter` out",
            )
        return input_of(Dataset(path))
    return _of_files(path, tokenizer, eot, delimiter)


def input_of(data: Dataset) -> Input:
    """Return what is stored in a dataset. UsageError if it is packed, and so in its final order."""
    if row_size(data.manifest):
        raise UsageError(
            "a packed dataset cannot be arranged again: its rows would not begin with a document any more",
            place=str(data.folder),
            hint="begin with the dataset that it was made from; `shardmill pack` writes any format",
        )
    manifest, indexed = data.manifest, format_named(data.format).indexed
    options, dropped = manifest["options"], [name for name in data if data[name].described.get("dropped")]
    tables = {name: data[name].table for name in data}
    splits = {
        name: InputSplit(
            name,
            data[name].tokens,
            data.eot,
            data.eot_id,
            tables[name],
            document_index(data[name]) if indexed and tables[name] is None else None,
        )
        for name in data
    }
    unlisted = [name for name in data if tables[name] is None]
    dtype = _output_dtype(data.dtype, manifest["tokenizer"]["vocab_size"], data.format)
    return Input(
        path=data.folder,
        name=options.get("name") or data.folder.resolve().name,
        format=data.format,
        version=manifest["fingerprint"],
        dtype=dtype,
        width=data.dtype.itemsize,
        largest=int(np.iinfo(dtype).max),
        splits=_with_cut_document(splits, dropped, _cut_by_tables(data, tables, dropped)),
        tokenizer=manifest["tokenizer"],
        tokenizer_options={
            key: options[key] for key in ("tokenizer", "pattern", "specials", "delimiter") if key in options
        },
        # What `--tail drop` left out is counted in the manifest, and not there to be converted.
        counts={name: data[name].described["documents"] for name in unlisted if name not in dropped},
        text_bytes={name: int(data[name].described["bytes"]) for name in unlisted},
        memory_bytes=max((data[name].tokens.memory_bytes for name in data), default=0),
        listed_sources=None if unlisted else manifest["sources"],
    )


def _of_files(path: AnyPath, tokenizer: str, eot: str | None, delimiter: str | None) -> Input:
    known = load_tokenizer(tokenizer).with_delimiter(delimiter)
    found = find_foreign(path, known.dtype)
    if known.eot is None:
        eot = "none"
    elif eot is None:
        eot = found.find_eot(known.eot)
    splits = {
        name: InputSplit(name, tokens, eot, known.eot, index=found.indices.get(name))
        for name, tokens in found.splits.items()
    }
    return Input(
        path=path,
        name=path.resolve().name.split(".")[0],
        format=found.format.name,
        version=hashlib.sha256(repr([_version(one) for one in found.paths]).encode()).hexdigest(),
        dtype=_output_dtype(found.dtype, known.vocab_size, found.format.name),
        width=found.dtype.itemsize,
        largest=known.largest_id,
        splits=_with_cut_document(splits),
        tokenizer=known.describe(),
        tokenizer_options={"tokenizer": tokenizer, **({"delimiter": delimiter} if delimiter else {})},
        memory_bytes=max(tokens.memory_bytes for tokens in found.splits.values()),
    )


def _version(path: AnyPath) -> tuple[int, int | str]:
    """What changes when a file does."""
    return path.stat().st_size, path.stat().st_mtime_ns if isinstance(path, Path) else path.version


def _with_cut_document(
    splits: dict[str, InputSplit], dropped: Collection[str] = (), listed_twice: bool = False
) -> dict[str, InputSplit]:
    """The splits, with `begins_inside` and `ends_inside` set if a document begins in one and ends in the other.

    `dropped`: splits that end inside a document for another reason. `listed_twice`: a document is known to begin in val
    and to end in train.
    """
    cut = ["val"] if listed_twice else []
    for name, split in splits.items():
        if len(split.tokens) and split.eot_id is not None and split.eot != "none":
            at = 0 if split.eot == "before" else len(split.tokens) - 1
            if int(split.tokens.read(at, at + 1)[0]) != split.eot_id and name not in dropped:
                cut.append(name)
    if len(cut) != 1 or len(splits) != 2 or not all(len(split.tokens) for split in splits.values()):
        return splits
    (other,) = splits.keys() - set(cut)
    later, earlier = (cut[0], other) if splits[other].eot == "before" else (other, cut[0])
    joined = {later: replace(splits[later], begins_inside=True), earlier: replace(splits[earlier], ends_inside=True)}
    return {name: joined[name] for name in splits}


def _cut_by_tables(data: Dataset, tables: dict[str, TableIndex | None], dropped: Collection[str]) -> bool:
    """Whether the tables list one document more than there are: without EOT, only that tells of one in both splits."""
    if data.eot != "none" or dropped or None in tables.values():
        return False
    listed = sum(len(table) for table in tables.values() if table is not None)
    return bool(listed == sum(data[name].described["documents"] for name in data) + 1)


def _output_dtype(stored: np.dtype[Any], vocab_size: int, format: str) -> np.dtype[Any]:
    """The narrower of the two types that trainers read, if it suffices."""
    chosen = stored == np.uint32 and not format_named(format).always_wide
    narrow = stored == np.uint16 or (not chosen and vocab_size <= 1 << 16)
    return np.dtype(np.uint16 if narrow else np.uint32)
