"""Rows of text in which some tokens are found by their names, and which are brought into a normal form, for an encoder
that does neither."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardmill.byte_search import occurrences
from shardmill.core import not_normal

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOOKED_AT = 4  # bytes of a name by which most places are ruled out at once


class Found(NamedTuple):
    """A token that stands in a text by its name."""

    begin: int
    end: int
    id: int


class SplitRows(NamedTuple):
    """Rows for an encoder, in place of those that were given: one more for every token that was found."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    """Of each row the token that stands behind it; -1: there the row that was given ends."""


class TokenNames:
    """Finds tokens by their names: the leftmost, and of several that begin there the longest."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._ids = {name.encode(): id_ for name, id_ in names.items() if name}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._firsts = sorted({name[:1] for name in longest_first})
        # Which bytes stand at the first places of any name.
        shortest = min(map(len, longest_first), default=0)
        self._allowed = np.zeros((min(_LOOKED_AT, shortest), 256), np.bool_)
        for name in longest_first:
            for place in range(len(self._allowed)):
                self._allowed[place, name[place]] = True

    def find(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int) -> list[tuple[int, Found]]:
        """Where they stand within rows data[offsets[i] : offsets[i+1] - gap], in order, each with its row."""
        first, last = int(offsets[0]), min(int(offsets[-1]), len(data))
        text = data[first:last]
        at = np.concatenate([np.empty(0, np.int64), *(occurrences(text, byte) for byte in self._firsts)])
        at = np.sort(at[at <= len(text) - len(self._allowed)])
        for place, allowed in enumerate(self._allowed):
            at = at[allowed[text[at + place]]]
        found: list[tuple[int, Found]] = []
        rows = np.searchsorted(offsets, at + first, side="right") - 1
        behind = 0
        for row, begin in zip(rows.tolist(), (at + first).tolist(), strict=True):
            match = self._pattern.match(data.data, begin, int(offsets[row + 1]) - gap)
            if match and begin >= behind:
                behind = match.end()
                found.append((row, Found(begin, behind, self._ids[match[0]])))
        return found


def split_rows(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    gap: int,
    names: TokenNames | None,
    normalize: Callable[[str], str] | None,
) -> SplitRows | None:
    """Rows that an encoder may take as they are, with gaps of the same width; None: those that were given.

    Names are found first, and what stands between them is normalised by itself.
    """
    found: dict[int, list[Found]] = {}
    for row, token in names.find(data, offsets, gap) if names else ():
        found.setdefault(row, []).append(token)
    odd = not_normal(data, offsets, gap) if normalize else np.zeros(len(offsets) - 1, np.bool_)
    changed = sorted({*found, *np.flatnonzero(odd).tolist()})
    if not changed:
        return None
    filler = np.zeros(gap, np.uint8)
    parts: list[NDArray[np.uint8]] = []
    sizes: list[NDArray[np.int64]] = []
    ids: list[NDArray[np.int64]] = []
    done = 0
    for row in [*changed, len(offsets) - 1]:
        parts.append(data[offsets[done] : offsets[row]])
        sizes.append(np.diff(offsets[done : row + 1]))
        ids.append(np.full(row - done, -1, np.int64))
        if row == len(offsets) - 1:
            break
        end = int(offsets[row + 1]) - gap
        tokens = [*found.get(row, ()), Found(end, end, -1)]
        begins = [int(offsets[row]), *(token.end for token in tokens)]
        for begin, token in zip(begins, tokens, strict=False):
            text = data[begin : token.begin]
            if normalize and odd[row]:
                text = np.frombuffer(normalize(text.tobytes().decode()).encode(), np.uint8)
            parts += [text, filler]
            sizes.append(np.array([len(text) + gap]))
        ids.append(np.array([token.id for token in tokens]))
        done = row + 1
    bounds = np.concatenate([np.zeros(1, np.int64), *sizes])
    return SplitRows(np.concatenate(parts), np.cumsum(bounds), np.concatenate(ids))
