"""A local file that any number of threads read at any offset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.core import read_parts
from shardmill.errors import DamageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class OpenFile:
    """A file that any number of threads read at any offset; it is closed when nobody refers to it any more."""

    def __init__(self, path: Path) -> None:
        """Raise DamageError if it does not exist."""
        self._path, self._handle = path, -1
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise DamageError("the file is gone", place=str(path)) from None

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    @property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def fill(self, at: int, out: NDArray[np.uint8]) -> None:
        """Fill an array with the bytes from `at` on; DamageError if the file ends too early."""
        view = memoryview(out)  # type: ignore[arg-type,unused-ignore]
        while len(view):
            got = os.preadv(self._handle, [view], at)
            if not got:
                raise DamageError("the file ends too early", place=str(self._path))
            view, at = view[got:], at + got

    def fill_parts(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[np.uint8]
    ) -> None:
        """Read parts of the file, each to its place in an array; DamageError if the file ends too early."""
        if not read_parts(self._handle, starts, lengths, places, out):
            raise DamageError("the file ends too early", place=str(self._path))
