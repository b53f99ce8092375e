"""How stored bytes go with text, or with rows, in a source that is read ahead in blocks."""

from __future__ import annotations

import numpy as np

_MOST = 64  # steps that are remembered; when there are more, neighbours are joined
UNKNOWN = 0.05
"""The doubt where too little was read to tell."""
_GROUPS = 8  # that the error of the rate comes from: neighbours are alike, so single steps would make it too small


class Marks:
    """Pairs of (text or rows, stored bytes) along a stream, and the rate that they give.

    Right after a block was pulled, about as much of it is always ahead: from one such jump to another the rate is
    true, where anywhere else it would be off by up to a block.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._stored = -1
        self._jumps: list[tuple[int, int]] = []
        """From the second on: what came first had no block before it."""
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
            if self.jumps > 0:
                self._jumps.append((at, stored))
            if len(self._jumps) > _MOST:
                del self._jumps[1:-1:2]

    @property
    def rate(self) -> float:
        """Stored bytes for each byte of text, or for each row."""
        if self.total is not None:
            return self._size / max(1, self.total)
        if len(self._jumps) > 1 and self._jumps[-1][0] > self._jumps[0][0]:
            (at, stored), (last_at, last_stored) = self._jumps[0], self._jumps[-1]
            return (last_stored - stored) / (last_at - at)
        return min(self._size, max(1, self._stored)) / max(1, self.last)

    @property
    def doubt(self) -> float:
        """The standard error of the rate, as a share of it: what follows may be compressed less well, or better."""
        if self.total is not None:
            return 0.0
        steps = np.diff(np.array(self._jumps, float).reshape(-1, 2), axis=0)
        if len(steps) < 3:
            return UNKNOWN
        groups = min(_GROUPS, len(steps))
        text, stored = np.array([part.sum(axis=0) for part in np.array_split(steps, groups)]).T
        rest = stored - self.rate * text
        error = float(np.sqrt(rest @ rest * groups / (groups - 1))) / max(1.0, float(stored.sum()))
        return float(error * np.sqrt(max(0.0, 1 - self._stored / max(1, self._size))))

    @property
    def length(self) -> float:
        """All of the source in text or rows, about."""
        return self._size / max(1e-9, self.rate)
