"""Where a dataset or token files are: a folder of this machine, or a URL whose files are read by ranges."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from shardmill import arguments
from shardmill.errors import SourceError, UsageError
from shardmill.sources import list_hub
from shardmill.storage import (
    BUCKETS,
    WEB,
    AnyPath,
    Fetcher,
    HubAddress,
    RemoteFolder,
    RemotePath,
    Source,
    check_address,
    host_of,
    path_in_bucket,
    public_url,
    scheme_of,
)
from shardmill.units import parse_bytes
from shardmill.write import MANIFEST, user_cache

CACHE_SIZE = "10GB"
_DEPTH = 2  # folders of a dataset do not have folders


class _Cache(NamedTuple):
    folder: Path
    limit: int


def open_place(
    named: str | os.PathLike[str], cache: str | os.PathLike[str] | None = None, cache_size: int | str = CACHE_SIZE
) -> AnyPath:
    """Return a folder, or the files below a URL, which stay in the version in which they are now.

    `cache`: the folder in which blocks of remote files are kept, by default one in the user's cache; `cache_size`: how
    many bytes of them. Raise UsageError for a URL that is none, SourceError when a server refuses it.
    """
    named = arguments.path("folder", named)
    kept = _Cache(
        Path(user_cache() if cache is None else arguments.path("cache", cache)),
        parse_bytes(arguments.amount("cache_size", cache_size)),
    )
    scheme = scheme_of(named)
    if not scheme and "://" not in named:
        return Path(named)
    if scheme not in ("hf", *WEB, *BUCKETS):
        known = ", ".join(f"`{one}://`" for one in ("hf", *WEB, *BUCKETS))
        raise UsageError(f"nothing is read from `{scheme}://`", hint=f"there are {known}, and folders of this machine")
    if scheme in WEB:
        return _on_web(named, kept)
    with Fetcher() as fetcher:
        return _at_hub(named, kept, fetcher) if scheme == "hf" else _in_bucket(named, kept, fetcher)


def _at_hub(url: str, kept: _Cache, fetcher: Fetcher) -> RemotePath:
    address = HubAddress.parse(url)
    listing = list_hub(url, address, address.revision if address.is_commit else None, fetcher)
    root = listing.name(address, address.path).rstrip("/")
    files = {}
    for path, size, version in listing.files:
        name = listing.name(address, path)
        files[path] = Source(name, name, size, version)
    return _below(address.path, root, files, kept)


def _in_bucket(url: str, kept: _Cache, fetcher: Fetcher) -> RemotePath:
    check_address(url)
    scheme, bucket, root = scheme_of(url), host_of(url), path_in_bucket(url)
    below = f"{root}/" if root else ""

    def is_needed(path: str) -> bool:
        inside = path.removeprefix(below)
        return inside.count("/") < _DEPTH and not inside.startswith(".")

    alone = root and not url.endswith("/") and fetcher.request(lambda: fetcher.bucket(url).find(root), url)
    found = [alone] if alone else fetcher.retry(lambda: fetcher.bucket(url).list(root, is_needed), url)
    files = {}
    for path, size, version in found:
        name = f"{scheme}://{bucket}/{path}"
        files[path] = Source(name, name, size, str(version))
    return _below(root, f"{scheme}://{bucket}/{root}".rstrip("/"), files, kept)


def _below(root: str, url: str, files: dict[str, Source], kept: _Cache) -> RemotePath:
    """The folder `root` with some files, by their paths from the top on; or the file `root`, if it is one."""
    if not files:
        raise UsageError("there is nothing at this address", place=url, hint="check its name")
    if list(files) == [root]:
        folder, _, name = url.rpartition("/")
        return RemotePath(RemoteFolder(folder, *kept, {name: files[root]}), name)
    below = f"{root}/" if root else ""
    inside = {path[len(below) :]: source for path, source in files.items() if path.startswith(below)}
    return RemotePath(RemoteFolder(url, *kept, inside))


def _on_web(url: str, kept: _Cache) -> RemotePath:
    """A web server does not list its files: a dataset is known by its manifest, and all else is a file."""
    parts = urlsplit(url)
    if not parts.query:
        folder = RemoteFolder(url, *kept)
        if folder.find(MANIFEST) is not None:
            return RemotePath(folder)
    above, _, name = parts.path.rstrip("/").rpartition("/")
    with Fetcher() as fetcher:
        try:
            size, version = fetcher.request(lambda: fetcher.web.find(url), public_url(url))
        except SourceError as error:
            if error.message not in ("the source is not there", "the address is that of a folder"):
                raise
            raise UsageError(
                f"`{public_url(url)}` is not a dataset: it has no {MANIFEST}",
                hint="name the folder of a dataset, or a token file: a web server does not list its files",
            ) from None
    parent = urlunsplit(parts._replace(path=above, query="", fragment=""))
    return RemotePath(RemoteFolder(parent, *kept, {name: Source(public_url(url), url, size, version)}), name)
