"""Checks of the files of a dataset, block by block as they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards import DOCUMENT, HEADER_BYTES, table_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.shards import TableIndex

_FEW = 1 << 15  # tokens that are looked up at once: numpy makes two arrays of eight bytes each


class TokenScan:
    """Checks tokens block by block: ids in range, EOT only between documents that have tokens."""

    def __init__(self, dtype: np.dtype[Any], vocab_size: int, eot: int | None, where: str) -> None:
        self.dtype = dtype
        self._vocab_size, self._eot, self._where = vocab_size, eot, where
        self._skip = 0
        self._partial_token = b""
        self.may_begin_with_eot = where != "after"
        """False if EOT comes after documents: then the first token cannot end one."""
        self.allows_empty = False
        """Two EOT may be adjacent: other tools write empty documents, and a text may contain EOT itself."""
        self.table: TableIndex | None = None
        """Where documents are; None: that cannot be compared."""
        self.finds_specials = False
        """A text may contain EOT."""
        self._last_was_eot: bool | None = None
        self.lengths: NDArray[Any] | None = None
        """Bytes of text of each token."""
        self.tokens = self.marks = self.text = 0
        self.problems: list[str] = []

    def skip(self, count: int) -> None:
        """The next `count` bytes are not tokens."""
        self._skip = count

    def feed(self, block: memoryview) -> None:
        """Check the next bytes of the file."""
        data = block[self._skip :]
        self._skip = max(0, self._skip - len(block))
        whole = self._partial_token + bytes(data) if self._partial_token else data
        keep = len(whole) - len(whole) % self.dtype.itemsize
        self._partial_token = bytes(whole[keep:])
        self.check(np.frombuffer(whole[:keep], self.dtype))

    def check(self, tokens: NDArray[Any]) -> None:
        """Check the next tokens."""
        if not len(tokens):
            return
        for outer in (int(tokens.max()), int(tokens.min())):
            if not 0 <= outer < self._vocab_size and not self.problems:
                self.problems.append(f"id {outer:,} is outside the vocabulary of {self._vocab_size:,}")
        if self._eot is not None and self._where != "none":
            self._check_eot(tokens)
        if self.lengths is not None:
            for start in range(0, len(tokens), _FEW):
                self.text += int(self.lengths.take(tokens[start : start + _FEW], mode="clip").sum())
        self.tokens += len(tokens)

    def _check_eot(self, tokens: NDArray[Any]) -> None:
        at = np.flatnonzero(tokens == self._eot)
        self.marks += len(at)
        doubled = at[1:][np.diff(at) == 1]
        before = not self.may_begin_with_eot if self._last_was_eot is None else self._last_was_eot
        first = len(at) and at[0] == 0 and before
        if (first or len(doubled)) and not self.problems and not self.allows_empty:
            place = self.tokens + (0 if first else int(doubled[0]))
            self.problems.append(f"two EOT stand side by side at token {place:,}")
        self._last_was_eot = bool(len(at) and at[-1] == len(tokens) - 1)
        if self.table is not None and not self.problems:
            self._compare(at + self.tokens, self.tokens + len(tokens), self.table)

    def _compare(self, found: NDArray[np.int64], stop: int, table: TableIndex) -> None:
        """Check that EOT is where the documents table has the ends of documents. The first or last may be cut."""
        try:
            if self._where == "after":
                expected = table.ends(self.tokens, stop, found) - 1
                cut = table.tokens - 1
            else:
                expected = table.ends(max(0, self.tokens - 1), stop - 1, found)
                expected = np.concatenate([np.zeros(int(self.tokens == 0), np.int64), expected])
                cut = 0
        except DamageError as error:
            self.problems.append(error.message)
            return
        missing = np.setdiff1d(expected, found, assume_unique=True)
        missing = missing[missing != cut]
        wrong = missing if self.finds_specials else np.append(missing, np.setdiff1d(found, expected))
        if len(wrong):
            self.problems.append(f"EOT and the documents table do not match at token {int(wrong.min()):,}")


class TableScan:
    """Checks a documents table block by block."""

    def __init__(self, sources: int, row: int | None = None) -> None:
        """`row`: documents do not cross the border of two rows of so many tokens."""
        self._sources, self._row = sources, row
        self._header = self._rest = b""
        self.rows = self.end = self.bytes = 0
        self._problems: list[str] = []

    def feed(self, block: memoryview) -> None:
        """Check the next bytes of the file."""
        missing = HEADER_BYTES - len(self._header)
        self._header += bytes(block[:missing])
        data = self._rest + bytes(block[missing:])
        whole = len(data) - len(data) % DOCUMENT.itemsize
        self._rest = data[whole:]
        documents = np.frombuffer(data[:whole], DOCUMENT)
        if not len(documents):
            return
        if (np.diff(documents["end"], prepend=self.end) <= 0).any():
            self._problems.append("its documents are not in ascending order")
        begins = np.append(self.end, documents["end"][:-1])
        if self._row and (begins // self._row != (documents["end"] - 1) // self._row).any():
            self._problems.append("a document crosses the border of two rows")
        if not (documents["source"] >= 0).all() or not (documents["source"] < self._sources).all():
            self._problems.append("it names a source that the manifest does not have")
        if (documents["record"] < 0).any() or (documents["bytes"] < 0).any():
            self._problems.append("it has negative numbers")
        self.rows += len(documents)
        self.end = int(documents["end"][-1])
        self.bytes += int(documents["bytes"].sum())

    def finish(self) -> list[str]:
        """Return what is wrong."""
        whole = not self._rest and self._header == table_header(self.rows)
        return self._problems if whole else ["it is not a documents table"]
