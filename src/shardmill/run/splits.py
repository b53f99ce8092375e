"""Which document goes to which split.

Unless `--val` says otherwise, a document's split is a function of its text and the seed, never of its place. Duplicates
have the same hash, so they are in the same split, and the split of a document does not change when files are added,
renamed or divided differently. The hash covers only the first 64 KiB, so the split of a document that does not fit into
memory is known from its first piece. Of these bytes it covers 16 words of eight bytes, spread evenly (all of a text of
up to 128 bytes), which takes less than a microsecond per document. Documents that differ only elsewhere are in the same
split, which is right for near-duplicates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardmill.core import content_hash
from shardmill.documents import SPAN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Documents
    from shardmill.options import Val

PREFIX = SPAN
"""Bytes that decide the split, of a span as of a document."""


def val_rows(documents: Documents, val: Val, seed: int) -> NDArray[np.bool_]:
    """Which rows go to val: by their place in the source, by their content, or none."""
    if documents.tail is not None:
        return documents.tail
    if val.fraction:
        return in_val(documents.data, documents.offsets, val.fraction, seed, len(documents.gap))
    return np.zeros(len(documents), dtype=np.bool_)


def in_val(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], fraction: float, seed: int, gap: int = 0
) -> NDArray[np.bool_]:
    """For each row data[offsets[i] : offsets[i+1] - gap] whether its content puts it into val."""
    if fraction >= 1:
        return np.ones(len(offsets) - 1, dtype=np.bool_)
    return content_hash(data, offsets, seed, gap) < np.uint64(int(fraction * 2.0**64))
