"""Rows of text to rows of tokens, whichever library does the work, and with another for the rows that it cannot do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.errors import ShardmillError
from shardmill.tokens.cuts import UncuttableError
from shardmill.tokens.stitch import encode_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from shardmill.tokens.backends import Backend
    from shardmill.tokens.tokenizers import Tokenizer


CALL = 5 << 20
"""Bytes of rows in one call: a whole chunk, so that nothing has to be joined."""
LONG = 1 << 22
"""A row beyond this is encoded in parts."""


@dataclass
class Encoded:
    """The tokens of some rows: row i has tokens[offsets[i] : offsets[i+1] - 1], and after them one place is free.

    The place is for a mark between documents: to put it in later would be to copy everything once more.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    fallbacks: int = 0
    """Rows that the reference library encoded in place of a faster one."""
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Rows that cannot be encoded, and why; they have no tokens."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each row has."""
        return np.diff(self.offsets) - 1


class EngineError(ShardmillError):
    """The text holds a special token that it must not, or neither the engine nor the reference could encode it."""


class Engine:
    """Encodes text with one tokenizer. Not for two threads at once; its caches grow until it is dropped."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._falls_back = tokenizer.engine_name != tokenizer.library_name
        self._mismatch = tokenizer.mismatch if self._falls_back else None
        self._reference: Backend | None = None
        self._fallbacks = 0
        self._whole = tokenizer.stitching.step if tokenizer.stitching and tokenizer.stitching.little else LONG
        """A row beyond this goes in parts where the reference may have to encode it."""
        self._primary = tokenizer.backend(tokenizer.engine_name)

    def encode(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int = 0) -> Encoded:
        """The tokens of each row data[offsets[i] : offsets[i+1] - gap], which must be valid UTF-8.

        Gaps hold a separator, which stands nowhere else; after the last row it may be missing.
        """
        rows = _Rows(data, offsets, gap)
        result = _Result(self._tokenizer.dtype, len(offsets) - 1)
        start = 0
        for row in self._odd_rows(rows):
            self._plain_rows(rows, start, row, result)
            self._odd_row(rows.text(row), row, result)
            start = row + 1
        self._plain_rows(rows, start, len(offsets) - 1, result)
        return result.encoded()

    def renew(self) -> None:
        """Give back what the caches hold; also while a text in pieces is being encoded."""
        self._primary = self._tokenizer.backend(self._tokenizer.engine_name)

    def encode_pieces(self, pieces: Iterable[bytes | memoryview]) -> Iterator[NDArray[Any]]:
        """The tokens of one text that comes in pieces, cut anywhere between characters, in a few megabytes of memory.

        UncuttableError if no safe places are known for this tokenizer.
        """
        if self._tokenizer.stitching is None:
            raise UncuttableError(
                "no places are known where this tokenizer's text may be cut", hint="a document must fit in the memory"
            )
        return encode_stream(pieces, self._text, self._tokenizer.stitching)

    def _odd_rows(self, rows: _Rows) -> list[int]:
        """The rows that cannot go with the others, in order."""
        data, offsets, gap = rows
        first, last = int(offsets[0]), int(offsets[-1])
        odd: list[NDArray[np.int64]] = []
        if self._mismatch:
            odd.append(np.searchsorted(offsets, self._mismatch.places(data[first:last]) + first, side="right") - 1)
        if self._tokenizer.stitching:
            odd.append(np.flatnonzero(np.diff(offsets) - gap > (LONG if self._falls_back else self._whole)))
        if forbidden := self._tokenizer.forbidden:
            begins = np.array([match.start() for match in forbidden.finditer(data.data, first, last)], np.int64)
            row = np.searchsorted(offsets, begins, side="right") - 1
            odd.append(row[begins < offsets[row + 1] - gap])
        if not any(map(len, odd)):
            return []  # and `np.unique`, which imports masked arrays, is not called
        numbers: list[int] = np.unique(np.concatenate(odd)).tolist()
        return numbers

    def _odd_row(self, text: NDArray[np.uint8], row: int, result: _Result) -> None:
        before = self._fallbacks
        try:
            self._refuse_special(text.data)
            result.add(row, self._in_parts(text) or [self._alone(text)])
        except EngineError as error:
            result.fail(row, error.message)
        result.fallbacks += self._fallbacks > before

    def _in_parts(self, text: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """The tokens of a long row in parts; nothing where it has to be encoded whole."""
        if self._tokenizer.stitching is None or len(text) <= self._whole:
            return []
        try:
            return list(self.encode_pieces([text.data]))
        except UncuttableError:
            return []

    def _plain_rows(self, rows: _Rows, start: int, end: int, result: _Result) -> None:
        """The rows from start to end, in calls of about CALL bytes."""
        while start < end:
            fit = int(np.searchsorted(rows.offsets, rows.offsets[start] + CALL, side="right")) - 1
            stop = min(max(fit, start + 1), end)
            self._call(rows, start, stop, result)
            start = stop

    def _call(self, rows: _Rows, start: int, stop: int, result: _Result) -> None:
        """Rows that go in one call, or after an error by halves, so that it costs only the row that caused it."""
        outcome = self._attempt(self._primary, rows.some(start, stop))
        if not isinstance(outcome, str):
            result.add_rows(start, *outcome)
        elif stop - start > 1:
            middle = (start + stop) // 2
            self._call(rows, start, middle, result)
            self._call(rows, middle, stop, result)
        else:
            self._odd_row(rows.text(start), start, result)

    def _text(self, text: bytes) -> NDArray[Any]:
        self._refuse_special(text)
        return self._alone(np.frombuffer(text, np.uint8))

    def _refuse_special(self, text: bytes | memoryview) -> None:
        found = self._tokenizer.forbidden and self._tokenizer.forbidden.search(text)
        if found:
            raise EngineError(f"the text contains the special token {found[1].decode(errors='replace')}")

    def _alone(self, text: NDArray[np.uint8]) -> NDArray[Any]:
        """The tokens of one text in one call. EngineError if neither library can."""
        row = _Rows(text, np.array([0, len(text)], np.int64), 0)
        outcome: tuple[NDArray[Any], NDArray[np.int64]] | str = ""
        if self._mismatch is None or not len(self._mismatch.places(text)):
            outcome = self._attempt(self._primary, row)
        if isinstance(outcome, str) and self._falls_back:
            self._fallbacks += 1
            self._reference = self._reference or self._tokenizer.backend(self._tokenizer.library_name)
            outcome = self._attempt(self._reference, row)
        if isinstance(outcome, str):
            raise EngineError(f"the text cannot be encoded: {outcome}")
        return outcome[0][:-1]

    def _attempt(self, backend: Backend, rows: _Rows) -> tuple[NDArray[Any], NDArray[np.int64]] | str:
        """Tokens and bounds, or in words what the library said instead."""
        try:
            ids, bounds = backend.rows(*rows)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a library raises what it likes, and it costs only this row
            return f"{type(error).__name__}: {error}"
        except BaseException as error:
            # What a Rust panic becomes is no Exception, and is not importable.
            if type(error).__name__ != "PanicException":
                raise
            if backend is self._primary:
                self.renew()
            return f"a panic of the library: {error}"
        if len(ids) and int(ids.max()) > self._tokenizer.largest_id:
            return f"id {ids.max()} is beyond the vocabulary"
        dtype = self._tokenizer.dtype
        if ids.dtype == dtype and len(ids) == bounds[-1]:
            return ids, bounds
        tokens = np.zeros(bounds[-1], dtype)
        tokens[: len(ids)] = ids
        return tokens, bounds


class _Rows(NamedTuple):
    """Row i is data[offsets[i] : offsets[i+1] - gap]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    gap: int

    def text(self, row: int) -> NDArray[np.uint8]:
        return self.data[self.offsets[row] : self.offsets[row + 1] - self.gap]

    def some(self, start: int, stop: int) -> _Rows:
        return self._replace(offsets=self.offsets[start : stop + 1])


class _Result:
    """Rows of tokens as they come, in order."""

    def __init__(self, dtype: np.dtype[Any], rows: int) -> None:
        self._parts = [np.empty(0, dtype)]
        self._place = np.zeros(1, dtype)
        self._bounds = np.zeros(rows + 1, np.int64)
        self.fallbacks = 0
        self._failed: list[tuple[int, str]] = []

    def add(self, row: int, parts: list[NDArray[Any]]) -> None:
        self._parts += [*parts, self._place]
        self._bounds[row + 1] = sum(map(len, parts)) + 1

    def add_rows(self, row: int, tokens: NDArray[Any], bounds: NDArray[np.int64]) -> None:
        self._parts.append(tokens)
        self._bounds[row + 1 : row + len(bounds)] = np.diff(bounds)

    def fail(self, row: int, reason: str) -> None:
        self.add(row, [])
        self._failed.append((row, reason))

    def encoded(self) -> Encoded:
        offsets = np.cumsum(self._bounds)
        tokens = self._parts[1] if len(self._parts) == 2 else np.concatenate(self._parts)
        return Encoded(tokens, offsets, self.fallbacks, self._failed)
