"""Writes the documents table while batches are written."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.shards import DOCUMENT, SPLITS, OutputSettings, ShardWriter, TableFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.write.batch import Rows


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


class DocumentsTable:
    """The tables of all splits, which grow with the tokens of the first output."""

    def __init__(
        self, folder: Path, splits: tuple[str, ...] = SPLITS, *, numbered: bool = False, drops_tail: bool = False
    ) -> None:
        """`numbered`: the rows say only where documents end; the record of each is its number in the table."""
        self._numbered = numbered
        self._kind = TableFormat(drops_tail=drops_tail)
        self.files = ShardWriter(self._kind, OutputSettings(folder, "", DOCUMENT, 0, splits=splits))
        self._tables = {split: _SplitTable() for split in splits}

    def saved(self) -> dict[str, list[int]]:
        """The state of each table, for `restore`."""
        return {split: list(astuple(table)) for split, table in self._tables.items()}

    def restore(self, saved: dict[str, list[int]]) -> None:
        """Continue from a recorded state."""
        self._tables = {split: _SplitTable(*values) for split, values in saved.items()}

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
        # A document that was only an end-of-text token has no tokens where these are left out.
        documents = documents[np.diff(documents["end"], prepend=table.end) > 0]
        if self._numbered:
            documents["record"] = np.arange(table.rows, table.rows + len(documents))
        if len(documents):
            self.files.append(split, documents)
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

        `dropped`: the tokens at the end of each split that are not in the files.
        """
        for split, table in self._tables.items():
            cut = [(table.tokens, table.source, table.record, table.bytes)] if table.tokens > table.end else []
            self._add(split, np.array(cut, DOCUMENT))
            table.is_open = table.source = table.record = table.bytes = 0
            if split in dropped:
                self._kind.kept_tokens[split] = table.tokens - dropped[split]
        self.files.finish(tuple(self._tables))
