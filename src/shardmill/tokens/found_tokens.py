"""Prepares rows of text for the core, which neither finds tokens by their names nor normalises text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardmill.core import find, not_normal

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PREFIX_BYTES = 4  # of a name, by which most places are ruled out at once
_PIECE = 1 << 16  # bytes that are normalised at once, about: the library takes forty times as much memory


class SplitRows(NamedTuple):
    """The given rows, cut at every token that was found; with the same gaps."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    """The token after each row; -1: a given row ends there."""


class FoundName(NamedTuple):
    """A name in a text."""

    begin: int
    name: str


class TokenNames:
    """Finds tokens by their names: the leftmost, and of several that begin there the longest."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._names = sorted(
            ((name.encode(), id_) for name, id_ in names.items() if name), key=lambda one: -len(one[0])
        )
        shortest = min((len(name) for name, _ in self._names), default=0)
        # Which bytes occur at each of the first places of any name.
        self._allowed = np.zeros((min(_PREFIX_BYTES, shortest), 256), np.bool_)
        for name, _ in self._names:
            self._allowed[range(len(self._allowed)), list(name[: len(self._allowed)])] = True
        # Two bytes are found much more rarely than one. Equal ones might overlap, and then not all are found.
        firsts = {name[:1] for name, _ in self._names}
        seconds = {first: {name[:2] for name, _ in self._names if name[:1] == first} for first in firsts}
        self._beginnings = sorted(
            next(iter(two)) if len(two) == 1 and len(set(*two)) == 2 else first for first, two in seconds.items()
        )
        self.longest = max((len(name) for name, _ in self._names), default=0)
        """Bytes of the longest name."""

    def rows(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int) -> NDArray[np.int64]:
        """Return which of the rows data[offsets[i] : offsets[i+1] - gap] contain a name; some more than once."""
        begins = self._candidates(data, int(offsets[0]), int(offsets[-1]))
        rows = np.searchsorted(offsets, begins, side="right") - 1
        sizes, _ = self._longest(data, begins, offsets[rows + 1] - gap)
        return rows[sizes > 0]

    def first(self, text: bytes | NDArray[np.uint8]) -> FoundName | None:
        """Return the first name in a text, and of several that begin there the longest."""
        data = np.frombuffer(text, np.uint8)
        begins = self._candidates(data, 0, len(data))
        sizes, _ = self._longest(data, begins, np.full(len(begins), len(data)))
        found = np.flatnonzero(sizes)
        if not len(found):
            return None
        begin, size = int(begins[found[0]]), int(sizes[found[0]])
        return FoundName(begin, data[begin : begin + size].tobytes().decode())

    def split(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int) -> SplitRows | None:
        """Cut the rows data[offsets[i] : offsets[i+1] - gap] at the tokens in them; None: there are none."""
        begins = self._candidates(data, int(offsets[0]), int(offsets[-1]))
        if not len(begins):
            return None
        rows = np.searchsorted(offsets, begins, side="right") - 1
        sizes, ids = self._longest(data, begins, offsets[rows + 1] - gap)
        kept = np.flatnonzero(sizes)
        kept = kept[_without_overlaps(begins[kept], sizes[kept])]
        begins, sizes, ids, rows = begins[kept], sizes[kept], ids[kept], rows[kept]
        if not len(begins):
            return None
        first, ends = int(offsets[0]), begins + sizes
        text = data[first : int(offsets[-1])].tobytes()
        between = zip([0, *(ends - first).tolist()], [*(begins - first).tolist(), len(text)], strict=True)
        joined = bytes(gap).join([text[begin:end] for begin, end in between])
        # Text after a token has moved by the tokens that were removed before it.
        moved = first + np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes - gap)])
        bounds = np.empty(len(offsets) + len(begins), np.int64)
        ids_after = np.zeros(len(bounds) - 1, np.int64) - 1
        place = rows + np.arange(len(rows))
        ids_after[place] = ids
        bounds[place + 1] = ends - moved[1:]
        bounds[np.append(0, np.flatnonzero(ids_after < 0) + 1)] = offsets - moved[np.searchsorted(begins, offsets)]
        return SplitRows(np.frombuffer(joined, np.uint8), bounds, ids_after)

    def _candidates(self, data: NDArray[np.uint8], first: int, last: int) -> NDArray[np.int64]:
        """Return where a name may begin."""
        text = data[first:last]
        at = np.concatenate([find(text, beginning) for beginning in self._beginnings])
        at = np.sort(at[at <= len(text) - len(self._allowed)])
        for place, allowed in enumerate(self._allowed):
            at = at[allowed[text[at + place]]]
        return at + first

    def _longest(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return size and id of the longest name that begins at each place and ends in its row; size 0: none."""
        sizes, ids = np.zeros((2, len(begins)), np.int64)
        remaining = np.arange(len(begins))
        for name, id_ in self._names:
            matching = remaining[begins[remaining] + len(name) <= limits[remaining]]
            for place, byte in enumerate(name):
                matching = matching[data[begins[matching] + place] == byte]
            sizes[matching], ids[matching] = len(name), id_
            remaining = remaining[sizes[remaining] == 0]
        return sizes, ids


def _without_overlaps(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which names count where some overlap: from the left, and none inside another."""
    if np.all(begins[1:] >= begins[:-1] + sizes[:-1]):
        return np.arange(len(begins))
    kept, previous_end = list[int](), 0
    for i, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
        if begin >= previous_end:
            kept.append(i)
            previous_end = begin + size
    return np.array(kept)


def normalized(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int, normalize: Callable[[str], str]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the rows, with those normalised that may need it. Such rows are rare."""
    odd = np.flatnonzero(not_normal(data, offsets, gap)).tolist()
    if not odd:
        return data, offsets
    sizes, view, filler = np.diff(offsets), data.data, bytes(gap)
    parts: list[bytes | memoryview] = []
    done = int(offsets[0])
    for row in odd:
        begin, end = int(offsets[row]), int(offsets[row + 1])
        text = b"".join(normalize(piece.decode()).encode() for piece in _pieces(bytes(view[begin : end - gap])))
        parts += [view[done:begin], text, filler]
        sizes[row] = len(text) + gap
        done = end
    parts.append(view[done : int(offsets[-1])])
    return np.frombuffer(b"".join(parts), np.uint8), np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield the text in pieces that can be normalised separately: a space never combines with what is before it."""
    at = 0
    while at < len(text):
        end = text.find(b" ", at + _PIECE)
        yield text[at : end if end >= 0 else len(text)]
        at = end if end >= 0 else len(text)
