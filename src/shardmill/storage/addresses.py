"""URLs of sources: which are known, what may be shown of them, and what those of the hub are made of."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from shardmill.errors import UsageError

WEB = ("http", "https")
# Scheme → the kind of object store, which is also the extra that brings its library.
BUCKETS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPECIAL_REF = re.compile(r"refs/(?:convert|pr)/[^/]+")


def scheme_of(spec: str) -> str:
    """The scheme of a URL in lower case; empty for a path of this machine, `C:\\file` included."""
    scheme, colon, _ = spec.partition("://")
    return scheme.lower() if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme) else ""


def host_of(url: str) -> str:
    """What stands between the scheme and the first slash: a host, a bucket."""
    return url.partition("://")[2].partition("/")[0]


def shown(url: str) -> str:
    """A URL without what may be a secret: the user's name and password, and on the web the query and the fragment."""
    scheme, host = scheme_of(url), host_of(url)
    if scheme in WEB:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    # A key may hold slashes: then the host ends before the `@`.
    if scheme and (":" in host or ("@" in host and not scheme.startswith("abfs"))):
        return f"{scheme}://{url.rpartition('@')[2] if '@' in url else '…'}"
    return url


def path_in(url: str) -> str:
    """The path of a web address without its query; other names as they are."""
    return unquote(urlsplit(url).path) if scheme_of(url) in WEB else url


class HubAddress(NamedTuple):
    """`hf://datasets/owner/name@revision/path`."""

    repo: str
    revision: str
    """As it was written; empty: none was, which means `main`."""
    path: str
    """A file, a folder or a pattern in the repository."""

    @property
    def asked(self) -> str:
        """The repository and the revision that was asked for, as a key."""
        return f"hf://datasets/{self.repo}@{self.revision or 'main'}"

    @property
    def is_commit(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None

    def named(self, commit: str, path: str) -> str:
        """The URL of a file at a commit."""
        return f"hf://datasets/{self.repo}@{commit}/{path}"

    @classmethod
    def parse(cls, url: str) -> HubAddress:
        """UsageError when it is not the address of a dataset."""
        rest = url.partition("://")[2].strip("/")
        kind, _, rest = rest.partition("/")
        if kind != "datasets":
            raise UsageError("only datasets are read from the hub", place=shown(url), hint=_HINT)
        owner, _, rest = rest.partition("/")
        name, slash, path = rest.partition("/")
        name, at, revision = name.partition("@")
        if at and slash and (special := _SPECIAL_REF.match(f"{revision}/{path}")):
            revision, path = special[0], f"{revision}/{path}"[special.end() :].lstrip("/")
        if not owner or not name or "@" in owner or (at and not revision):
            raise UsageError("the address names no dataset", place=shown(url), hint=_HINT)
        return cls(f"{owner}/{name}", unquote(revision), path.strip("/"))


_HINT = "write `hf://datasets/OWNER/NAME/PATH`, with `@REVISION` after the name if it is not `main`"


def hub_url(endpoint: str, address: HubAddress) -> str:
    """Where the hub gives the bytes of a file."""
    revision = quote(address.revision, safe="")
    return f"{endpoint}/datasets/{address.repo}/resolve/{revision}/{quote(address.path)}"
