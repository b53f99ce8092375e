"""Finds the files that a URL names: one, those below a folder, or those that match a pattern, in a fixed order."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from shardmill.errors import UsageError
from shardmill.sources.cards import CARD, CARD_BYTES
from shardmill.sources.hub import list_hub
from shardmill.sources.local import Owned
from shardmill.sources.names import UNCOUNTED, WILDCARD, split_pattern
from shardmill.sources.names import path_matches as _matches
from shardmill.sources.walking import Entry, Found, Rules, Tree, Walk, note_marker
from shardmill.storage import (
    BLOCK_ROWS,
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
Beginnings = Callable[[ListedObject], str]
"""Returns the beginning of a small text file."""


def find_remote(
    spec: str,
    rules: Rules,
    pinned: Mapping[str, str],
    out: str,
    owned: Owned,
    requested: dict[str, str],
) -> Iterator[Source]:
    """Yield the files that a URL names. Raise UsageError when there is none, SourceError when a server refuses it.

    `out`: the URL of the output, which is skipped if it is below a folder or matches a pattern. Files in a bucket that
    are `owned` by a dataset are skipped too. `requested`: is told which revision at the hub was asked for.
    """
    scheme = scheme_of(spec)
    if scheme not in ("hf", *WEB, *BUCKETS):
        known = ", ".join(f"`{one}://`" for one in ("hf", *WEB, *BUCKETS))
        hint = f"there are {known}, and files of this machine"
        raise UsageError(f"there is no kind of source `{scheme}://`", hint=hint)
    with Fetcher(retries=_LoggedRetries()) as fetcher:
        if scheme == "hf":
            yield from _at_hub(spec, rules, pinned, fetcher, requested)
        else:
            yield from _in_bucket(spec, rules, fetcher, out, owned)


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


def _at_hub(
    spec: str, rules: Rules, pinned: Mapping[str, str], fetcher: Fetcher, requested: dict[str, str]
) -> Iterator[Source]:
    address = HubAddress.parse(spec)
    commit: str | None = address.revision if address.is_commit else pinned.get(address.requested)
    listing = list_hub(spec, address, commit, fetcher)
    files: Iterable[Found] = listing.files
    if [one.path for one in listing.files] != [address.path]:

        def beginning(one: ListedObject) -> str:
            return listing.card if one.path == CARD else ""

        files = _chosen(listing.files, address.path, public_url(spec), rules, beginning, hub=True)
    for path, size, version in files:
        name = listing.name(address, path)
        if listing.commit:
            requested.setdefault(address.requested, name)
        yield Source(name, name, size, str(version), rules.input_format)


def _in_bucket(spec: str, rules: Rules, fetcher: Fetcher, out: str, owned: Owned) -> Iterator[Source]:
    check_address(spec)
    scheme, bucket, path = scheme_of(spec), host_of(spec), path_in_bucket(spec)
    if WILDCARD.search(bucket):
        raise UsageError("the address names no bucket", place=spec, hint=f"write `{scheme}://BUCKET/PATH`")
    root, pattern = split_pattern(path)
    single = None
    if path and not pattern and not spec.endswith("/"):
        single = fetcher.request(lambda: fetcher.bucket(spec).find(path), spec)
    found: Iterable[Found]
    if single is not None:
        found = [single]
    else:

        def is_needed(name: str) -> bool:
            return not pattern or name.endswith(_MANIFEST) or _matches(name.split("/"), path.split("/"))

        def beginning(one: ListedObject) -> str:
            name = f"{scheme}://{bucket}/{one.path}"
            data = fetcher.read(Source(name, name, one.size, one.version), 0, min(one.size, CARD_BYTES))
            return data.decode("utf-8", "replace")

        rows = fetcher.retry(lambda: fetcher.bucket(spec).list(root, is_needed), spec)
        inside = path_in_bucket(out) if (scheme_of(out), host_of(out)) == (scheme, bucket) else None
        kept = _without_datasets(rows, root, inside, lambda folder: owned(f"{scheme}://{bucket}/{folder}".rstrip("/")))
        found = _chosen(kept, path, spec, rules, beginning)
    for path, size, version in found:
        name = f"{scheme}://{bucket}/{path}"
        yield Source(name, name, size, str(version), rules.input_format)


def _without_datasets(rows: PackedRows, root: str, out: str | None, owned: Owned) -> Iterator[ListedObject]:
    """Yield the objects that belong to no dataset. `out`: where the output is in this bucket, if it is there."""
    inside = None if out is None else f"{out}/"
    is_below = inside is not None and inside.startswith(f"{root}/" if root else "") and out != root
    left_out = inside if inside and is_below else "\0"  # which no name begins with
    # Millions of them stay packed; what is made of them passes one by one.
    manifests = (path for path, _, _ in rows if path == _MANIFEST or path.endswith(f"/{_MANIFEST}"))
    folders = {path.rpartition("/")[0] for path in manifests if not path.startswith(left_out)}
    if inside and f"{root}/".startswith(inside):  # it may be unfinished
        folders.add(inside.rstrip("/"))
    theirs = {f"{folder}/{name}".lstrip("/") for folder in folders for name in owned(folder)}
    for row in rows:
        path = row[0]
        if not path.startswith(left_out) and not (theirs and (path in theirs or path.endswith(PARTIAL))):
            yield ListedObject._make(row)


class _ListedFiles(Tree):
    """A list of files as a tree. Its rows are packed, and unpacked as they are asked for."""

    def __init__(
        self, found: Iterable[ListedObject], root: str, spec: str, rules: Rules, beginning: Beginnings, *, hub: bool
    ) -> None:
        """`root`: the path that was asked for, as `spec`. `hub`: it is in a dataset of the hub."""
        self._root, self._spec, self._rules, self._beginning, self._hub = root, spec, rules, beginning, hub
        below = f"{root}/" if root else ""
        # NUL is in no name, and sorts before everything: so folders come in the order of their names.
        self._packed = PackedRows(
            sorted_rows((one.path.replace("/", "\0"), *one[1:]) for one in found if one.path.startswith(below))
        )
        if not len(self._packed):
            raise UsageError("the source is not there", place=spec)
        blocks = -(-len(self._packed) // BLOCK_ROWS)
        self._firsts = [self._packed.block(number)[0][0] for number in range(blocks)]

    def _children(self, folder: str) -> Iterator[tuple[str, bool, int, str]]:
        """Yield each name in a folder, whether it is a folder, and the size and version of a file."""
        begin = f"{folder.rstrip('/')}/".lstrip("/").replace("/", "\0")
        last = ""
        for number in range(max(0, bisect_left(self._firsts, begin) - 1), len(self._firsts)):
            for path, size, version in self._packed.block(number):
                if path.startswith(begin):
                    name, inside, _ = path[len(begin) :].partition("\0")
                    if not inside or name != last:
                        yield name, bool(inside), size, version
                    last = name if inside else last
                elif path > begin:
                    return

    def listing(self, folder: str, below: str, markers: set[str]) -> Iterator[Entry]:
        def entries() -> Iterator[Entry]:
            for name, is_folder, size, version in self._children(folder):
                kind = self._rules.kind(name, below, is_folder)
                note_marker(name, kind, markers)
                if kind != UNCOUNTED:
                    yield name, size, version, kind

        return iter(PackedRows(entries()))

    def names(self, folder: str) -> Iterator[tuple[str, bool]]:
        return ((name, is_folder) for name, is_folder, _, _ in self._children(folder))

    def changed(self, path: str) -> int:
        return 0

    def beginning(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        listed = (one for one in self._children(folder) if one[:2] == (name, False))
        return next((self._beginning(ListedObject(path, size, version)) for _, _, size, version in listed), "")

    def is_copy(self, folder: str, markers: Collection[str]) -> bool:
        return folder == self._root and (self._hub or {CARD, ".gitattributes"} <= set(markers))

    def shown(self, folder: str) -> str:
        return self._spec.rstrip("/") + folder[len(self._root) :]


def _chosen(
    found: Iterable[ListedObject], path: str, spec: str, rules: Rules, beginning: Beginnings, *, hub: bool = False
) -> Iterator[Found]:
    """Yield the files that a pattern or folder names, by the rules for local files."""
    if not WILDCARD.search(path):
        return Walk(_ListedFiles(found, path, spec, rules, beginning, hub=hub), rules).files(path)
    pattern, choice = path.split("/"), rules.choice
    fixed = len(split_pattern(path)[0].split("/")) if split_pattern(path)[0] else 0

    def wanted(path: str) -> bool:
        return not choice.given or choice.wants("/".join(path.split("/")[fixed:]))

    matching = (one for one in found if _matches(one.path.split("/"), pattern))
    return rules.matching(((*one, "" if wanted(one.path) else "excluded file") for one in matching), spec)
