"""Open a dataset: its splits as sequences of tokens, documents and text."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from shardmill import arguments
from shardmill.dataset.places import CACHE_SIZE, open_place
from shardmill.errors import DamageError, MismatchError, UsageError
from shardmill.shards import DocumentIndex, EotIndex, TableIndex, TokenFile, format_named, open_table
from shardmill.storage import AnyPath
from shardmill.units import plural
from shardmill.write import (
    Manifest,
    SplitEntry,
    each_output,
    read_manifest,
    splits_html,
    tables_in,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset.loader import Batches
    from shardmill.dataset.tracing import TracedDocument, TracedRow
    from shardmill.tokens import Tokenizer

_BLOCK = 1 << 18  # tokens read at a time while documents are iterated over
_FAR = 4096  # the step of a slice from which on each token is read by itself


def open_dataset(
    folder: str | os.PathLike[str],
    format: str | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
) -> Dataset:
    """Open the dataset in a folder or at a URL. If it has several formats, `format` chooses one; default: the first.

    Files at a URL (`s3://`, `gs://`, `az://`, `https://`, `hf://`) are read by ranges; blocks of them are kept in the
    folder `cache`, up to `cache_size` bytes. Processes may share it. Raise UsageError if there is no dataset,
    DamageError if the size of a file differs from the manifest. `shardmill verify` checks every byte.
    """
    return Dataset(open_place(folder, cache, cache_size), format)


def tokenizer_of(manifest: Manifest) -> Tokenizer:
    """The tokenizer that a dataset was made with; MismatchError when the one of that name has changed, UsageError."""
    from shardmill.tokens import load_tokenizer  # slow to import, and often not needed

    known, options = manifest["tokenizer"], manifest["options"]
    spec, pattern = options.get("tokenizer") or known["name"], options.get("pattern")
    found = load_tokenizer(spec, pattern=pattern, specials=options.get("specials", "text"))
    found = found.with_delimiter(options.get("delimiter"))
    if (found.sha256, found.eot) != (known["sha256"], known["eot"]):
        raise MismatchError(
            f"the tokenizer `{spec}` is not the one that the dataset was made with", place=str(known["name"])
        )
    return found


def row_size(manifest: Manifest) -> int | None:
    """The tokens of a row of a packed dataset; None: it is not packed."""
    made = manifest.get("arranged")
    size = made.get("block_size") if isinstance(made, dict) and made.get("order") == "pack" else None
    return size if isinstance(size, int) and size > 0 else None


class Dataset:
    """A finished dataset: `data["train"]`, `data["val"]` and the manifest."""

    def __init__(self, folder: AnyPath, format: str | None = None) -> None:
        format = None if format is None else arguments.text("format", format)
        self.folder = folder
        self.manifest = read_manifest(folder)
        there = {one["format"]: one for one in each_output(self.manifest)}
        if format is not None and format not in there:
            raise UsageError(f"the dataset has no files of `{format}`", hint=f"choose one of: {', '.join(there)}")
        described = there[format or self.manifest["format"]]
        self.format: str = described["format"]
        self.eot: str = described["eot"]
        self.dtype = np.dtype(described["dtype"])
        _check_sizes(folder, described["splits"])
        self._splits = {name: Split(self, name, split) for name, split in described["splits"].items()}

    def __getitem__(self, split: str) -> Split:
        if split not in self._splits:
            raise KeyError(f"there is no split `{split}`; choose one of: {', '.join(self._splits)}")
        return self._splits[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)

    def __contains__(self, split: object) -> bool:
        return split in self._splits

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(split):,} tokens" for name, split in self._splits.items())
        return f"<shardmill dataset {str(self.folder)!r}, {self.format}; {sizes}>"

    def _repr_html_(self) -> str:
        note = f"{self.format}, {self.dtype}, end-of-text {self.eot}; {self.manifest['rejected']:,} rejected"
        splits = {name: split.described for name, split in self._splits.items()}
        return splits_html(str(self.folder), note, self.manifest["tokenizer"]["name"], splits)

    @property
    def eot_id(self) -> int | None:
        """The end-of-text token, or None."""
        eot: int | None = self.manifest["tokenizer"]["eot"]
        return eot

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the dataset. Raise MismatchError if the one of that name has changed."""
        return tokenizer_of(self.manifest)

    def trace(self, **what: Any) -> list[TracedDocument] | list[TracedRow]:
        """Return which documents made a `token`, a `document` or a `step`; or what a `record` of a `source` became.

        The keywords are those of `trace` in tracing.py.
        """
        from shardmill.dataset.tracing import trace

        return trace(self, **what)

    def decode(self, tokens: NDArray[Any]) -> str:
        """Return the text of some tokens; incomplete characters become U+FFFD."""
        return self.tokenizer.decode(np.asarray(tokens)).decode("utf-8", "replace")


class Split:
    """The tokens of a split, across its files, as one sequence."""

    def __init__(self, dataset: Dataset, name: str, described: SplitEntry) -> None:
        self.dataset, self.name = dataset, name
        self.described = described
        width = dataset.dtype.itemsize
        files = [
            TokenFile(dataset.folder / f["name"], f["tokens"], f["bytes"] - f["tokens"] * width)
            for f in described["files"]
            if not f.get("role")
        ]
        self.tokens = format_named(dataset.format).tokens(files, dataset.dtype)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"<shardmill split {self.name!r}, {len(self):,} tokens in {plural(len(self.tokens.files), 'file')}>"

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> NDArray[Any]: ...
    def __getitem__(self, key: int | slice) -> int | NDArray[Any]:
        """A token, or some of them: read-only, and straight from the memory map when they lie in one file."""
        if not isinstance(key, slice):
            number = _whole_number(key, "a token is chosen by its number, and several by a slice")
            i = number + len(self) if number < 0 else number
            if not 0 <= i < len(self):
                raise IndexError(f"there is no token {number:,} in {len(self):,}")
            return int(self.tokens.read(i, i + 1)[0])
        start, stop, step = key.indices(len(self))
        if step == 1:
            return self.tokens.view(start, max(start, stop))
        chosen = range(start, stop, step)
        if not chosen:
            return np.empty(0, self.tokens.dtype)
        low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1
        return self._stepped(low, high, abs(step))[:: 1 if step > 0 else -1]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All tokens as one array: a view of the memory map where there is one file, else in memory."""
        tokens = self.tokens.view(0, len(self))
        if copy is False and len(self.tokens.files) > 1:
            raise ValueError(f"the tokens are in {len(self.tokens.files):,} files, and only a copy joins them")
        return np.array(tokens, dtype, copy=copy)

    def _stepped(self, low: int, high: int, step: int) -> NDArray[Any]:
        """Every step-th token, in pieces, so that a wide slice costs only what it gives."""
        if step >= _FAR:
            return np.array([self[i] for i in range(low, high, step)], self.tokens.dtype)
        block = _BLOCK // step * step
        pieces = [self.tokens.read(i, min(i + block, high))[::step].copy() for i in range(low, high, block)]
        return np.concatenate(pieces)

    @cached_property
    def documents(self) -> Documents:
        """Its documents, as a sequence. Raise UsageError if nothing separates them."""
        return Documents(self, document_index(self))

    @cached_property
    def table(self) -> TableIndex | None:
        """Its documents table; None: there is none, or it belongs to another format with other documents.

        DamageError if it does not fit the tokens.
        """
        data, first = self.dataset, self.dataset.manifest["splits"].get(self.name)
        if first is None or "documents_table" not in first:
            return None
        path, added = data.folder / first["documents_table"]["name"], 0
        if (data.eot == "none") != (data.manifest["eot"] == "none"):
            added = -1 if data.eot == "none" else 1
            if str(data.manifest["options"].get("val")).startswith("first:"):
                return None  # the splits have other documents in this format
        if data.format != data.manifest["format"]:
            more = len(self) - first["tokens"] - added * len(open_table(path))
            if more > 0:
                return None  # `--tail drop` left more out of the first format
            if more and data.eot != data.manifest["eot"] and "converted" in data.manifest:
                return None  # a document is cut between the splits, and has its EOT in the other one here
        return TableIndex(path, len(self), added)

    def decode(self, tokens: NDArray[Any]) -> str:
        """Return the text of some tokens."""
        return self.dataset.decode(tokens)

    def batches(
        self, batch_size: int, block_size: int, *, pack: bool | str | os.PathLike[str] = False, **more: Any
    ) -> Batches:
        """Return shifted pairs (x, y) of `batch_size` rows of `block_size` tokens.

        `pack`: rows that begin with a document, by the index that `shardmill pack --index-only` has made: True for the
        one inside the dataset, or the folder of another. The other keywords are those of `Batches`: `rank`,
        `world_size`, `seed`, `order`, `epochs`, `last`, `documents`, `dtype` and `tensors`.
        """
        from shardmill.dataset.loader import make_batches

        if pack is False:
            return make_batches(self, batch_size, block_size, **more)
        from shardmill.dataset.packed_rows import PackedSplit, index_path

        rows = PackedSplit(self, arguments.number("block_size", block_size, 1), index_path(pack))
        return make_batches(rows, batch_size, block_size, **more)  # type: ignore[arg-type]


class DocumentOrigin(NamedTuple):
    """Where a document comes from."""

    source: str
    unit: str
    """What `record` counts: `line`, `row`, `document` or `byte`."""
    record: int
    """Where it begins in the source, counted from 0."""
    bytes: int
    """Bytes of its text; 0: unknown, since the dataset was converted from tokens alone."""

    def __str__(self) -> str:
        """As editors and `rejects.jsonl` count: lines, rows and documents from 1, bytes from 0."""
        return f"{self.source}, {self.unit} {self.record + (self.unit != 'byte'):,}"


class Documents:
    """The documents of a split without their end-of-text tokens."""

    def __init__(self, split: Split, index: DocumentIndex) -> None:
        self._split, self._index = split, index

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> NDArray[Any]:
        i = _whole_number(i, "a document is chosen by its number")
        i = i + len(self) if i < 0 else i
        if i < 0:
            raise IndexError("there is no such document")
        return self._strip(self._split[slice(*self._index.bounds(i))])

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """All of them in order, read once from the first token to the last."""
        tokens = self._split.tokens
        open_pieces: list[NDArray[Any]] = []
        for start in range(0, len(tokens), _BLOCK):
            stop = min(start + _BLOCK, len(tokens))
            block = tokens.read(start, stop)
            at = 0
            for cut in (self._index.ends(start, stop, block) - start).tolist():
                document = self._strip(np.concatenate([*open_pieces, block[at:cut]]))
                open_pieces = []
                if len(document) or start + cut > 1 or isinstance(self._index, TableIndex):
                    yield document
                at = cut
            if at < len(block):
                open_pieces.append(block[at:].copy())
        if open_pieces and len(rest := self._strip(np.concatenate(open_pieces))):
            yield rest

    def bounds(self, i: int) -> tuple[int, int]:
        """Return where a document begins and ends in the split, with or without its end-of-text token.

        Raise IndexError if there is no such document.
        """
        return self._index.bounds(i)

    def holding(self, token: int) -> int:
        """Return the number of the document that contains this token of the split."""
        if isinstance(self._index, TableIndex):
            return self._index.holding(token)
        return max(0, bisect_right(range(len(self)), token, key=lambda i: self._index.bounds(i)[0]) - 1)

    def origin(self, i: int) -> DocumentOrigin | None:
        """Return where a document comes from; None: the dataset has no documents table."""
        table = self._split.table
        if table is None:
            return None
        i = _whole_number(i, "a document is chosen by its number")
        i = i + len(self) if i < 0 else i
        if not 0 <= i < len(self):
            raise IndexError(f"there is no document {i:,}")
        row = table.table[i]
        source = self._split.dataset.manifest["sources"][int(row["source"])]
        return DocumentOrigin(source["name"], source.get("unit", "record"), int(row["record"]), int(row["bytes"]))

    def ends(self, start: int, stop: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Return the ends of documents between `start` and `stop`, whose tokens are `tokens`."""
        return self._index.ends(start, stop, tokens)

    def text(self, i: int) -> str:
        """Return the text of a document."""
        return self._split.decode(self[i])

    def _strip(self, document: NDArray[Any]) -> NDArray[Any]:
        eot = self._split.dataset.eot_id
        if self._split.dataset.eot == "after" and len(document) and document[-1] == eot:
            return document[:-1]
        if self._split.dataset.eot == "before" and len(document) and document[0] == eot:
            return document[1:]
        return document


def _whole_number(key: Any, rule: str) -> int:
    """Return a key as an int; raise a TypeError that states the rule if it is an array or anything else."""
    try:
        return operator.index(key)
    except TypeError:
        raise TypeError(f"{rule}, not by {type(key).__name__}") from None


def document_index(split: Split) -> DocumentIndex:
    """Where the documents of a split are: by its table, by the index of its files, or by end-of-text tokens."""
    data, tokens = split.dataset, split.tokens
    index = split.table if split.table is not None else format_named(data.format).index(tokens)
    if index is not None:
        return index
    if data.eot == "none" or data.eot_id is None:
        raise UsageError(
            "nothing says where documents end: the dataset has no end-of-text tokens",
            place=str(data.folder),
            hint="prepare it without `--eot none`",
        )
    return EotIndex(tokens, data.eot_id, data.eot)


def _check_sizes(folder: AnyPath, splits: dict[str, SplitEntry]) -> None:
    """Compare the sizes of all files with the manifest."""
    files = [file for split in splits.values() for file in (*split["files"], *tables_in(split))]
    sizes = _listed_sizes(folder, [file["name"] for file in files]) if isinstance(folder, Path) else None
    for file in files:
        if sizes is not None:
            size = sizes.get(file["name"])
        else:
            there = folder / file["name"]
            size = there.stat().st_size if there.is_file() else None
        if size != file["bytes"]:
            raise DamageError(
                "the file is missing" if size is None else f"the file has {size:,} bytes, not {file['bytes']:,}",
                place=str(folder / file["name"]),
                hint="the dataset was changed after it was made: make it again, or bring the file back",
            )


def _listed_sizes(folder: Path, names: list[str]) -> dict[str, int]:
    """The sizes of files. Each folder is listed once: no system call for each file."""
    sizes: dict[str, int] = {}
    for prefix in {str(Path(name).parent) for name in names}:
        if (folder / prefix).is_dir():
            with os.scandir(folder / prefix) as entries:
                for entry in entries:
                    if entry.is_file():
                        sizes[entry.name if prefix == "." else f"{prefix}/{entry.name}"] = entry.stat().st_size
    return sizes
