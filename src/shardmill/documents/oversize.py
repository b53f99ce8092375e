"""A record that may not be held in memory. It ends a run: set aside, it would make the dataset depend on `--memory`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardmill.documents.chunks import Documents, Reject


@dataclass(frozen=True, slots=True)
class TooLarge(Reject):
    """In the place of a reject, since only who counts records knows their numbers; the run has to end there."""

    size: int
    """Bytes that would have to be held at once."""
    hint: str = ""
    """The way out, where more memory is none."""


class Oversize(NamedTuple):
    """The payload of a chunk that is one such record.

    Such a chunk costs as much as a full one: then it is not joined with others, which are written before the run ends.
    """

    what: str
    size: int
    hint: str = ""
    """Set where its end was not looked for: it is larger than `size`, and more memory is not the way out."""

    def documents(self, record: int, lines: int) -> Documents:
        """No document, and what ends the run."""
        more = "more than " if self.hint else ""
        reason = f"a {self.what} of {more}{self.size:,} bytes is larger than the memory allows"
        found = TooLarge(record, 0, reason, "", self.size, self.hint)
        return Documents(np.empty(0, np.uint8), np.zeros(1, np.int64), lines=lines, rejects=[found])
