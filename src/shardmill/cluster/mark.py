"""A mark that the driver leaves in the output folder, so that a node can check that it sees the same folder."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from shardmill import __version__
from shardmill.errors import ShardmillError

_NAME = ".parts/driver"


@dataclass(frozen=True)
class Mark:
    """The mark, as it is sent to a node."""

    out: str
    in_store: bool
    """Whether `out` is the URL of an object store."""
    value: str
    version: str

    @classmethod
    def leave(cls, out: str) -> Mark:
        """Write a new mark. Raise OutputError or OSError if that fails."""
        # Imported here: a node reads a mark before anything else, and only one in a store needs these.
        from shardmill.storage import ObjectStore, is_url, write_whole

        mark = cls(out, is_url(out), secrets.token_hex(8), __version__)
        if mark.in_store:
            ObjectStore(out).put(_NAME, mark.value.encode())
        else:
            (Path(out) / _NAME).parent.mkdir(parents=True, exist_ok=True)
            write_whole(Path(out) / _NAME, mark.value.encode())
        return mark

    def problem(self) -> str:
        """Return what keeps this machine from making parts, or an empty string."""
        if self.version != __version__:
            return f"it has shardmill {__version__}, and the driver has {self.version}"
        try:
            found = self._read()
        except (OSError, ShardmillError) as why:
            return f"it cannot read {self.out}: {why}"
        return "" if found == self.value.encode() else f"its {self.out} is not the driver's"

    def _read(self) -> bytes | None:
        if self.in_store:
            from shardmill.storage import ObjectStore

            stored = ObjectStore(self.out).read(_NAME)
            return stored[0] if stored else None
        path = Path(self.out) / _NAME
        return path.read_bytes() if path.exists() else None
