"""The compiled core as an engine: a chunk of rows in one call, in memory that does not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import core
from shardmill.core import CACHE, SCHEMES, Encoder, Model, room

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens.schemes import Scheme

BYTES = -(-CACHE // (2 << 20)) * (2 << 20)
"""What an encoder takes: its cache, in whole huge pages."""


def knows(scheme: Scheme | None) -> bool:
    """Whether the core is there and splits text by this scheme."""
    return scheme is not None and scheme.name in SCHEMES and core.available()


class CoreBackend:
    """An encoder of the core. All encoders of a tokenizer share its model."""

    def __init__(self, model: Model, dtype: np.dtype[Any]) -> None:
        self._encoder = Encoder(model, dtype=dtype)
        self._room = np.empty(0, dtype)

    def rows(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], gap: int
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all rows, one more after each that means nothing, and where each row begins."""
        # One buffer for all calls: what is handed on is as large as its tokens, not as large as its text.
        if len(self._room) < room(offsets):
            self._room = np.empty(room(offsets), self._encoder.dtype)
        ids, counts = self._encoder.encode(data, offsets, gap, eot=0, where="after", out=self._room)
        bounds = np.zeros(len(offsets), np.int64)
        np.cumsum(counts, out=bounds[1:])
        return ids.copy(), bounds
