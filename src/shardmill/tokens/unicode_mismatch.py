"""Characters that two libraries class differently, since their Unicode versions differ."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardmill import byte_search

if TYPE_CHECKING:
    from numpy.typing import NDArray

# gigatoken 0.10 has Unicode 17; tiktoken 0.14 and tokenizers 0.23 have 16 (and agree on every character). Found by
# encoding every character in ten contexts with gigatoken and with tiktoken, under seven split patterns and with a
# vocabulary that shows where each pattern splits. A test does it again, and fails on a character that is missing here.
LETTERS = (
    "088F 0C5C 0CDC 1ACF-1ADD 1AE0-1AEB A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 10EFA-10EFB "
    "11B60-11B67 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 "
    "1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)
# A letter in both, but of another case, so only patterns that distinguish cases differ. It is the only one of all these
# that is found in real text: the bear of ʕ•ᴥ•ʔ.
CASES = "0295"
# Characters that are \p{P} or \p{S} in Unicode 18 (the `regex` module) and not in 16 (tiktoken), or the reverse; only
# patterns that name these classes differ.
SYMBOLS = (
    "20C1-20C4 2B96 2E60-2E63 FBC3-FBD2 FD90-FD91 FDC8-FDCE 10EC9-10ECA 10ED0-10ED8 1CCFA-1CCFC 1CEBA-1CED0 "
    "1CED2-1CED4 1CEDD-1CEFD 1D1EB-1D1FF 1D253-1D25A 1D25D-1D25E 1D260-1D27F 1DB00-1DB1C 1F1AE 1F6D8-1F6D9 "
    "1F777-1F77A 1F7DA-1F7DB 1F7F1-1F7FF 1F8D0-1F8D8 1FA54-1FA57 1FA8A-1FA8E 1FAC8 1FACC-1FACD 1FADD 1FAEA-1FAEB "
    "1FAEF 1FAF9-1FAFA 1FBFA"
)


def ranges(text: str) -> list[tuple[int, int]]:
    """Return ranges of characters as (first, last), in order."""
    pairs = [item.partition("-") for item in text.split()]
    return sorted((int(first, 16), int(last or first, 16)) for first, _, last in pairs)


_PART = 1 << 17


class Characters:
    """A set of characters beyond ASCII, to be found in UTF-8."""

    def __init__(self, text: str) -> None:
        self._ranges = np.array(ranges(text))

    @cached_property
    def _pairs(self) -> NDArray[np.bool_]:
        """Which two bytes one of them begins with. Made when needed: the core needs none."""
        pairs = np.zeros(1 << 16, bool)
        for first, last in self._ranges.tolist():
            begins = {chr(code).encode()[:2] for code in range(first, last + 1)}
            pairs[[begin[0] << 8 | begin[1] for begin in begins]] = True
        return pairs

    @cached_property
    def _leads(self) -> NDArray[np.uint8]:
        """Their first bytes, in order."""
        return np.flatnonzero(self._pairs.reshape(256, 256).any(axis=1)).astype(np.uint8)

    def places(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return where such characters begin in valid UTF-8, in order; at a gigabyte of English per second."""
        leads = data >= self._leads[0]
        step = max(1, len(data))
        if np.count_nonzero(leads) > len(data) // 32:
            # Of Chinese, for example, a third would be listed, so each of the bytes is searched for instead; in parts,
            # since Thai is listed even so, and a list takes many times its text.
            leads = np.zeros(len(data), np.bool_)
            for lead in self._leads:
                leads |= data == lead
            step = _PART
        found = [
            self._among(byte_search.sparse_nonzero(leads[i : i + step]) + i, data) for i in range(0, len(data), step)
        ]
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.int64), *found])

    def _among(self, at: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return those of the places where one of the characters begins."""
        at = at[self._pairs[(data[at].astype(np.uint16) << 8) | data[at + 1]]]
        if len(at):
            code = _code_points(data, at)
            after = np.searchsorted(self._ranges[:, 0], code, side="right") - 1
            at = at[(after >= 0) & (code <= self._ranges[after, 1])]
        return at


ANY_CASE = Characters(LETTERS)
EITHER_CASE = Characters(f"{LETTERS} {CASES}")
WITH_SYMBOLS = Characters(f"{LETTERS} {CASES} {SYMBOLS}")


def mismatch_of(patterns: Iterable[str]) -> Characters:
    """Return the characters that libraries may class differently under these split patterns."""
    joined = "".join(patterns)
    if re.search(r"\\p\{[PS]", joined):
        return WITH_SYMBOLS
    return EITHER_CASE if re.search(r"\\p\{(L[a-z]|M)", joined) else ANY_CASE


def _code_points(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the characters that begin at these places."""
    lead = data[at]
    code = np.empty(len(at), np.int64)
    for length, low, high in ((2, 0xC2, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)):
        here = np.flatnonzero((low <= lead) & (lead <= high))
        value = (lead[here] & (0x7F >> length)).astype(np.int64)
        for step in range(1, length):
            value = value << 6 | (data[at[here] + step] & 0x3F)
        code[here] = value
    return code
