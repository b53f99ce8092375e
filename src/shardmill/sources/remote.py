"""Finds the files that a URL names: one, those below a folder, or those that match a pattern, in a fixed order."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from shardmill.errors import UsageError
from shardmill.source_list import Sources
from shardmill.sources.finding import Owned, nothing_readable
from shardmill.sources.first_look import FirstLook
from shardmill.sources.hub import list_hub
from shardmill.sources.layouts import kinds_by_names
from shardmill.sources.names import WILDCARD, Choice, is_housekeeping, kind_of, split_pattern
from shardmill.sources.names import path_matches as _matches
from shardmill.storage import (
    BUCKETS,
    PARTIAL,
    WEB,
    Fetcher,
    HubAddress,
    ListedObject,
    PackedRows,
    Retries,
    Source,
    check_address,
    host_of,
    path_in,
    path_in_bucket,
    public_url,
    scheme_of,
    sorted_rows,
)

_MANIFEST = "manifest.json"  # where one lies, there may be a dataset
_log = logging.getLogger("shardmill")


def find_remote(
    spec: str,
    input_format: str,
    pinned: Mapping[str, str],
    cache: str | None = None,
    out: str = "",
    owned: Owned = lambda folder: (),
    *,
    choice: Choice,
    found: Sources,
) -> Iterator[Source]:
    """Yield the sources that a URL of the hub or of a bucket names.

    Raise UsageError when there is none, SourceError when a server refuses it.

    If the hub cannot be reached, an earlier listing is taken from the `cache`, if there is one. `out`: the URL of the
    output, which is skipped if it is below a folder or matches a pattern. Files in a bucket that are `owned` by a
    dataset are skipped too. `found`: is told what is not read, and which revision at the hub was asked for.
    """
    scheme = scheme_of(spec)
    if scheme not in ("hf", *WEB, *BUCKETS):
        known = ", ".join(f"`{one}://`" for one in ("hf", *WEB, *BUCKETS))
        hint = f"there are {known}, and files of this machine"
        raise UsageError(f"there is no kind of source `{scheme}://`", hint=hint)
    wanted = _Wanted(spec, input_format, choice, found)
    with Fetcher(retries=_LoggedRetries()) as fetcher:
        if scheme == "hf":
            yield from _at_hub(spec, wanted, pinned, cache, fetcher)
        else:
            yield from _in_bucket(spec, wanted, fetcher, out, owned)


def find_on_web(specs: Sequence[str], input_format: str) -> Iterator[Source]:
    """Yield the files with these web addresses. Their sizes are asked for at the same time, over a few connections."""
    for spec in specs:
        _check_web_address(spec)
    with Fetcher(retries=_LoggedRetries()) as fetcher:
        asked = [fetcher.submit(partial(fetcher.web.find, spec), public_url(spec)) for spec in specs]
        for spec, fetch in zip(specs, asked, strict=True):
            size, version = fetcher.wait(fetch)
            yield Source(public_url(spec), spec, size, version, input_format)


def _check_web_address(spec: str) -> None:
    """Raise UsageError when a web address names no file."""
    try:
        named = urlsplit(spec).port != 0 and urlsplit(spec).hostname
    except ValueError:  # half an IPv6 address, or a port that cannot be
        named = None
    if not named:
        raise UsageError("the address names no server", place=spec, hint="write `https://HOST/PATH`")
    # A `?` begins a query, so it is no wildcard.
    if re.search(r"[*[]", path_in(spec)) or path_in(spec).endswith("/"):
        hint = "name each file; folders and patterns are for files of this machine, the hub and buckets"
        raise UsageError("a web server does not list its files", place=public_url(spec), hint=hint)


class _LoggedRetries(Retries):
    """Logs retries, because there is no progress line yet when sources are listed."""

    def begin(self, reason: str, delay: float) -> None:
        super().begin(reason, delay)
        _log.warning("retrying: %s", reason)


class _Wanted(NamedTuple):
    """What is chosen from a list of files."""

    spec: str
    input_format: str
    choice: Choice
    found: Sources


def _at_hub(
    spec: str, wanted: _Wanted, pinned: Mapping[str, str], cache: str | None, fetcher: Fetcher
) -> Iterator[Source]:
    address = HubAddress.parse(spec)
    commit: str | None = address.revision if address.is_commit else pinned.get(address.requested)
    listing = list_hub(spec, address, commit, cache, fetcher)
    files: Iterable[ListedObject] = listing.files
    if [one.path for one in files] != [address.path]:
        files = _chosen(files, address.path, wanted, hub=True, card=listing.card)
    for one in files:
        name = listing.name(address, one.path)
        wanted.found.requested.setdefault(address.requested, name)
        yield Source(name, name, one.size, one.version, wanted.input_format)


def _in_bucket(spec: str, wanted: _Wanted, fetcher: Fetcher, out: str, owned: Owned) -> Iterator[Source]:
    check_address(spec)
    scheme, bucket, path = scheme_of(spec), host_of(spec), path_in_bucket(spec)
    if WILDCARD.search(bucket):
        raise UsageError("the address names no bucket", place=spec, hint=f"write `{scheme}://BUCKET/PATH`")
    root, pattern = split_pattern(path)
    single = None
    if path and not pattern and not spec.endswith("/"):
        single = fetcher.request(lambda: fetcher.bucket(spec).find(path), spec)
    if single is not None:
        found: Iterable[ListedObject] = [single]
    else:
        # Listing everything below takes a request per thousand objects; folder by folder it would be one per folder.
        deep = not pattern or "**" in pattern or "/" in pattern

        def is_needed(name: str) -> bool:
            return not pattern or name.endswith(_MANIFEST) or _matches(name.split("/"), path.split("/"))

        rows = fetcher.retry(lambda: fetcher.bucket(spec).list(root, is_needed, deep=deep), spec)
        same = (scheme_of(out), host_of(out)) == (scheme, bucket)
        inside = path_in_bucket(out) + "/"
        below_root = same and inside.startswith(f"{root}/" if root else "") and inside.rstrip("/") != root
        left_out = inside if below_root else "\0"  # which no name begins with
        # Millions of them stay packed; what is made of them passes one by one.
        folders = {folder for folder, name in map(_folder_and_name, rows) if name == _MANIFEST}
        folders = {folder for folder in folders if not f"{folder}/".startswith(left_out)}
        if same and f"{root}/".startswith(inside):  # it may be unfinished
            folders.add(inside.rstrip("/"))
        skipped = {
            f"{folder}/{name}".lstrip("/")
            for folder in folders
            for name in owned(f"{scheme}://{bucket}/{folder}".rstrip("/"))
        }

        def is_kept(name: str) -> bool:
            return not name.startswith(left_out) and not (skipped and (name in skipped or name.endswith(PARTIAL)))

        found = _chosen((ListedObject._make(row) for row in rows if is_kept(row[0])), path, wanted)
    for one in found:
        name = f"{scheme}://{bucket}/{one.path}"
        yield Source(name, name, one.size, one.version, wanted.input_format)


def _folder_and_name(row: tuple[Any, ...]) -> tuple[str, str]:
    folder, _, name = row[0].rpartition("/")
    return folder, name


class _Names(Collection[str]):
    """The paths of sorted files, relative to their folder, made of packed rows as they are asked for."""

    def __init__(self, rows: PackedRows, skip: int) -> None:
        self._rows, self._skip = rows, skip

    def __iter__(self) -> Iterator[str]:
        return (row[0][self._skip :].replace("\0", "/") for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return any(one == name for one in self)


def _chosen(
    found: Iterable[ListedObject], path: str, wanted: _Wanted, *, hub: bool = False, card: str = ""
) -> Iterator[ListedObject]:
    """Yield the files that a pattern or folder names, by the rules for local files, and in the same order."""
    spec, choice, skipped = public_url(wanted.spec), wanted.choice, wanted.found.skipped
    if WILDCARD.search(path):
        fixed = len(split_pattern(path)[0].split("/")) if split_pattern(path)[0] else 0
        matching = chosen = 0
        for one in map(
            ListedObject._make, sorted_rows(one for one in found if _matches(one.path.split("/"), path.split("/")))
        ):
            matching += 1
            if not choice.given or choice.wants("/".join(one.path.split("/")[fixed:])):
                chosen += 1
                yield one
            else:
                skipped.add("excluded file", one.path)
        if not chosen:
            hint = "`--include` and `--exclude` leave nothing" if matching else None
            raise UsageError("nothing matches the pattern", place=spec, hint=hint)
        return
    below = f"{path}/" if path else ""
    # NUL is in no name, and sorts before everything: so folders come in the order of their names.
    inside = PackedRows(
        sorted_rows((one.path.replace("/", "\0"), *one[1:]) for one in found if one.path.startswith(below))
    )
    if not len(inside):
        raise UsageError("the source is not there", place=spec)
    before, look = skipped.files, FirstLook(wanted.input_format, "")
    relative = _Names(inside, len(below))
    kind_in_layout = None
    if wanted.input_format == "auto" and not choice.include:
        kind_in_layout = kinds_by_names(relative, f"`{spec}`", choice, skipped, hub=hub, card=card)
    chosen = 0
    for row, name in zip(inside, relative, strict=True):
        hidden = [segment for segment in name.split("/") if segment[:1] in "._"]
        if any(map(is_housekeeping, hidden)):
            continue
        kind = "hidden file" if hidden else "" if choice.wants(name) else "excluded file"
        if not kind and not choice.include and not look.is_readable_name(name):
            kind = kind_of(name)
        if kind := kind or (kind_in_layout(name) if kind_in_layout else ""):
            skipped.add(kind, below + name)
        else:
            chosen += 1
            yield ListedObject(below + name, *row[1:])
    if not chosen:
        raise nothing_readable(spec, skipped, skipped.files - before, choice)
