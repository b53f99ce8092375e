"""One file or stream to be read."""

from __future__ import annotations

from typing import NamedTuple

from shardmill.storage.addresses import scheme_of

STDIN = "-"


class Source(NamedTuple):
    """One file or stream to be read, as it stood when it was found."""

    name: str
    """As the user recognises it: the path as it was given or found, a URL without what may be a secret."""
    path: str
    """What is opened; of a URL it may hold a secret, and is never written."""
    size: int | None
    """Bytes on disk; None: a stream whose length nobody knows."""
    version: str
    """Nanoseconds of the last change, as text, or what a server tells its versions apart by; empty for a stream."""
    input_format: str = "auto"
    asked: str = ""
    """At the hub: the repository and the revision that were asked for, of which `name` has the commit."""

    @property
    def remote(self) -> bool:
        return "://" in self.path and bool(scheme_of(self.path))
