"""Rows of text to rows of tokens, by the core, or by the tokenizer's own library where the core cannot."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.core import CoreError
from shardmill.errors import ShardmillError
from shardmill.tokens.backends import LibraryError, library_errors
from shardmill.tokens.cuts import UncuttableError
from shardmill.tokens.stitch import MOST_STEPS, encode_stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from shardmill.core import Certain, Follows
    from shardmill.tokens.backends import Backend
    from shardmill.tokens.tokenizers import Tokenizer

    _Part = tuple[NDArray[Any], NDArray[np.int64]]
    """Tokens of some rows, with room for one token after each row; and the size of each row with that room."""


CALL_BYTES = 5 << 20
"""Bytes of rows in one call: a whole chunk, so that nothing has to be joined."""


@dataclass
class Encoded:
    """The tokens of some rows: row i has tokens[offsets[i] : offsets[i+1] - 1].

    They may be in the engine's own memory: its next call overwrites them.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    fallbacks: int = 0
    """Rows that the tokenizer's own library encoded in place of the core."""
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Rows that cannot be encoded, each with the reason; they have no tokens."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each row has."""
        return np.diff(self.offsets) - 1


class EngineError(ShardmillError):
    """The text contains a special token that it must not, or neither the core nor the library can encode it."""


class Engine:
    """Encodes text with one tokenizer. For one thread at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._primary = tokenizer.backend(tokenizer.engine_name)
        self._library: Backend | None = None
        self.fell_back = False
        """Since this was set to False, the library has encoded a text in place of the core."""
        self._longest_whole = MOST_STEPS * tokenizer.stitching.step if tokenizer.stitching else sys.maxsize
        """Bytes; a longer row is encoded in parts."""

    def encode(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int = 0) -> Encoded:
        """Return the tokens of each row data[offsets[i] : offsets[i+1] - gap], which must be valid UTF-8."""
        rows = _Rows(data, offsets, gap)
        result = Encoded(np.empty(0, self._tokenizer.dtype), np.zeros(1, np.int64))
        parts: list[_Part] = []
        start = 0
        for row in self._single_rows(rows):
            parts += self._encode_range(rows, start, row, result)
            parts.append(self._encode_single(rows, row, result))
            start = row + 1
        parts += self._encode_range(rows, start, len(offsets) - 1, result)
        if parts:
            result.tokens = parts[0][0] if len(parts) == 1 else np.concatenate([tokens for tokens, _ in parts])
            result.offsets = np.cumsum(np.concatenate([result.offsets, *(sizes for _, sizes in parts)]))
        return result

    def encode_pieces(self, pieces: Iterable[bytes | memoryview]) -> Iterator[NDArray[Any]]:
        """Yield the tokens of one text that comes in pieces, cut anywhere between characters, in little memory.

        Raise UncuttableError if no safe places are known for this tokenizer.
        """
        if self._tokenizer.stitching is None:
            raise UncuttableError(
                "no places are known where this tokenizer's text may be cut", hint="a document must fit in the memory"
            )
        return encode_stream(pieces, self._encode_text, self._encode_open, self._tokenizer.stitching)

    def check_pieces(self, pieces: Iterable[bytes]) -> None:
        """EngineError if a text that comes in pieces contains a special token that it must not."""
        forbidden, text = self._tokenizer.forbidden, b""
        if forbidden is None:
            return
        for piece in itertools.chain(pieces, [b""]):
            text += piece
            found = forbidden.first(text)
            if found and (not piece or found.begin + forbidden.longest <= len(text)):  # else it may be a longer one
                raise _refusal(found.name)
            text = text[found.begin if found else -forbidden.longest :]

    def _single_rows(self, rows: _Rows) -> list[int]:
        """The rows that must be encoded one by one: long ones, and those with special tokens that are an error."""
        single = [np.flatnonzero(np.diff(rows.offsets) - rows.gap > self._longest_whole)]
        if forbidden := self._tokenizer.forbidden:
            single.append(forbidden.rows(*rows))
        if not any(map(len, single)):
            return []  # and `np.unique`, which imports masked arrays, is not called
        numbers: list[int] = np.unique(np.concatenate(single)).tolist()
        return numbers

    def _encode_single(self, rows: _Rows, row: int, result: Encoded) -> _Part:
        text, parts = rows.text(row), list[Any]()
        self.fell_back = False
        try:
            parts = self._encode_in_parts(text) if len(text) > self._longest_whole else [self._encode_text(text)]
        except EngineError as error:
            result.failed.append((row, error.message))
        result.fallbacks += self.fell_back
        tokens = np.concatenate([*parts, np.zeros(1, self._tokenizer.dtype)])
        return tokens, np.array([len(tokens)], np.int64)

    def _encode_in_parts(self, text: NDArray[np.uint8]) -> list[NDArray[Any]]:
        """The tokens of a long row; the core can also encode it whole, but for a library that is too much memory."""
        try:
            return list(self.encode_pieces([text.data]))
        except UncuttableError as error:
            if self._tokenizer.engine_name == self._tokenizer.library_name:
                raise EngineError(error.message) from None
            return [self._encode_text(text)]

    def _encode_range(self, rows: _Rows, start: int, end: int, result: Encoded) -> Iterator[_Part]:
        """Encode the rows from start to end, in calls of about CALL_BYTES."""
        while start < end:
            fit = int(np.searchsorted(rows.offsets, rows.offsets[start] + CALL_BYTES, side="right")) - 1
            stop = min(max(fit, start + 1), end)
            yield from self._encode_rows(rows, start, stop, result)
            start = stop

    def _encode_rows(self, rows: _Rows, start: int, stop: int, result: Encoded) -> Iterator[_Part]:
        """Encode rows in one call, or after an error in halves, so that only the row that caused it is alone."""
        try:
            tokens, bounds = self._run_backend(self._primary, rows.span(start, stop))
        except EngineError:
            if stop - start == 1:
                yield self._encode_single(rows, start, result)
            else:
                middle = (start + stop) // 2
                yield from self._encode_rows(rows, start, middle, result)
                yield from self._encode_rows(rows, middle, stop, result)
        else:
            all_rows = stop - start == len(rows.offsets) - 1
            yield tokens if all_rows else tokens.copy(), np.diff(bounds)

    def _encode_open(self, text: bytes, state: int, follows: Follows, *, last: bool) -> Certain:
        try:
            return self._primary.encode_open(text, state, follows, last=last)
        except CoreError as error:
            raise UncuttableError(error.message) from None

    def _encode_text(self, text: bytes | NDArray[np.uint8]) -> NDArray[Any]:
        """Encode one text in one call, by the core or else by the library. EngineError if neither can or may."""
        found = self._tokenizer.forbidden and self._tokenizer.forbidden.first(text)
        if found:
            raise _refusal(found.name)
        row = _Rows(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64), 0)
        try:
            return self._run_backend(self._primary, row)[0][:-1].copy()
        except EngineError:
            if self._tokenizer.engine_name == self._tokenizer.library_name:
                raise
        self.fell_back = True
        self._library = self._library or self._tokenizer.backend(self._tokenizer.library_name)
        return self._run_backend(self._library, row)[0][:-1]

    def _run_backend(self, backend: Backend, rows: _Rows) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return tokens and bounds; EngineError with the library's message if it fails."""
        try:
            with library_errors():
                ids, bounds = backend.rows(*rows)
        except LibraryError as error:
            raise EngineError(f"the text cannot be encoded: {error}") from None
        if len(ids) and int(ids.max()) > self._tokenizer.largest_id:
            raise EngineError(f"the text cannot be encoded: id {ids.max()} is beyond the vocabulary")
        return ids.astype(self._tokenizer.dtype, copy=False), bounds


def _refusal(name: str) -> EngineError:
    return EngineError(f"the text contains the special token {name}")


class _Rows(NamedTuple):
    """Row i is data[offsets[i] : offsets[i+1] - gap]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    gap: int

    def text(self, row: int) -> NDArray[np.uint8]:
        return self.data[self.offsets[row] : self.offsets[row + 1] - self.gap]

    def span(self, start: int, stop: int) -> _Rows:
        return self._replace(offsets=self.offsets[start : stop + 1])
