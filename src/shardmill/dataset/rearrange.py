"""Blocks of a token stream with its end-of-text tokens moved from where they stand to where they should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset.document_index import DocumentIndex
    from shardmill.dataset.token_files import TokenFiles


class Block(NamedTuple):
    """Some tokens of a split with the marks in their new places."""

    tokens: NDArray[Any]
    ends: NDArray[np.int64]
    """Where documents end, counted from the start of `tokens`; without those that end at their very start."""
    ends_before: bool
    """The document that was open before these tokens has ended with the last of them."""


@dataclass(frozen=True)
class Marked:
    """A split whose documents are marked `after`, `before` or with `none`, and may be listed in an index too."""

    tokens: TokenFiles
    eot: str
    mark: int | None
    index: DocumentIndex | None = None
    continues: bool = False
    """Its first document began in the other split: the stream was cut there, and not between documents."""
    open: bool = False
    """Its last document goes on in the other split."""

    def blocks(self, at: int, size: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The tokens from one on, as they are: (where a block begins, its tokens)."""
        for start in range(at, len(self.tokens), size):
            yield start, self.tokens.read(start, min(start + size, len(self.tokens)))

    def arranged(self, start: int, block: NDArray[Any], eot: str) -> Block:
        """A block with the marks where `eot` wants them. The blocks of a split together are the whole of it."""
        if self.index is not None:
            return self._by_index(start, block, eot, self.index)
        if self.eot == "none" or self.mark is None:
            return Block(block, np.empty(0, np.int64), False)
        if eot == "none":
            marks = np.flatnonzero(block == self.mark)
            ends = np.unique(marks - np.arange(len(marks)))
            return _block(np.delete(block, marks), ends)
        if (self.eot, eot) == ("after", "before"):
            first = start == 0 and not self.continues
            block = self._with(block, first, start + len(block) == len(self.tokens) and block[-1] == self.mark)
        elif (self.eot, eot) == ("before", "after"):
            last = start + len(block) == len(self.tokens) and not self.open
            if start == 0 and block[0] == self.mark:
                block = block[1:]
            block = np.append(block, block.dtype.type(self.mark)) if last else block
        marks = np.flatnonzero(block == self.mark)
        return _block(block, marks + 1 if eot == "after" else marks[marks > 0] if start == 0 else marks)

    def _with(self, block: NDArray[Any], first: bool, without_last: bool) -> NDArray[Any]:
        mark = np.array([self.mark], block.dtype)
        return np.concatenate([mark[: int(first)], block[: len(block) - int(without_last)]])

    def _by_index(self, start: int, block: NDArray[Any], eot: str, index: DocumentIndex) -> Block:
        ends = index.ends(start, start + len(block), block) - start
        if eot == self.eot or self.mark is None:
            return _block(block, ends)
        opens = not self.continues if start == 0 else len(index.ends(start - 1, start, block[:0])) > 0
        starts = np.concatenate([np.zeros(int(opens), np.int64), ends[ends < len(block)]])
        gone = np.empty(0, np.int64)
        if self.eot != "none":
            marks = ends - 1 if self.eot == "after" else starts
            gone = marks[block[marks] == self.mark]
        block = np.delete(block, gone)
        ends, starts = ends - np.searchsorted(gone, ends), starts - np.searchsorted(gone, starts)
        if eot == "after":
            marks = ends[:-1] if self.open and start + len(block) + len(gone) == len(self.tokens) else ends
            return _block(np.insert(block, marks, self.mark), ends + np.minimum(np.arange(len(ends)) + 1, len(marks)))
        if eot == "before":
            return _block(np.insert(block, starts, self.mark), ends + np.searchsorted(starts, ends))
        return _block(block, ends)


def _block(tokens: NDArray[Any], ends: NDArray[np.int64]) -> Block:
    return Block(tokens, ends[ends > 0], bool(len(ends) and ends[0] == 0))
