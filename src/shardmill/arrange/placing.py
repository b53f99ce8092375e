"""Moves end-of-text tokens from where a dataset has them to where an output wants them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.core import gathered
from shardmill.write import Rows, Stream, eot_places

if TYPE_CHECKING:
    from numpy.typing import NDArray


def place_eot(
    split: str,
    rows: Rows,
    tokens: NDArray[Any],
    stored: str,
    eot_id: int | None,
    wanted: Iterable[str],
    *,
    mend: bool = False,
) -> dict[str, Stream]:
    """Return the rows of a split with EOT in each of the `wanted` places; `stored`: where it is in `tokens`.

    `mend`: where it stays in its place, documents that have none get one too, because others will stand beside them.
    """
    streams = {}
    for eot in wanted:
        kept = eot == stored or eot_id is None
        if kept and mend and eot_id is not None:
            kept = bool((_marked(rows, tokens, stored, eot_id) == eot_places(rows, eot)).all())
        found, moved = (rows, tokens) if kept else _moved(rows, tokens, stored, eot_id or 0, eot)
        streams[eot] = Stream(found, {split: moved} if len(moved) else {})
    return streams


def _marked(rows: Rows, tokens: NDArray[Any], stored: str, eot_id: int) -> NDArray[np.bool_]:
    """Which rows have an end-of-text token; one of a document that was cut may have none."""
    ends = np.cumsum(rows.length)
    found = eot_places(rows, stored) & (rows.length > 0)
    found[found] = tokens[(ends - 1 if stored == "after" else ends - rows.length)[found]] == eot_id
    return found


def _moved(rows: Rows, tokens: NDArray[Any], stored: str, eot_id: int, eot: str) -> tuple[Rows, NDArray[Any]]:
    found, begins = _marked(rows, tokens, stored, eot_id), np.cumsum(rows.length) - rows.length
    # Each row is a stretch of text and a mark, in one or the other order; the mark is copied from behind the tokens.
    text, mark = (1, 0) if eot == "before" else (0, 1)
    starts, lengths = np.empty((len(rows), 2), np.int64), np.empty((len(rows), 2), np.int64)
    starts[:, text], starts[:, mark] = begins + found if stored == "before" else begins, len(tokens)
    lengths[:, text], lengths[:, mark] = rows.length - found, eot_places(rows, eot)
    data, width = np.append(tokens, tokens.dtype.type(eot_id)).view(np.uint8), tokens.itemsize
    moved = gathered(data, starts.reshape(-1) * width, lengths.reshape(-1) * width).view(tokens.dtype)
    rows = replace(rows, length=lengths.sum(axis=1))
    # A document that was only an end-of-text token is none where these are left out.
    empty = (rows.length == 0) & rows.opens & rows.closes
    return (rows[~empty] if empty.any() else rows), moved
