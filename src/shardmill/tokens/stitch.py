"""Encodes one text of any length exactly: it is cut where that is safe, and stitched where it is not.

Why stitching is exact. A byte-level BPE encoding of a pretoken is the only sequence of tokens over its bytes in which
no two neighbours would have been merged differently. So a part of such a sequence is one too, and two parts that share
a token can be joined there. Window B begins at a token of window A, and they are joined at a token with the same
beginning and end in both. The margins keep that token away from both ends, where a window's split into pretokens may
differ from that of the whole: a contraction, a token longer than the rest, a special token cut in two.
Two things reach further than a margin, and are handled apart: groups of three digits count from the beginning of the
number, and white space is grouped by the position of its last line end, however far away that is.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.core import numbers_before
from shardmill.tokens.cuts import CUT_CONTEXT, UncuttableError
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from shardmill.tokens.schemes import Scheme

    Encode = Callable[[bytes], NDArray[Any]]
    """Returns the tokens of a text taken alone."""

STEP = 1 << 20
WINDOW = 1 << 19
OVERLAP = 1 << 12
LIBRARY_SHARE = 8
"""A library takes a hundred times the text in memory, so it gets this many times less of it at once."""
SLICE = 1 << 18
"""Larger pieces are read in slices of this size, so that the buffer stays small."""
LONGEST_WHITE = 64 << 20
"""Bytes of white space that are read ahead at most. They are compressed."""

WHITE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What \\s matches in every split pattern. Python's own isspace() also has U+001C to U+001F."""


@dataclass(frozen=True)
class Stitching:
    """What must be known about a tokenizer to encode a text in parts."""

    cut: Callable[[bytes, int], int]
    lengths: Callable[[], NDArray[np.int64]]
    """Bytes of each token, by id."""
    scheme: Scheme
    normalizes: bool
    """The text is brought into NFC first."""
    specials: bool
    """Special tokens are found in the text."""
    small_steps: bool
    """The tokenizer's own library encodes."""

    @property
    def window(self) -> int:
        """Bytes by which each window extends the one before, where there are no safe places."""
        return WINDOW // LIBRARY_SHARE if self.small_steps else WINDOW

    @property
    def step(self) -> int:
        """Bytes that are encoded in one call where there are safe places."""
        return STEP // LIBRARY_SHARE if self.small_steps else STEP

    @property
    def margin(self) -> int:
        """More than the longest token or special token, or a contraction."""
        return 16 + int(self.lengths().max())


def encode_stream(pieces: Iterable[bytes | memoryview], encode: Encode, settings: Stitching) -> Iterator[NDArray[Any]]:
    """Yield the tokens of one text that comes in pieces."""
    ahead = LookAhead(pieces)
    while ahead.fill(settings.step):
        place = len(ahead.text) if ahead.ended else _late_cut(ahead.text, settings.cut)
        if 0 < place <= 2 * settings.step:
            yield encode(ahead.take(place))
        else:
            yield from _stitch(ahead, encode, settings)


def _late_cut(text: bytes, cut: Callable[[bytes, int], int]) -> int:
    """Return a safe place, if possible late in the text, or -1."""
    for at in (len(text) - (1 << 12), len(text) - (1 << 16), len(text) // 2, 1):
        place = _cut_after(text, at, len(text), cut)
        if place > 0:
            return place
    return -1


def _cut_after(text: bytes, at: int, end: int, cut: Callable[[bytes, int], int]) -> int:
    """Return the first safe place in the text from `at` up to `end`, or -1."""
    begin = max(0, at - CUT_CONTEXT)
    place = cut(text[begin:end], at - begin)
    return begin + place if place > 0 else -1


@dataclass(frozen=True)
class _Window:
    """The buffered text from `begin` to `end`, encoded alone."""

    begin: int
    end: int
    complete: bool
    """It ends at a safe place, or with the text."""
    tokens: NDArray[Any]
    bounds: NDArray[np.int64]
    """Where the tokens begin and the last one ends, in the buffered text."""


def _stitch(ahead: LookAhead, encode: Encode, settings: Stitching) -> Iterator[NDArray[Any]]:
    """Yield the tokens up to the first safe place after a run of text that has none, or up to the text's end."""
    window = _encode_window(ahead, 0, min(settings.window, len(ahead.text)), encode, settings)
    yielded = 0
    while not window.complete:
        following, join, rejoin = _next_window(ahead, window, encode, settings)
        yield window.tokens[yielded:join]
        ahead.take(following.begin)
        size = following.end - following.begin
        window = replace(following, begin=0, end=size, bounds=following.bounds - following.begin)
        yielded = rejoin
    yield window.tokens[yielded:]
    ahead.take(window.end)


def _next_window(ahead: LookAhead, window: _Window, encode: Encode, settings: Stitching) -> tuple[_Window, int, int]:
    """Return the next window, and a token that is the same in both, by its number in each."""
    overlap = max(OVERLAP, 4 * settings.margin)
    while overlap < window.end:
        begin = _restart_position(ahead.text, window, window.end - overlap, settings.scheme.digit_group)
        if begin > 0:
            following = _encode_window(ahead, begin, window.end, encode, settings)
            joined = _join(window.bounds, following.bounds, begin + settings.margin, window.end - settings.margin)
            if joined:
                return following, *joined
        overlap *= 2
    raise UncuttableError(
        f"the text has {window.end:,} bytes without a place where it may be cut or stitched",
        hint="shorten such a document, or break it into several",
    )


def _encode_window(ahead: LookAhead, begin: int, known: int, encode: Encode, settings: Stitching) -> _Window:
    """Encode the window from `begin` to a place after `known`; up to `known` there is no safe place."""
    limit = known + settings.window
    ahead.fill(limit + CUT_CONTEXT)
    text = ahead.text
    end = _cut_after(text, max(1, known - CUT_CONTEXT), limit, settings.cut)
    complete = end > 0
    if not complete:
        complete = ahead.ended and limit >= len(text)
        end = len(text) if complete else limit
        while not complete and text[end] & 0xC0 == 0x80:
            end -= 1
    if settings.normalizes and not unicodedata.is_normalized("NFC", text[begin:end].decode()):
        raise UncuttableError("the text must be normalised, and has no place where it may be cut for too long")
    stand_in = b"" if complete or not settings.scheme.looks_past_white else _stand_in(ahead, begin, end, settings)
    tokens = encode(text[begin:end] + stand_in)
    bounds = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum(settings.lengths()[tokens], out=bounds[1:])
    if bounds[-1] != end - begin + len(stand_in):
        raise UncuttableError("the tokenizer changes the text, and it has no place where it may be cut for too long")
    return _Window(begin, end, complete, tokens, bounds + begin)


def _stand_in(ahead: LookAhead, begin: int, end: int, settings: Stitching) -> bytes:
    """Return a text to encode after the window, so that the white space at its end is split as in the whole text."""
    window = ahead.text[begin:end].decode()
    white = len(window) - len(window.rstrip(WHITE))
    if not white:
        return b""
    if settings.specials and white > settings.margin // 4:
        # What a special token after white space means for it differs between the patterns.
        raise UncuttableError("white space is too long where special tokens are looked for in the text")
    line_end, last = ahead.white_after(end)
    return b"\n" if line_end else b"" if last else b"x"


def _restart_position(text: bytes, window: _Window, before: int, group: int) -> int:
    """Return a place at or before another where the next window may begin, or -1.

    A token and a character begin there, and a group of digits if it is a digit.
    """
    last = int(np.searchsorted(window.bounds, before, side="right"))
    for place in window.bounds[max(1, last - 64) : last][::-1].tolist():
        if text[place] & 0xC0 != 0x80 and (not group or numbers_before(text, place) % group == 0):
            return int(place)
    return -1


def _join(bounds: NDArray[np.int64], others: NDArray[np.int64], first: int, last: int) -> tuple[int, int] | None:
    """Find a token between two places that has the same beginning and end in both, by its number in each."""
    low, high = np.searchsorted(bounds, first), np.searchsorted(bounds, last, side="right")
    near = others[: np.searchsorted(others, last, side="right")]
    _, at, other = np.intersect1d(bounds[low : high - 1], near[:-1], assume_unique=True, return_indices=True)
    at += low
    same = np.flatnonzero(bounds[at + 1] == others[other + 1])
    if not len(same):
        return None
    middle = same[len(same) // 2]
    return int(at[middle]), int(other[middle])


class LookAhead:
    """A buffer with the next part of the text, and the end of the white space after it."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.text = b""
        self.ended = False
        """Nothing comes after the buffered text."""
        self._pieces = _slices(pieces)
        self._ahead: deque[bytes] = deque()
        """What has been read to find the end of white space; compressed."""
        # Offsets count from the text's beginning.
        self._consumed = self._last_line_end = self._white_end = 0
        self._white_is_last = False

    def fill(self, size: int) -> bool:
        """Buffer at least this many bytes, or all that there are; return False if there are none."""
        more = []
        have = len(self.text)
        while have < size and not self.ended:
            piece = zlib.decompress(self._ahead.popleft()) if self._ahead else next(self._pieces, b"")
            self.ended = not piece
            more.append(piece)
            have += len(piece)
        if more:
            self.text = b"".join([self.text, *more])
        return bool(self.text)

    def take(self, size: int) -> bytes:
        """Remove the first bytes from the buffer and return them."""
        head, self.text = self.text[:size], self.text[size:]
        self._consumed += size
        return head

    def white_after(self, place: int) -> tuple[bool, bool]:
        """Return whether a line end follows in the white space from here on, and whether the text ends with it.

        Raise UncuttableError if there is more of it than LONGEST_WHITE.
        """
        here = self._consumed + place
        if here >= self._white_end:
            self._find_white_end(place)
        return self._last_line_end > here, self._white_is_last

    def _find_white_end(self, place: int) -> None:
        """Read ahead to the end of the white space from here on."""
        begin = at = self._consumed + place
        block = self.text[place:]
        self._last_line_end = 0
        # What an earlier call has read ahead ends with the block in which its white space ended: it is buffered by now.
        while True:
            white = block[: len(block) - len(block.decode().lstrip(WHITE).encode())]
            last = max(white.rfind(b"\n"), white.rfind(b"\r"))
            self._last_line_end = at + last + 1 if last >= 0 else self._last_line_end
            at += len(white)
            if len(white) < len(block):
                break
            if at - begin > LONGEST_WHITE:
                raise UncuttableError(
                    f"the text has more than {show_bytes(LONGEST_WHITE)} of white space in one run",
                    hint="shorten such a document, or break it into several",
                )
            block = next(self._pieces, b"")
            if not block:
                break
            self._ahead.append(zlib.compress(block, 1))
        self._white_end, self._white_is_last = at, not block


def _slices(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the pieces without empty ones; large ones in slices that end between characters."""
    for piece in pieces:
        start = 0
        while start < len(piece):
            end = start + SLICE
            while end < len(piece) and piece[end] & 0xC0 == 0x80:
                end -= 1
            yield bytes(piece[start:end])
            start = end
