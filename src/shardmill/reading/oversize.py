"""A record that may not be held in memory: it was skipped, and is a reject."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardmill.reading.documents import Documents, Reject


class Oversize(NamedTuple):
    """The payload of a chunk that is one such record."""

    reason: str
    excerpt: str

    def documents(self, record: int, lines: int) -> Documents:
        """No document, and one reject."""
        reject = Reject(record, 0, self.reason, self.excerpt)
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64), lines=lines, rejects=[reject])
