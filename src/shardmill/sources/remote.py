"""Finds the files that a URL names: one, those below a folder, or those that match a pattern, in a fixed order."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from shardmill.errors import SourceError, UsageError
from shardmill.source_list import Sources
from shardmill.sources.finding import Owned, nothing_readable
from shardmill.sources.first_look import FirstLook
from shardmill.sources.layouts import kinds_by_names
from shardmill.sources.names import Choice, is_housekeeping, kind_of
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
    Transient,
    Unreachable,
    check_address,
    host_of,
    path_in,
    path_in_bucket,
    public_url,
    scheme_of,
    sorted_rows,
    write_whole,
    writing_to,
)

_WILDCARD = re.compile(r"[*?[]")
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
    """Yield the sources that a URL names; raise UsageError when there is none, SourceError when a server refuses it.

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
        elif scheme in WEB:
            yield from _on_web(spec, wanted, fetcher)
        else:
            yield from _in_bucket(spec, wanted, fetcher, out, owned)


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
    key = hashlib.sha256(f"{address.requested}\n{address.path}".encode()).hexdigest()[:24]
    listing = Path(cache) / "listings" / f"{key}.json" if cache else None
    listed, found = _read_listing(listing)
    if commit is None or commit != listed:
        if listed:  # there is an earlier listing, so there is no need to wait long
            fetcher.policy = replace(fetcher.policy, tries=min(fetcher.policy.tries, 3))
        try:
            commit, found = _hub_files(spec, address, commit, fetcher)
            if listing is not None:
                with writing_to(listing):
                    listing.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(listing, json.dumps({"commit": commit, "files": found}).encode())
        except Unreachable as error:
            if commit is not None or not listed:
                raise
            commit = listed
            _log.warning(
                "%s: %s; the commit %s is taken, as it was listed before", address.requested, error.message, commit
            )
    named = [one.path for one in found] == [address.path]
    for one in found if named else _chosen(found, address.path, wanted, hub=True):
        name = f"hf://datasets/{address.repo}@{commit}/{one.path}"
        wanted.found.requested.setdefault(address.requested, name)
        yield Source(name, name, one.size, one.version, wanted.input_format)


def _read_listing(path: Path | None) -> tuple[str, list[ListedObject]]:
    """The commit and the files of a listing in the cache; empty if there is none."""
    try:
        if path is not None:
            record = json.loads(path.read_bytes())
            return record["commit"], [ListedObject(*one) for one in record["files"]]
    except FileNotFoundError:
        return "", []
    except (OSError, ValueError, KeyError, TypeError):
        # It is ignored, and written again when the hub answers.
        _log.warning("a list in the cache cannot be read: %s", path)
    return "", []


def _hub_files(spec: str, address: HubAddress, commit: str | None, fetcher: Fetcher) -> tuple[str, list[ListedObject]]:
    """The commit, and the files that the address may name; raises Unreachable when the hub does not answer."""

    def listed() -> tuple[str, list[ListedObject]]:
        try:
            return _list_hub(spec, address, commit, fetcher)
        except (KeyError, TypeError, ValueError):
            message = "the hub's response does not have the expected form"
            hint = "check HF_ENDPOINT if it is set, and whether there is a proxy"
            raise Transient(message, tries=3, error=SourceError(message, place=public_url(spec), hint=hint)) from None

    return fetcher.retry(listed, public_url(spec))


def _list_hub(spec: str, address: HubAddress, commit: str | None, fetcher: Fetcher) -> tuple[str, list[ListedObject]]:
    """Ask the hub for the commit and the files; KeyError, TypeError or ValueError if its response has another form."""
    repo = f"datasets/{quote(address.repo)}"

    def ask(path: str, form: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        return fetcher.request(lambda: fetcher.web.ask_hub_api(spec, path, form), public_url(spec))

    if commit is None:
        commit = _as_text(ask(f"{repo}/revision/{quote(address.revision or 'main', safe='')}")[0]["sha"])
    found: list[ListedObject] = []
    if address.path and not _WILDCARD.search(address.path):
        found = _hub_entries(ask(f"{repo}/paths-info/{commit}", {"paths": [address.path], "expand": False})[0])
    if not found:
        root, pattern = _split_pattern(address.path)
        deep = not pattern or "**" in pattern or "/" in pattern
        page = f"{repo}/tree/{commit}{'/' if root else ''}{quote(root)}?recursive={deep}&expand=False"
        listed = set[str]()
        while page:
            some, following = ask(page)
            if listed and not some:  # though the page before it promised more
                some, following = ask(page)
            files, names = _hub_entries(some), {_as_text(entry["path"]) for entry in some}
            twice = len(names) < len(some) or any(one.path in listed for one in files)
            if twice or (following and names <= listed):
                # It has no end, or a page came in place of another one, whose files would be missing.
                message, hint = "the hub's list repeats itself", "run the same command again when the hub is well"
                raise Transient(message, tries=3, error=SourceError(message, place=public_url(spec), hint=hint))
            found += files
            listed |= names
            page = following
    return commit, found


def _hub_entries(answer: Any) -> list[ListedObject]:
    """The files of one page of a list."""
    if not isinstance(answer, list):
        raise TypeError(answer)
    files = [
        ListedObject(_as_text(entry["path"]), int(entry["size"]), _as_text((entry.get("lfs") or entry)["oid"]))
        for entry in answer
        if entry["type"] == "file"
    ]
    if any(one.size < 0 or ".." in one.path.split("/") for one in files):
        raise ValueError(answer)
    return files


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _on_web(spec: str, wanted: _Wanted, fetcher: Fetcher) -> Iterator[Source]:
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
    size, version = fetcher.request(partial(fetcher.web.find, spec), public_url(spec))
    yield Source(public_url(spec), spec, size, version, wanted.input_format)


def _in_bucket(spec: str, wanted: _Wanted, fetcher: Fetcher, out: str, owned: Owned) -> Iterator[Source]:
    check_address(spec)
    scheme, bucket, path = scheme_of(spec), host_of(spec), path_in_bucket(spec)
    if _WILDCARD.search(bucket):
        raise UsageError("the address names no bucket", place=spec, hint=f"write `{scheme}://BUCKET/PATH`")
    root, pattern = _split_pattern(path)
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

        rows = fetcher.request(lambda: fetcher.bucket(spec).list(root, is_needed, deep=deep), spec, inf)
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


def _chosen(found: Iterable[ListedObject], path: str, wanted: _Wanted, *, hub: bool = False) -> Iterator[ListedObject]:
    """Yield the files that a pattern or folder names, by the rules for local files, and in the same order."""
    spec, choice, skipped = public_url(wanted.spec), wanted.choice, wanted.found.skipped
    if _WILDCARD.search(path):
        fixed = len(_split_pattern(path)[0].split("/")) if _split_pattern(path)[0] else 0
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
    by_layout = wanted.input_format == "auto" and not choice.include
    kind_in_layout = kinds_by_names(relative, f"`{spec}`", skipped, hub=hub) if by_layout else lambda name: ""
    chosen = 0
    for row, name in zip(inside, relative, strict=True):
        hidden = [segment for segment in name.split("/") if segment[:1] in "._"]
        if any(map(is_housekeeping, hidden)):
            continue
        kind = "hidden file" if hidden else "" if choice.wants(name) else "excluded file"
        if not kind and not choice.include and not look.is_readable_name(name):
            kind = kind_of(name)
        if kind := kind or kind_in_layout(name):
            skipped.add(kind, below + name)
        else:
            chosen += 1
            yield ListedObject(below + name, *row[1:])
    if not chosen:
        raise nothing_readable(spec, skipped, skipped.files - before, choice)


def _split_pattern(path: str) -> tuple[str, str]:
    """The folder above the first segment with a wildcard, and the pattern below it; no pattern: the path itself."""
    segments = path.split("/")
    for i, segment in enumerate(segments):
        if _WILDCARD.search(segment):
            return "/".join(segments[:i]), "/".join(segments[i:])
    return path.rstrip("/"), ""
