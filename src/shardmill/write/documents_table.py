"""Writes the documents table while batches are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.shards import (
    DOCUMENT,
    HEADER_BYTES,
    SPLITS,
    TABLE_NAMES,
    GrowingFiles,
    names_in_folder,
    table_header,
    table_name,
)
from shardmill.storage import PARTIAL, PartialFile, Written, sync_folder, writing_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.write.batch import Rows

_COPIED_ROWS = 1 << 16  # at a time
_CUT = ".cut"


@dataclass
class _SplitTable:
    """The table of one split, and the document that is open in it."""

    rows: int = 0
    tokens: int = 0
    end: int = 0
    """Where the last document ends that is in the table."""
    is_open: int = 0
    source: int = 0
    record: int = 0
    bytes: int = 0
    """Of the open document, so far."""
    complete: bool = field(default=False, init=False)
    file: PartialFile | None = field(default=None, init=False)
    """None: nothing was written yet, or it is complete."""

    def position(self) -> list[int]:
        return [self.rows, self.tokens, self.end, self.is_open, self.source, self.record, self.bytes]


class DocumentsTable(GrowingFiles):
    """The tables of all splits, which grow with the tokens of the first output."""

    def __init__(self, folder: Path, splits: tuple[str, ...] = SPLITS, *, numbered: bool = False) -> None:
        """`numbered`: the rows say only where documents end; the record of each is its number in the table."""
        self._folder, self._numbered = folder, numbered
        self._tables = {split: _SplitTable() for split in splits}
        self._ended: dict[str, int] = {}
        """The splits that are to be completed, and the tokens that `--tail drop` has left of each."""
        self._obsolete: list[PartialFile] = []
        self._has_folder = False

    def append(self, split: str, rows: Rows) -> None:
        """Add the documents that end in some rows of a split."""
        if not len(rows):
            return
        table = self._tables[split]
        stops, text = np.cumsum(rows.length) + table.tokens, np.cumsum(rows.bytes)
        if self._numbered:
            documents = np.zeros(np.count_nonzero(rows.closes), DOCUMENT)
            documents["end"] = stops[rows.closes]
            self._add(split, documents)
            table.tokens = int(stops[-1])
            return
        opens, closes = np.flatnonzero(rows.opens), np.flatnonzero(rows.closes)
        # Documents do not overlap: only the first that ends here can have begun before.
        continues = not len(opens) or (len(closes) > 0 and closes[0] < opens[0])
        if continues and not table.is_open:  # it was cut by `--val first:N`, or by the border of a part
            if len(closes) and stops[closes[0]] == table.tokens:  # it has no tokens here
                closes, continues = closes[1:], False
            elif stops[-1] > table.tokens:
                self._continue_in(split, rows)
        earlier = int(continues and len(closes) > 0)
        begins = opens[: len(closes) - earlier]
        documents = np.empty(len(closes), DOCUMENT)
        documents["end"] = stops[closes]
        documents["source"][earlier:], documents["record"][earlier:] = rows.source[begins], rows.record[begins]
        documents["bytes"] = np.diff(text[closes], prepend=0)
        if earlier:
            documents["source"][0], documents["record"][0] = table.source, table.record
            documents["bytes"][0] += table.bytes
        rest = int(text[-1]) - (int(text[closes[-1]]) if len(closes) else 0)
        if len(opens) > len(begins):
            table.is_open, table.bytes = 1, rest
            table.source, table.record = int(rows.source[opens[-1]]), int(rows.record[opens[-1]])
        elif len(closes):
            table.is_open = table.source = table.record = table.bytes = 0
        else:
            table.bytes += rest
        self._add(split, documents)
        table.tokens = int(stops[-1])

    def _add(self, split: str, documents: NDArray[Any]) -> None:
        table = self._tables[split]
        # Not earlier: a run that is killed before its journal has begun leaves no files.
        table.file = table.file or self._open(table_name(split))
        # A document that was only an end-of-text token has no tokens where these are left out.
        documents = documents[np.diff(documents["end"], prepend=table.end) > 0]
        if self._numbered:
            documents["record"] = np.arange(table.rows, table.rows + len(documents))
        if len(documents):
            table.file.append(documents)
            table.rows += len(documents)
            table.end = int(documents["end"][-1])

    def _continue_in(self, split: str, rows: Rows) -> None:
        """Continue the document that `--val first:N` cuts, which val has open; or one that an earlier part began."""
        table, val = self._tables[split], self._tables.get("val")
        table.is_open, table.source, table.record = 1, int(rows.source[0]), int(rows.record[0])
        if split == "train" and val is not None and val.is_open:
            table.source, table.record = val.source, val.record

    def finish(self, dropped: dict[str, int]) -> None:
        """End the tables. A document that is cut at the end of a split has a row there too.

        `dropped`: the tokens at the end of each split that are not in the files. `prepare_sync` follows.
        """
        for split, table in self._tables.items():
            if table.complete:
                continue
            cut = [(table.tokens, table.source, table.record, table.bytes)] if table.tokens > table.end else []
            self._add(split, np.array(cut, DOCUMENT))
            table.is_open = table.source = table.record = table.bytes = 0
            self._ended[split] = table.tokens - dropped.get(split, 0)

    def matching_files(self, names: Iterable[str] | None = None) -> list[str]:
        names = names_in_folder(self._folder) if names is None else names
        return sorted(name for name in names if TABLE_NAMES.fullmatch(name.removesuffix(PARTIAL).removesuffix(_CUT)))

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        done = {written.name for written in complete}
        for split, values in position.items():
            table = self._tables[split] = _SplitTable(*values)
            table.complete = table_name(split) in done
            if table.rows and not table.complete:
                table.file = self._open(table_name(split), table.rows)
        needed = done | {table.file.name + PARTIAL for table in self._tables.values() if table.file}
        for name in set(self.matching_files()) - needed:
            with writing_to(self._folder / name):
                os.unlink(self._folder / name)

    def _open(self, name: str, rows: int = 0) -> PartialFile:
        path = self._folder / name
        if not self._has_folder:
            with writing_to(self._folder):
                path.parent.mkdir(exist_ok=True)
                sync_folder(self._folder)
            self._has_folder = True
        file = PartialFile(path, HEADER_BYTES + rows * DOCUMENT.itemsize if rows else 0, name=name)
        if not rows:
            file.append(table_header(0))
        return file

    def position(self) -> dict[str, list[int]]:
        """For each split: rows, tokens, where the last document ends; whether one is open, its source, record and
        bytes."""
        return {split: table.position() for split, table in self._tables.items()}

    def prepare_sync(self) -> Callable[[], list[tuple[str, Written]]]:
        ended, self._ended = self._ended, {}
        finishing = {split: (table, table.file) for split, table in self._tables.items() if split in ended}
        for table, _ in finishing.values():
            table.file, table.complete = None, True
        lengths = [(table.file, table.file.length) for table in self._tables.values() if table.file]

        def sync() -> list[tuple[str, Written]]:
            for file, length in lengths:
                # The hash is computed at the end: the header, which comes first, has the number of rows.
                file.sync(length, hashed=False)
            return [
                (split, self._complete(split, file, table.rows, ended[split]))
                for split, (table, file) in finishing.items()
                if file is not None
            ]

        return sync

    def _complete(self, split: str, file: PartialFile, rows: int, tokens: int) -> Written:
        if rows and self._rows(file, rows - 1)["end"][0] > tokens:
            return self._complete_cut(table_name(split), file, rows, tokens)
        return file.finish(0, table_header(rows), role="documents")

    def _complete_cut(self, name: str, file: PartialFile, rows: int, tokens: int) -> Written:
        """Write a table that ends at a token. The longer one stays until the journal does not need it any more."""
        low, high = 0, rows if tokens else 0  # the first row that ends at or after that token
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._rows(file, middle)["end"][0] < tokens else (low, middle)
        kept = low + 1 if tokens else 0
        with closing(self._open(name + _CUT)) as cut:
            for first in range(0, kept, _COPIED_ROWS):
                documents = self._rows(file, first, min(_COPIED_ROWS, kept - first))
                documents["end"] = np.minimum(documents["end"], tokens)
                cut.append(documents)
            written = cut.finish(0, table_header(kept), role="documents")
        with writing_to(self._folder / name):
            os.replace(self._folder / (name + _CUT), self._folder / name)
            sync_folder((self._folder / name).parent)
        file.close()
        self._obsolete.append(file)
        return replace(written, name=name)

    def _rows(self, file: PartialFile, first: int, count: int = 1) -> NDArray[Any]:
        data = file.read(HEADER_BYTES + first * DOCUMENT.itemsize, count * DOCUMENT.itemsize)
        return np.frombuffer(data, DOCUMENT).copy()

    def recorded(self) -> None:
        while self._obsolete:
            self._obsolete.pop().remove()

    def close(self) -> None:
        for table in self._tables.values():
            if table.file:
                table.file.close()
