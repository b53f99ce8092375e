"""Encodes one text of any length exactly: it is cut where that is safe, and elsewhere the core says what is certain.

The core encodes the beginning of a text as far as its tokens are the same whatever comes after it (docs/dev/core.md).
The rest stays in the buffer, and more text is read behind it. Where the tokenizer's own library encodes, text is only
cut.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from shardmill.core import Follows
from shardmill.tokens.cuts import CUT_CONTEXT, UncuttableError
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from shardmill.core import Certain
    from shardmill.tokens.found_tokens import TokenNames

    Encode = Callable[[bytes], NDArray[Any]]
    """Returns the tokens of a text taken alone."""
    EncodeOpen = Callable[..., Certain]
    """`Encoder.encode_open` of the core."""

TEXT_STEP = 1 << 20
"""Bytes that are encoded at once."""
LIBRARY_STEP = 1 << 16
"""The same for a library, which takes a hundred times the text in memory."""
MOST_STEPS = 4
"""Text of this many steps must have a place to cut, or tokens that are certain."""
SLICE = 1 << 18
"""Larger pieces are read in slices of this size, so that the buffer stays small."""
WHITE_AHEAD = 64 << 20
"""Bytes of white space that are read ahead at most. They are compressed."""
HELD_BACK = 1 << 12
"""Bytes at the end of the buffer in which a name may begin, or a mark that combines with text after it."""

SPACES = (
    "\t\v\f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What \\s matches in every split pattern, but line ends. Python's own isspace() also has U+001C to U+001F."""


@dataclass(frozen=True)
class Stitching:
    """What must be known about a tokenizer to encode a text in parts."""

    cut: Callable[[bytes, int], int]
    names: TokenNames | None = None
    """Tokens that are searched for in the text."""
    normalizes: bool = False
    """The text is brought into NFC first."""
    step: int = TEXT_STEP


def encode_stream(
    pieces: Iterable[bytes | memoryview], encode: Encode, encode_open: EncodeOpen, settings: Stitching
) -> Iterator[NDArray[Any]]:
    """Yield the tokens of one text that comes in pieces."""
    ahead = LookAhead(pieces)
    while ahead.fill(settings.step):
        place = len(ahead.text) if ahead.ended else _late_cut(ahead.text, settings.cut)
        if place > 0:
            yield encode(ahead.take(place))
        else:
            yield from _encode_run(ahead, encode, encode_open, settings)


def _late_cut(text: bytes, cut: Callable[[bytes, int], int]) -> int:
    """Return a safe place, if possible late in the text, or -1."""
    for at in (len(text) - (1 << 12), len(text) - (1 << 16), len(text) // 2, 1):
        begin = max(0, at - CUT_CONTEXT)
        place = cut(text[begin:], max(at, 1) - begin)
        if place > 0:
            return begin + place
    return -1


def _encode_run(
    ahead: LookAhead, encode: Encode, encode_open: EncodeOpen, settings: Stitching
) -> Iterator[NDArray[Any]]:
    """Yield the tokens of a run of text without a safe place, up to where the rest is like a text of its own."""
    state, follows = 0, Follows.UNKNOWN
    while True:
        text, last = ahead.text, ahead.ended
        if found := settings.names and settings.names.first(text):
            if not found.begin:
                yield encode(ahead.take(len(found.name.encode())))
                return
            if last or found.begin < len(text) - HELD_BACK:
                text, last = text[: found.begin], True  # what is between two names is a text of its own
        if settings.normalizes and not unicodedata.is_normalized("NFC", text.decode()):
            raise UncuttableError("the text must be normalised, and has no place where it may be cut for too long")
        if not last and (settings.names or settings.normalizes):
            text = text[: _between_characters(text, max(0, len(text) - HELD_BACK))]
        certain = encode_open(text, state, follows, last=last)
        yield certain.ids
        ahead.take(certain.size)
        state = certain.state
        if certain.size:
            ahead.fill(settings.step)
        elif ahead.ends_with_spaces and not settings.names and not follows:
            follows = ahead.after_spaces()
            continue
        else:
            _read_more(ahead, settings)
        if not state:
            return
        follows = Follows.UNKNOWN


def _read_more(ahead: LookAhead, settings: Stitching) -> None:
    """Double the buffer. UncuttableError if it has MOST_STEPS already."""
    if len(ahead.text) >= MOST_STEPS * settings.step:
        raise UncuttableError(
            f"the text has {len(ahead.text):,} bytes without a place where it may be cut",
            hint="shorten such a document, or break it into several",
        )
    ahead.fill(2 * len(ahead.text))


def _between_characters(text: bytes | memoryview, at: int) -> int:
    """Return the last place at or before another that is between two characters."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


class LookAhead:
    """A buffer with the next part of the text, and the end of the white space after it."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.text = b""
        self.ended = False
        """Nothing comes after the buffered text."""
        self._pieces = _slices(pieces)
        self._ahead: deque[bytes] = deque()
        """What has been read to find the end of white space; compressed."""

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
        return head

    @property
    def ends_with_spaces(self) -> bool:
        return not self.text[-CUT_CONTEXT:].decode(errors="ignore").strip(SPACES)

    def after_spaces(self) -> Follows:
        """Return what ends the spaces after the buffered text. UncuttableError if they are more than WHITE_AHEAD."""
        size = 0
        for block in chain(map(zlib.decompress, list(self._ahead)), self._read_ahead()):
            other = block.decode().lstrip(SPACES)
            if other:
                return Follows.LINE_END if other[0] in "\r\n" else Follows.OTHER
            size += len(block)
            if size > WHITE_AHEAD:
                raise UncuttableError(
                    f"the text has more than {show_bytes(WHITE_AHEAD)} of white space in one run",
                    hint="shorten such a document, or break it into several",
                )
        return Follows.TEXT_END

    def _read_ahead(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._ahead.append(zlib.compress(piece, 1))
            yield piece


def _slices(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the pieces without empty ones; large ones in slices that end between characters."""
    for piece in pieces:
        start = 0
        while start < len(piece):
            end = _between_characters(piece, start + SLICE)
            yield bytes(piece[start:end])
            start = end
