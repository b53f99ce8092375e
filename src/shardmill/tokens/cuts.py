"""Where text may be cut so that its parts, encoded alone, give the tokens of the whole."""

from __future__ import annotations

import re

import numpy as np

from shardmill.errors import ShardmillError

CUT_CONTEXT = 16
"""A window passed to a `Cut` begins at the text's beginning, or at least this many bytes before the wanted place."""

TAIL = 4
"""Places in the last bytes of a window may be missed, since what follows is unknown; a longer window has them."""


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
        self._classes = _WHITE_CLASS if specials else _CLASSES

    def __call__(self, window: bytes, at: int) -> int:
        """Return the first safe place >= at that has text on both sides within the window, or -1.

        It does not depend on where the window begins, if that is the text's beginning or CUT_CONTEXT bytes before `at`.
        A place within the last TAIL bytes may be missed. Bytes that are not UTF-8 count as U+FFFD.
        """
        # The regular expression alone would search a megabyte of one letter at 6 MB/s with the GIL held; this does 500.
        place, step = max(at, 1), 1 << 9
        while place < len(window):
            kinds = np.frombuffer(window[place - 1 : place + step].translate(self._classes), np.uint8)
            for change in np.flatnonzero(kinds[1:] != kinds[:-1]).tolist():
                # Of white space before a word, the place before the last character may be safe.
                for candidate in (place + change - 1, place + change):
                    if candidate >= place and self._rules.match(window, candidate):
                        return int(candidate)
            place += step - 1
            step = min(step * 2, 1 << 18)
        return -1


def _table(classes: list[bytes]) -> bytes:
    """The class of each byte, for `bytes.translate`; the last one counts."""
    return bytes(
        max((n for n, one in enumerate(classes, 1) if re.match(one, bytes([b]))), default=0) for b in range(256)
    )


# A safe place is where the class of bytes changes, or one byte before that. R1 is about white space alone.
_CLASSES = _table([rb"[A-Za-z]", rb"[0-9]", rb"[!-/:-@\[-`{-~]", _WHITE, rb"[\x80-\xff]", rb"[\xe3\xef]"])
_WHITE_CLASS = _table([_WHITE])
