"""Finds the files that a URL names: one, those below a folder, or those that match a pattern, in a fixed order."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from shardmill.errors import SourceError, UsageError
from shardmill.sources.finding import Owned, is_readable_name, nothing_readable
from shardmill.storage import (
    BUCKETS,
    PARTIAL,
    WEB,
    Fetcher,
    HubAddress,
    ListedObject,
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
    write_whole,
    writing_to,
)

_WILDCARD = re.compile(r"[*?[]")
_MANIFEST = "manifest.json"  # where one lies, there may be a dataset
_MAX_DEPTH = 64  # nested folders: with more than that, links lead round in a circle
_log = logging.getLogger("shardmill")


def find_remote(
    spec: str,
    input_format: str,
    pinned: Mapping[str, str],
    cache: str | None = None,
    out: str = "",
    owned: Owned = lambda folder: (),
) -> list[Source]:
    """Return the sources that a URL names; raise UsageError when there is none, SourceError when a server refuses it.

    If the hub cannot be reached, an earlier listing is taken from the `cache`, if there is one. `out`: the URL of the
    output, which is skipped if it is below a folder or matches a pattern. Files in a bucket that are `owned` by a
    dataset are skipped too.
    """
    scheme = scheme_of(spec)
    with Fetcher(retries=_LoggedRetries()) as fetcher:
        if scheme == "hf":
            return list(_at_hub(spec, input_format, pinned, cache, fetcher))
        if scheme in WEB:
            return list(_on_web(spec, input_format, fetcher))
        if scheme in BUCKETS:
            return list(_in_bucket(spec, input_format, fetcher, out, owned))
    known = ", ".join(f"`{one}://`" for one in ("hf", *WEB, *BUCKETS))
    raise UsageError(f"there is no kind of source `{scheme}://`", hint=f"there are {known}, and files of this machine")


class _LoggedRetries(Retries):
    """Logs retries, because there is no progress line yet when sources are listed."""

    def begin(self, reason: str, delay: float) -> None:
        super().begin(reason, delay)
        _log.warning("retrying: %s", reason)


def _at_hub(
    spec: str, input_format: str, pinned: Mapping[str, str], cache: str | None, fetcher: Fetcher
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
    if [one.path for one in found] != [address.path]:
        # The card at the root of a dataset is about the text, not part of it.
        keep_card = _WILDCARD.search(address.path)
        found = [one for one in found if keep_card or one.path != "README.md"]
        found = _chosen(found, address.path, spec, input_format)
    for one in found:
        name = f"hf://datasets/{address.repo}@{commit}/{one.path}"
        yield Source(name, name, one.size, one.version, input_format, address.requested)


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

    def listed(_: float) -> tuple[str, list[ListedObject]]:
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


def _on_web(spec: str, input_format: str, fetcher: Fetcher) -> Iterator[Source]:
    try:
        named = urlsplit(spec).port != 0 and urlsplit(spec).hostname
    except ValueError:  # half an IPv6 address, or a port that cannot be
        named = None
    if not named:
        raise UsageError("the address names no server", place=spec, hint="write `https://HOST/PATH`")
    path = path_in(spec)
    # A `?` begins a query, so it is no wildcard: a pattern on the web has `*` or `[…]` in its path.
    if re.search(r"[*[]", path) or path.endswith("/"):
        if "?" in spec:
            raise UsageError("a folder or pattern on the web cannot have a query", place=public_url(spec))
        host = spec[: spec.index("/", spec.index("://") + 3)]
        root, pattern = _split_pattern(spec[len(host) :])
        found = [ListedObject(f"{root}/{link}", 0, "") for link in _web_list(fetcher, f"{host}{root}/", pattern)]
        chosen = _chosen(found, f"{root}/{pattern}" if pattern else root, spec, input_format)
        urls = [host + one.path for one in chosen]
    else:
        urls = [spec]
    for url in urls:
        size, version = fetcher.request(partial(fetcher.web.find, url), public_url(url))
        yield Source(public_url(url), url, size, version, input_format)


def _web_list(fetcher: Fetcher, root: str, pattern: str) -> Iterator[str]:
    """The files below a folder on the web, relative to it, that may match. Raises if an index page cannot be read."""
    levels = pattern.split("/")

    def is_entered(folder: list[str]) -> bool:
        if "**" in pattern or not pattern:
            return folder[-1][0] not in ("." if pattern else "._")
        return len(folder) < len(levels) and _matches(folder, levels[: len(folder)])

    pending, seen = [""], set[str]()
    while pending:
        folder = pending.pop()
        if folder.count("/") > _MAX_DEPTH:
            raise SourceError(f"folders lie more than {_MAX_DEPTH} deep in each other", place=public_url(root + folder))
        for link in fetcher.request(partial(fetcher.web.links, root + folder), public_url(root + folder)):
            if (name := folder + link) in seen:  # an index may also link to what is deeper
                continue
            seen.add(name)
            if not link.endswith("/"):
                yield name
            elif all(link.rstrip("/").split("/")) and is_entered(name.rstrip("/").split("/")):
                pending.append(name)


def _in_bucket(spec: str, input_format: str, fetcher: Fetcher, out: str, owned: Owned) -> Iterator[Source]:
    check_address(spec)
    scheme, bucket, path = scheme_of(spec), host_of(spec), path_in_bucket(spec)
    if _WILDCARD.search(bucket):
        raise UsageError("the address names no bucket", place=spec, hint=f"write `{scheme}://BUCKET/PATH`")
    root, pattern = _split_pattern(path)
    single = None
    if path and not pattern and not spec.endswith("/"):
        single = fetcher.request(lambda: fetcher.bucket(spec).find(path), spec)
    if single is not None:
        found = [single]
    else:
        # Listing everything below takes a request per thousand objects; folder by folder it would be one per folder.
        deep = not pattern or "**" in pattern or "/" in pattern

        def wanted(name: str) -> bool:
            return not pattern or name.endswith(_MANIFEST) or _matches(name.split("/"), path.split("/"))

        found = fetcher.request(lambda: fetcher.bucket(spec).list(root, wanted, deep=deep), spec)
        same = (scheme_of(out), host_of(out)) == (scheme, bucket)
        inside = path_in_bucket(out) + "/"
        if same and inside.startswith(f"{root}/" if root else "") and inside.rstrip("/") != root:
            found = [one for one in found if not one.path.startswith(inside)]
        folders = {folder for folder, name in map(_folder_and_name, found) if name == _MANIFEST}
        if same and f"{root}/".startswith(inside):  # it may be unfinished
            folders.add(inside.rstrip("/"))
        skipped = {
            f"{folder}/{name}".lstrip("/")
            for folder in folders
            for name in owned(f"{scheme}://{bucket}/{folder}".rstrip("/"))
        }
        found = [one for one in found if not (skipped and (one.path in skipped or one.path.endswith(PARTIAL)))]
        found = _chosen(found, path, spec, input_format)
    for one in found:
        name = f"{scheme}://{bucket}/{one.path}"
        yield Source(name, name, one.size, one.version, input_format)


def _folder_and_name(one: ListedObject) -> tuple[str, str]:
    folder, _, name = one.path.rpartition("/")
    return folder, name


def _chosen(found: list[ListedObject], path: str, spec: str, input_format: str) -> list[ListedObject]:
    """The files that a pattern or folder names, by the rules for local files, and in the same order."""
    if _WILDCARD.search(path):
        chosen = sorted(one for one in found if _matches(one.path.split("/"), path.split("/")))
        if not chosen:
            raise UsageError("nothing matches the pattern", place=public_url(spec))
        return chosen
    below = f"{path}/" if path else ""
    inside = [one for one in found if one.path.startswith(below)]
    visible = [one for one in inside if not any(s[:1] in "._" for s in one.path[len(below) :].split("/"))]
    chosen = [one for one in visible if input_format != "auto" or is_readable_name(one.path)]
    if not inside:
        raise UsageError("the source is not there", place=public_url(spec))
    if not chosen:
        raise nothing_readable(public_url(spec), len(visible))
    return sorted(chosen, key=lambda one: one.path.split("/"))


def _split_pattern(path: str) -> tuple[str, str]:
    """The folder above the first segment with a wildcard, and the pattern below it; no pattern: the path itself."""
    segments = path.split("/")
    for i, segment in enumerate(segments):
        if _WILDCARD.search(segment):
            return "/".join(segments[:i]), "/".join(segments[i:])
    return path.rstrip("/"), ""


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the segments of a path match a pattern, as Python's glob reads it: `**` is any number of folders."""
    if not path or not pattern:
        return not path and not pattern
    first, rest = pattern[0], pattern[1:]
    visible = not path[0].startswith(".")
    if first == "**":
        return _matches(path, rest or ["*"]) or (visible and _matches(path[1:], pattern))
    return (visible or first.startswith(".")) and fnmatchcase(path[0], first) and _matches(path[1:], rest)
