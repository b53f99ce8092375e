"""Which files a URL names: one, those below a folder, or those that match a pattern, in a fixed order."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shardmill.errors import SourceError, UsageError
from shardmill.sources.finding import is_readable_name, nothing_in
from shardmill.storage import (
    BUCKETS,
    WEB,
    Fetcher,
    HubAddress,
    ListedObject,
    Retries,
    Source,
    Unreachable,
    check_address,
    host_of,
    path_in,
    scheme_of,
    shown,
    write_whole,
    writing_to,
)

_MAGIC = re.compile(r"[*?[]")
_DEEPEST = 64  # folders in each other: more than that is a link that leads round in a circle


def find_remote(spec: str, input_format: str, pinned: Mapping[str, str], cache: str | None = None) -> list[Source]:
    """The sources that a URL names; UsageError when there is none, SourceError when a server refuses it.

    With a `cache`, what the hub has listed once is found there when the hub cannot be reached.
    """
    scheme = scheme_of(spec)
    with Fetcher(retries=_ToldRetries()) as fetcher:
        if scheme == "hf":
            return list(_at_hub(spec, input_format, pinned, Path(cache) if cache else None, fetcher))
        if scheme in WEB:
            return list(_on_web(spec, input_format, fetcher))
        if scheme in BUCKETS:
            return list(_in_bucket(spec, input_format, fetcher))
    known = ", ".join(f"`{one}://`" for one in ("hf", *WEB, *BUCKETS))
    raise UsageError(f"there is no kind of source `{scheme}://`", hint=f"there are {known}, and files of this machine")


def _at_hub(
    spec: str, input_format: str, pinned: Mapping[str, str], cache: Path | None, fetcher: Fetcher
) -> Iterator[Source]:
    address = HubAddress.parse(spec)
    commit: str | None = address.revision if address.is_commit else pinned.get(address.asked)
    kept = _Kept(cache, address)
    if commit is None or (found := kept.files(commit)) is None:
        if kept.commit:  # no need to wait for long
            fetcher.patience = replace(fetcher.patience, tries=min(fetcher.patience.tries, 3))
        try:
            commit, found = _hub_files(spec, address, commit, fetcher)
            kept.write(commit, found)
        except Unreachable as why:
            if commit is not None or not kept.commit:
                raise
            commit, found = kept.commit, kept.files(kept.commit) or []
            logging.getLogger("shardmill").warning(
                "%s: %s; the commit %s is taken, as it was listed before", address.asked, why.message, commit
            )
    single = [one.path for one in found] == [address.path]
    if not _MAGIC.search(address.path):
        # The card at the root of a dataset is about the text, not part of it.
        found = [one for one in found if single or one.path != "README.md"]
    for one in _chosen(found, address.path, spec, input_format, single):
        name = address.named(commit, one.path)
        yield Source(name, name, one.size, one.version, input_format, address.asked)


class _Kept:
    """What the hub has listed for an address, kept in the cache."""

    def __init__(self, cache: Path | None, address: HubAddress) -> None:
        key = hashlib.sha256(f"{address.asked}\n{address.path}".encode()).hexdigest()[:24]
        self._path = cache / "listings" / f"{key}.json" if cache else None
        self.commit = ""
        """Of the last list; empty: there is none."""
        self._files: list[ListedObject] = []
        try:
            record: dict[str, Any] = json.loads(self._path.read_bytes()) if self._path else {"commit": "", "files": []}
            self._files = [ListedObject(*one) for one in record["files"]]
            self.commit = record["commit"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            # As if there were none: it is written anew when the hub answers.
            logging.getLogger("shardmill").warning("a list in the cache cannot be read: %s", self._path)

    def files(self, commit: str) -> list[ListedObject] | None:
        return self._files if commit == self.commit else None

    def write(self, commit: str, files: list[ListedObject]) -> None:
        if self._path is not None:
            with writing_to(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, json.dumps({"commit": commit, "files": files}).encode())


def _hub_files(spec: str, address: HubAddress, commit: str | None, fetcher: Fetcher) -> tuple[str, list[ListedObject]]:
    """The commit, and the files that the address may mean; Unreachable when the hub does not say."""
    repo = f"datasets/{quote(address.repo)}"

    def ask(path: str, form: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        return fetcher.ask(lambda: fetcher.web.ask_hub(spec, path, form), shown(spec))

    if commit is None:
        commit = str(ask(f"{repo}/revision/{quote(address.revision or 'main', safe='')}")[0]["sha"])
    entries: list[Any] = []
    if address.path and not _MAGIC.search(address.path):
        entries, _ = ask(f"{repo}/paths-info/{commit}", {"paths": [address.path], "expand": False})
    if not any(entry["type"] == "file" for entry in entries):
        root, pattern = _parted(address.path)
        deep = not pattern or "**" in pattern or "/" in pattern
        page = f"{repo}/tree/{commit}{'/' if root else ''}{quote(root)}?recursive={deep}&expand=False"
        entries = []
        while page:
            some, page = ask(page)
            entries += some
    return commit, [
        ListedObject(entry["path"], int(entry["size"]), str(entry["lfs"]["oid"] if entry.get("lfs") else entry["oid"]))
        for entry in entries
        if entry["type"] == "file"
    ]


def _on_web(spec: str, input_format: str, fetcher: Fetcher) -> Iterator[Source]:
    def find(url: str) -> Source:
        size, version = fetcher.ask(lambda: fetcher.web.find(url), shown(url))
        return Source(shown(url), url, size, version, input_format)

    path = path_in(spec)
    # A query is the server's business, and so is a `?`: a pattern on the web has `*` or `[…]` in its path.
    if not re.search(r"[*[]", path) and not path.endswith("/"):
        yield find(spec)
        return
    if "?" in spec:
        raise UsageError("a folder or pattern on the web cannot have a query", place=shown(spec))
    host = spec[: spec.index("/", spec.index("://") + 3)]
    root, pattern = _parted(spec[len(host) :])
    found = [ListedObject(f"{root}/{link}", 0, "") for link in _web_list(fetcher, f"{host}{root}/", pattern)]
    for one in _chosen(found, f"{root}/{pattern}" if pattern else root, spec, input_format, False):
        yield find(host + one.path)


def _web_list(fetcher: Fetcher, root: str, pattern: str) -> Iterator[str]:
    """The files below a folder on the web that may be meant, from its URL on: every index page is read, or an error."""
    levels = [re.compile(_translated(segment)).fullmatch for segment in pattern.split("/")]
    if "**" in pattern or not pattern:
        hidden = "." if pattern else "._"

        def entered(folder: list[str]) -> bool:
            return folder[-1][0] not in hidden
    else:

        def entered(folder: list[str]) -> bool:
            return len(folder) < len(levels) and bool(levels[len(folder) - 1](folder[-1]))

    waiting = [""]
    while waiting:
        folder = waiting.pop()
        if folder.count("/") > _DEEPEST:
            raise SourceError(f"folders lie more than {_DEEPEST} deep in each other", place=shown(root + folder))
        for link in fetcher.ask(partial(fetcher.web.links, root + folder), shown(root + folder)):
            if not link.endswith("/"):
                yield folder + link
            elif all(link.rstrip("/").split("/")) and entered((folder + link).rstrip("/").split("/")):
                waiting.append(folder + link)


def _in_bucket(spec: str, input_format: str, fetcher: Fetcher) -> Iterator[Source]:
    scheme, bucket = scheme_of(spec), host_of(spec)
    check_address(spec)
    store = fetcher.buckets
    rest = spec.partition("://")[2].partition("/")[2].strip("/")
    root, pattern = _parted(rest)
    if _MAGIC.search(bucket):
        raise UsageError("the address names no bucket", place=spec, hint=f"write `{scheme}://BUCKET/PATH`")
    single = None
    if rest and not pattern and not spec.endswith("/"):
        single = fetcher.ask(lambda: store.find(f"{scheme}://{bucket}/{rest}"), shown(spec))
    found = [single] if single else []
    if not single:
        # A list of everything below is a request for each thousand objects; folder by folder it is one for each.
        deep = not pattern or "/" in pattern
        wanted = re.compile(_translated(rest)).fullmatch if pattern else _anything
        found = fetcher.ask(lambda: store.list(f"{scheme}://{bucket}/{root}", wanted, deep=deep), shown(spec))
    for one in _chosen(found, rest, spec, input_format, single is not None):
        name = f"{scheme}://{bucket}/{one.path}"
        yield Source(name, name, one.size, one.version, input_format)


def _anything(_: str) -> bool:
    return True


def _chosen(found: list[ListedObject], path: str, spec: str, input_format: str, single: bool) -> list[ListedObject]:
    """Those of the files that the path names, by the rules for files of this machine, in their order."""
    if single:
        return found
    if _MAGIC.search(path):
        matches = re.compile(_translated(path)).fullmatch
        chosen = sorted(one for one in found if matches(one.path))
        if not chosen:
            raise UsageError("nothing matches the pattern", place=shown(spec))
        return chosen
    below = f"{path}/" if path else ""
    inside = [one for one in found if one.path.startswith(below)]
    visible = [one for one in inside if not any(s[:1] in "._" for s in one.path[len(below) :].split("/"))]
    chosen = [one for one in visible if input_format != "auto" or is_readable_name(one.path)]
    if not chosen and not inside:
        raise UsageError("the source is not there", place=shown(spec))
    if not chosen:
        raise nothing_in(shown(spec), len(visible))
    return sorted(chosen, key=lambda one: one.path.split("/"))


def _parted(path: str) -> tuple[str, str]:
    """The folder above the first segment with a wildcard, and the pattern below it; no pattern: the path itself."""
    segments = path.split("/")
    for i, segment in enumerate(segments):
        if _MAGIC.search(segment):
            return "/".join(segments[:i]), "/".join(segments[i:])
    return path.rstrip("/"), ""


def _translated(pattern: str) -> str:
    """A pattern as Python's glob reads it, as a regular expression: `**` is any number of folders."""
    made = []
    segments = pattern.split("/")
    for i, segment in enumerate(segments):
        last = i == len(segments) - 1
        if segment == "**":
            made.append(r"(?:[^/.][^/]*/)*" + (r"[^/.][^/]*" if last else ""))
            continue
        text = "(?!\\.)" if segment[:1] in "*?[" else ""
        for token in re.findall(r"\*+|\?|\[!?\]?[^\]]*\]|.", segment, re.DOTALL):
            if token[0] == "*":
                text += "[^/]*"
            elif token == "?":
                text += "[^/]"
            elif token[0] == "[" and len(token) > 1:
                inside = token[1:-1].replace("\\", "\\\\")
                text += f"[^{inside[1:]}]" if inside[0] == "!" else f"[{inside}]"
            else:
                text += re.escape(token)
        made.append(text + ("" if last else "/"))
    return "".join(made)


class _ToldRetries(Retries):
    """Sources are listed before there is a progress line, so the log says it: by default, on standard error."""

    def begin(self, words: str, wait: float) -> None:
        super().begin(words, wait)
        logging.getLogger("shardmill").warning("retrying: %s", words)
