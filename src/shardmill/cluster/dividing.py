"""Where parts begin and end: contiguous, of about equally many bytes, and inside of a source where that can be."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage import Source, Sources, compression_of, format_of

_NAMED = 3  # sources that are mentioned


class PartBounds(NamedTuple):
    """A part: from a byte of one source to a byte of another."""

    number: int
    first: int
    byte: int
    last: int
    end: int
    """A byte of the last source, of which nothing is in this part if it is 0."""
    bytes: int
    """Of its sources, as they are stored."""
    line: int
    """Where its first source stands in the list of sources."""


def divided(sources: Sources, count: int, starts: array[int], whole_texts: bool) -> Iterator[PartBounds]:
    """Parts of about equally many bytes; a border is inside of a source only if that can be entered there."""
    sizes = sources.sizes
    ends = array("q", accumulate(sizes))
    total = ends[-1] if ends else 0
    borders = [(0, 0)]
    index = 0
    for number in range(1, count):
        at = total * number // count
        while index < len(ends) and ends[index] <= at:
            index += 1
        inside = at - (ends[index] - sizes[index]) if index < len(ends) else 0
        if inside and not _can_be_entered(sources[index], whole_texts):
            index, inside = (index, 0) if 2 * inside < sizes[index] else (index + 1, 0)
        if borders[-1] < (index, inside) < (len(sources), 0):
            borders.append((index, inside))
    borders.append((len(sources), 0))
    before = array("q", accumulate(sizes, initial=0))
    for number, ((first, byte), (last, end)) in enumerate(pairwise(borders)):
        size = before[last] + end - before[first] - byte
        yield PartBounds(number, first, byte, last, end, size, starts[first])


def undivided_sources(sources: Sources, size: int, whole_texts: bool) -> list[str]:
    """Up to `_NAMED` sources of more than so many bytes which are one piece."""
    large = (sources[index] for index, bytes in enumerate(sources.sizes) if bytes > size)
    return [source.name for source in islice((one for one in large if not _can_be_entered(one, whole_texts)), _NAMED)]


def _can_be_entered(source: Source, whole_texts: bool) -> bool:
    """`whole_texts`: a text file is one document, which must not be cut."""
    format = source.input_format if source.input_format != "auto" else format_of(source.path) or "text"
    sectioned = INPUT_FORMATS[format].sectioned and not (whole_texts and format == "text")
    return sectioned and not compression_of(source.path)
