"""How stored bytes go with text, or with rows, in a source that is read ahead in blocks."""

from __future__ import annotations


class Marks:
    """Pairs of (text or rows, stored bytes) along a stream, and the rate that they give.

    Right after a block was pulled, about as much of it is always ahead: from one such jump to another the rate is
    true, where anywhere else it would be off by up to a block.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._stored = -1
        self._first = self._latest = (0, 0)
        self.jumps = -1
        """Blocks that were pulled after the first."""
        self.last = 0
        self.total: int | None = None
        """Where the source ends, once that is known."""

    def add(self, at: int, stored: int) -> None:
        self.last = at
        if stored != self._stored:
            self._stored = stored
            self.jumps += 1
            self._latest = (at, stored)
            # What came first had no block before it.
            if self.jumps <= 1:
                self._first = self._latest

    @property
    def rate(self) -> float:
        """Stored bytes for each byte of text, or for each row."""
        if self.total is not None:
            return self._size / max(1, self.total)
        if self.jumps > 1 and self._latest[0] > self._first[0]:
            return (self._latest[1] - self._first[1]) / (self._latest[0] - self._first[0])
        return min(self._size, max(1, self._stored)) / max(1, self.last)

    @property
    def length(self) -> float:
        """All of the source in text or rows, about."""
        return self._size / max(1e-9, self.rate)
