"""Where text may be cut so that its parts, encoded alone, give the tokens of the whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from shardmill.errors import ShardmillError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CUT_CONTEXT = 16
"""A window passed to a `Cut` begins at the text's beginning, or at least this many bytes before the wanted place."""

TAIL = 4
"""Places in so many last bytes of a window may be missed, since what follows is unknown; a longer window has them."""


class UncuttableError(ShardmillError):
    """The text is too long for one call, and no safe places are known for this tokenizer."""


# Everything below is ASCII, or a block whose class has not changed since Unicode 5, so that the places do not depend on
# the Unicode version of Python or of an engine. White space is written out for the same reason.
_SPACE = rb"[ \t\x0b\x0c]"
_WHITE = rb"[ \t-\r]"
_PUNCT = rb"[!-&(-/:-@\[-`{-~]"  # no apostrophe
_BLACK = rb"[!-~]"
_NOT_WHITE_BEFORE = (
    rb"(?<![ \t-\r])(?<!\xc2[\x85\xa0])(?<!\xe1\x9a\x80)(?<!\xe2\x81\x9f)(?<!\xe3\x80\x80)"
    rb"(?<!\xe2\x80[\x80-\x8a\xa8\xa9\xaf])"
)
_IDEOGRAPH_BEFORE = rb"(?:(?<=\xe4[\xb8-\xbf][\x80-\xbf])|(?<=[\xe5-\xe9][\x80-\xbf][\x80-\xbf]))"
_KANA_BEFORE = rb"(?:(?<=\xe3\x81[\x81-\xbf])|(?<=\xe3\x82[\x80-\x96\xa1-\xbf])|(?<=\xe3\x83[\x80-\xba]))"
_CJK_PUNCT = rb"(?:\xe3\x80[\x81\x82\x88-\x91]|\xef\xbc[\x81\x88\x89\x8c\x9a\x9b\x9f])"

# R1: not white | white, but not a line end.
_R1 = _NOT_WHITE_BEFORE + rb"(?<=[\x00-\xff])(?=" + _SPACE + rb")"
# R2: letter or number | punctuation.  R3: letter | number and number | letter.
_R2 = rb"(?<=[0-9A-Za-z])(?=" + _PUNCT + rb")"
_R3 = rb"(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
_R23_CJK = rb"(?:" + _IDEOGRAPH_BEFORE + rb"|" + _KANA_BEFORE + rb")(?=" + _PUNCT + rb"|[0-9]|" + _CJK_PUNCT + rb")"

_AT_LINE = {
    # Of the white space before a word, the last character goes with the word or is alone, and the others are joined.
    "gpt2": rb"(?<=" + _WHITE + rb")(?=" + _WHITE + _BLACK + rb")|(?<=[!-~]\n)(?=" + _BLACK + rb")",
    # Llama 3 and similar patterns join white space up to its last line end, whatever comes before.
    "llama3": rb"(?<=[\r\n])(?=" + _BLACK + rb")",
    # As Llama 3, but line ends and slashes after punctuation are joined with it.
    "o200k": rb"(?<=[\r\n])(?=[!-.0-~])",
}


class Cut:
    """Finds the first safe place at or after an offset, for the split patterns of one family."""

    def __init__(self, family: str, *, specials: bool = False) -> None:
        # A special token never contains a place of R1, but may have letters, digits and punctuation in any order.
        rules = [_R1] if specials else [_R1, _R2, _R3, _R23_CJK, _AT_LINE[family]]
        self._rules = re.compile(rb"|".join(rules))

    def __call__(self, window: bytes, at: int) -> int:
        """Return the first safe place >= at that has text on both sides within the window, or -1.

        It does not depend on where the window begins, if that is the text's beginning or CUT_CONTEXT bytes before `at`.
        A place within the last TAIL bytes may be missed. Bytes that are not UTF-8 count as U+FFFD.
        """
        at = max(at, 1)
        near = self._rules.search(window, at, min(len(window), at + 512))
        if near:
            return near.start()
        return self._far(window, at) if len(window) - at > 512 else -1

    def _far(self, window: bytes, at: int) -> int:
        # The regular expression alone would search a megabyte of one letter at 6 MB/s with the GIL held; this does 300.
        place = at + 512 - TAIL
        step = 1 << 14
        while place < len(window):
            for candidate in np.flatnonzero(_may_cut(window[place - 1 : place + step + 1])).tolist():
                if self._rules.match(window, place + candidate):
                    return int(place + candidate)
            place += step
            step = min(step * 2, 1 << 18)
        return -1


def _classes() -> bytes:
    """0 other, 1 letter, 2 digit, 3 punctuation, 4 space, 5 line end, 6 not ASCII, 7 first byte of CJK punctuation."""
    table = np.zeros(256, np.uint8)
    for kind, pattern in enumerate(
        [rb"[A-Za-z]", rb"[0-9]", rb"[!-/:-@\[-`{-~]", _SPACE, rb"[\r\n]", rb"[\x80-\xff]", rb"[\xe3\xef]"]
    ):
        table[[byte for byte in range(256) if re.match(pattern, bytes([byte]))]] = kind + 1
    return table.tobytes()


def _triples() -> NDArray[np.bool_]:
    """Return whether a place may be safe, by the classes of the byte before it and of the two after it."""
    table = np.zeros((8, 8, 8), bool)
    table[[0, 1, 2, 3, 6, 7], 4, :] = True  # R1
    table[[[1], [2]], [2, 3], :] = True  # R2, R3
    table[2, 1, :] = True
    table[2, 2, :] = False
    table[[[6], [7]], [2, 3, 7], :] = True
    white, black = [4, 5], [1, 2, 3]
    table[np.ix_(white, white, black)] = True
    table[np.ix_([5], black, range(8))] = True
    return table.reshape(-1)


_CLASS = _classes()
_LAST_ALIKE = [
    byte + next((n for n in range(256 - byte) if _CLASS[byte + n] != _CLASS[byte]), 256 - byte) - 1
    for byte in range(256)
]
"""For each byte the last one up to which all have the same class."""
_TRIPLE = _triples()
_NONE = np.zeros((1 << 18) + 2, bool)


def _may_cut(block: bytes) -> NDArray[np.bool_]:
    """Return for each place after the first byte of the block, but for the last, whether it may be safe."""
    # In a long run of one class no place is safe. Most runs are recognised by their least and largest byte, at 12 GB/s;
    # finding the classes of all bytes does 0.8 GB/s, and with numpy's look-up in a table 0.4.
    values = np.frombuffer(block, np.uint8)
    if values.max() <= _LAST_ALIKE[values.min()]:
        return _NONE[: len(block) - 1]
    kind = np.frombuffer(block.translate(_CLASS), np.uint8)
    if kind[0] == kind[-1] and kind.min() == kind.max():
        return _NONE[: len(kind) - 1]
    triple = kind[:-1].astype(np.uint16)
    triple <<= 3
    triple |= kind[1:]
    triple <<= 3
    triple[:-1] |= kind[2:]
    return _TRIPLE[triple]
