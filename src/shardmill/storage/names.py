"""The parts of a URL, and what may be shown of it; the endings of a file's name."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from shardmill.errors import UsageError

WEB = ("http", "https")
# Scheme → the kind of object store, which is also the extra that brings its library.
BUCKETS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
COMPRESSION_ENDINGS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd", "bz2": "bzip2", "xz": "xz"}


def scheme_of(spec: str) -> str:
    """Return the scheme of a URL in lower case; empty for a local path, `C:\\file` included."""
    scheme, colon, _ = spec.partition("://")
    return scheme.lower() if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme) else ""


def host_of(url: str) -> str:
    """Return the part between the scheme and the first slash: a host or a bucket."""
    return url.partition("://")[2].partition("/")[0]


def public_url(url: str) -> str:
    """Return a URL without possible secrets: user name and password, and on the web the query and the fragment."""
    scheme, host = scheme_of(url), host_of(url)
    if scheme in WEB:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    # A key may contain slashes, so everything up to the `@` is removed.
    if scheme and (":" in host or ("@" in host and not scheme.startswith("abfs"))):
        return f"{scheme}://{url.rpartition('@')[2] if '@' in url else '…'}"
    return url


def path_in(url: str) -> str:
    """Return the path of a web address without its query; other names as they are."""
    return unquote(urlsplit(url).path) if scheme_of(url) in WEB else url


class HubAddress(NamedTuple):
    """`hf://datasets/owner/name@revision/path`, or `hf://buckets/owner/name/path`."""

    repo: str
    revision: str
    """As the user wrote it; empty if there is none, which means `main`."""
    path: str
    """A file, a folder or a pattern in the repository."""
    kind: str = "datasets"
    """`datasets`, or `buckets`, which have no revisions."""

    @property
    def requested(self) -> str:
        """The repository and the revision as the user gave them, as a key."""
        return f"hf://{self.kind}/{self.repo}@{self.revision or 'main'}"

    @property
    def is_commit(self) -> bool:
        return re.fullmatch(r"[0-9a-f]{40}", self.revision) is not None

    @classmethod
    def parse(cls, url: str) -> HubAddress:
        """Raise UsageError when it is not the address of a dataset."""
        rest = url.partition("://")[2].strip("/")
        kind, _, rest = rest.partition("/")
        hint = "write `hf://datasets/OWNER/NAME/PATH`, with `@REVISION` after the name if it is not `main`"
        if kind not in ("datasets", "buckets"):
            raise UsageError("only datasets and buckets are read from the hub", place=public_url(url), hint=hint)
        owner, _, rest = rest.partition("/")
        name, slash, path = rest.partition("/")
        name, at, revision = name.partition("@")
        if at and slash and (special := re.match(r"refs/(?:convert|pr)/[^/]+", f"{revision}/{path}")):
            revision, path = special[0], f"{revision}/{path}"[special.end() :].lstrip("/")
        if not owner or not name or "@" in owner or (at and not revision):
            raise UsageError("the address names no dataset", place=public_url(url), hint=hint)
        if at and kind == "buckets":
            raise UsageError("a bucket has no revisions", place=public_url(url), hint="leave out what follows the `@`")
        return cls(f"{owner}/{name}", unquote(revision), path.strip("/"), kind)


@lru_cache(4)  # it is called three times in a row for each source
def endings(path: str) -> tuple[str, str]:
    """Return the ending that shows the format and the one that shows the compression; empty if there is none."""
    name = os.path.basename(path_in(path)).lower()
    stem, _, ending = name.rpartition(".")
    compression = ""
    if stem and ending in COMPRESSION_ENDINGS:
        compression = ending
        stem, _, ending = stem.rpartition(".")
    return (ending if stem else ""), compression


def compression_of(path: str) -> str:
    """Return the compression that the name shows, or an empty text."""
    return COMPRESSION_ENDINGS.get(endings(path)[1], "")
