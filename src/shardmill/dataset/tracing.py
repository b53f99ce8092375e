"""Which documents made a token or a step of training, where they come from, and back. Tokens are not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import arguments
from shardmill.dataset.loader import Batches
from shardmill.dataset.packed_rows import PackedSplit, PackedTokens, index_path
from shardmill.errors import UsageError
from shardmill.units import plural

if TYPE_CHECKING:
    from shardmill.dataset.dataset import Dataset, Split
    from shardmill.shards import TableIndex

_STEP = 1 << 20  # rows of the documents table that are searched at once
_LOADER = ("batch_size", "block_size", "world_size", "seed", "order", "pack")


@dataclass(frozen=True)
class TracedDocument:
    """A document, and where it comes from."""

    split: str
    document: int
    """Its number in the split."""
    start: int
    """Its first token in the split, and the one after its last."""
    end: int
    source: str
    unit: str
    """What `record` counts: `line`, `row`, `document` or `byte`."""
    record: int
    """Where it begins in the source, counted from 0."""
    bytes: int
    """Bytes of its text; 0: unknown."""

    def __str__(self) -> str:
        """As people count: lines, rows and documents of a source from 1, bytes and tokens from 0."""
        record = self.record + (self.unit != "byte")
        text = f" ({plural(self.bytes, 'byte')} of text)" if self.bytes else ""
        where = f"document {self.document:,} of {self.split}, tokens {self.start:,} to {self.end - 1:,}"
        return f"{where}: {self.source}, {self.unit} {record:,}{text}"


@dataclass(frozen=True)
class TracedRow:
    """A row of a batch, and the documents in it."""

    step: int
    rank: int
    row: int
    start: int
    """Its first token in the split, or in the packed rows, and the one after its last."""
    end: int
    documents: list[TracedDocument]

    def __str__(self) -> str:
        lines = [f"step {self.step:,}, rank {self.rank}, row {self.row}: tokens {self.start:,} to {self.end - 1:,}"]
        return "\n".join([*lines, *(f"  {document}" for document in self.documents)])


def trace(
    data: Dataset,
    *,
    split: str | None = None,
    token: int | None = None,
    document: int | None = None,
    step: int | None = None,
    source: str | None = None,
    record: int | None = None,
    **loader: Any,
) -> list[TracedDocument] | list[TracedRow]:
    """Return the documents at a token, or at a step of the loader; or those that a record of a source became.

    Name one of `token`, `document`, `step`, or `source` and `record`, all counted from 0. `split` is the first one by
    default; a record is searched in all. A step needs the loader's `batch_size` and `block_size`, and its `world_size`,
    `seed`, `order` and `pack` where they are not the default; it returns a `TracedRow` for every row on every rank, as
    `batches` returns them from its beginning. With these settings a record is also found in the rows of the first
    epoch. UsageError if the dataset has no documents table.
    """
    given = [name for name, value in (("token", token), ("document", document), ("step", step), ("source", source))
             if value is not None]  # fmt: skip
    if len(given) != 1:
        raise UsageError("trace one thing at a time", hint="give a token, a document, a step, or a source and a record")
    if (record is None) != (source is None):
        raise UsageError("a source and a record go together")
    for name in loader.keys() - {*_LOADER}:
        raise UsageError(f"there is no setting `{name}`", hint=f"choose one of: {', '.join(_LOADER)}")
    if bool(loader) > ("batch_size" in loader and "block_size" in loader) or (step is not None and not loader):
        raise UsageError("the loader's settings are missing", hint="give its batch size and its block size")
    if split is not None and split not in data:
        raise UsageError(f"there is no split `{split}`", hint=f"choose one of: {', '.join(data)}")
    chosen = data[split or next(iter(data))]
    if source is not None:
        named, number = _source_number(data, arguments.text("source", source)), arguments.number("record", record, 0)
        found = [one for name in data if split in (None, name) for one in _made_of(data[name], named, number)]
        return [row for one in found for row in _rows_with(data[one.split], one, loader)] if loader else found
    if step is not None:
        return list(_rows_of(chosen, arguments.number("step", step, 0), loader))
    table, origins = _table(chosen), _Origins(data)
    if token is not None:
        at = arguments.number("token", token, 0)
        if at >= len(chosen):
            raise UsageError(f"there is no token {at:,} in {len(chosen):,} of {chosen.name}")
        return [_traced(chosen, table, origins, table.holding(at))]
    number = arguments.number("document", document, 0)
    if number >= len(table):
        raise UsageError(f"there is no document {number:,} in {len(table):,} of {chosen.name}")
    return [_traced(chosen, table, origins, number)]


class _Origins:
    """The sources of a dataset; one that was looked up is kept, since sources are stored as compressed lines."""

    def __init__(self, data: Dataset) -> None:
        self._sources, self._last = data.manifest["sources"], (-1, "", "")

    def __getitem__(self, number: int) -> tuple[str, str]:
        if self._last[0] != number:
            source = self._sources[number]
            self._last = number, source["name"], source.get("unit", "record")
        return self._last[1:]


def _table(split: Split) -> TableIndex:
    if split.table is None:
        raise UsageError(
            "the dataset has no documents table",
            place=str(split.dataset.folder),
            hint=f"`shardmill convert` writes one: convert it with `-f {split.dataset.format}` first",
        )
    return split.table


def _traced(split: Split, table: TableIndex, origins: _Origins, number: int) -> TracedDocument:
    start, end = table.bounds(number)
    row = table.table[number]
    name, unit = origins[int(row["source"])]
    return TracedDocument(split.name, number, start, end, name, unit, int(row["record"]), int(row["bytes"]))


def _rows_of(split: Split, step: int, loader: dict[str, Any]) -> Iterator[TracedRow]:
    """Yield every row of a step, rank after rank."""
    table, origins = _table(split), _Origins(split.dataset)
    for rank in range(arguments.number("world_size", loader.get("world_size", 1), 1)):
        batches, rows = _batches(split, loader, rank)
        for row, start in enumerate(batches.rows_at(step).tolist()):
            yield _traced_row(split, table, origins, (step, rank, row), start, batches.block_size, rows)


def _batches(split: Split, loader: dict[str, Any], rank: int = 0) -> tuple[Batches, PackedTokens | None]:
    """The batches with these settings, and the packed rows that they read, if they do."""
    settings = {"epochs": None, **loader, "rank": rank}
    pack = settings.pop("pack", False)
    if pack is False:
        return Batches(split, **settings), None
    rows = PackedSplit(split, arguments.number("block_size", loader["block_size"], 1), index_path(pack))
    return Batches(rows, **settings), rows.tokens  # type: ignore[arg-type]


def _traced_row(
    split: Split,
    table: TableIndex,
    origins: _Origins,
    at: tuple[int, int, int],
    start: int,
    size: int,
    rows: PackedTokens | None,
) -> TracedRow:
    if rows is None:
        numbers: Iterable[int] = range(table.holding(start), table.holding(start + size - 1) + 1)
    else:
        numbers = [table.holding(token) for token in rows.pieces(start, size).tolist()]
    return TracedRow(*at, start, start + size, [_traced(split, table, origins, number) for number in numbers])


def _rows_with(split: Split, document: TracedDocument, loader: dict[str, Any]) -> Iterator[TracedRow]:
    """Yield the rows of the first epoch in which a document has tokens, in their order."""
    table, origins, (batches, rows) = _table(split), _Origins(split.dataset), _batches(split, loader)
    size = batches.block_size
    if rows is None:
        blocks = np.arange(document.start // size, -(-document.end // size))
    else:
        blocks = rows.rows_with(document.start, document.end, size)
    for *at, block in batches.places_of(blocks[blocks < batches.blocks]):
        yield _traced_row(split, table, origins, (at[0], at[1], at[2]), block * size, size, rows)


def _source_number(data: Dataset, wanted: str) -> int:
    """The number of the source with a name, or with the only name that ends so."""
    named = [(number, source["name"]) for number, source in enumerate(data.manifest["sources"])]
    found = [number for number, name in named if name == wanted]
    if not found:
        parts = PurePath(wanted).parts
        found = [number for number, name in named if parts and PurePath(name).parts[-len(parts) :] == parts]
    if len(found) != 1:
        some = ", ".join(name for number, name in named[:3] if not found or number in found)
        raise UsageError(
            f"`{wanted}` is {'none' if not found else 'more than one'} of the sources",
            hint=f"the dataset was made from {plural(len(named), 'source')}: {some}" + " …" * (len(named) > 3),
        )
    return found[0]


def first_record(data: Dataset, source: str) -> int:
    """Return the number of a source's first record, as people count."""
    return int(_Origins(data)[_source_number(data, source)][1] != "byte")


def _made_of(split: Split, source: int, record: int) -> list[TracedDocument]:
    """The documents that begin at a record; in plain text, those that begin last at or before a byte."""
    table, origins = _table(split), _Origins(split.dataset)
    nearest, found = -1, np.empty(0, np.int64)
    within = origins[source][1] == "byte"
    for first in range(0, len(table), _STEP):
        rows = table.rows(first, min(first + _STEP, len(table)))
        here = rows["source"] == source
        here &= rows["record"] <= record if within else rows["record"] == record
        if not here.any():
            continue
        best = int(rows["record"][here].max())
        if best >= nearest:
            there = np.flatnonzero(here & (rows["record"] == best)) + first
            found = np.concatenate([found, there]) if best == nearest else there
            nearest = best
    return [_traced(split, table, origins, number) for number in found.tolist()]


def rows_text(found: list[TracedDocument] | list[TracedRow]) -> str:
    """What was found, as a person reads it."""
    return "\n".join(map(str, found)) if found else "nothing: the record is no document of this dataset"


def as_data(found: list[TracedDocument] | list[TracedRow]) -> list[dict[str, Any]]:
    """What was found, as JSON-able data."""
    return [
        {**vars(one), "documents": [vars(each) for each in one.documents]} if isinstance(one, TracedRow) else vars(one)
        for one in found
    ]
