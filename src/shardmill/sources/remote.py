"""Which files a URL names: one, those below a folder, or those that match a pattern, in a fixed order."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from shardmill.errors import SourceError, UsageError
from shardmill.extras import needs
from shardmill.sources.finding import is_readable_name, nothing_in
from shardmill.storage.addresses import BUCKETS, WEB, HubAddress, path_in, scheme_of, shown
from shardmill.storage.buckets import BucketStore
from shardmill.storage.retrying import Patience, Retries, Transient, patiently
from shardmill.storage.source import Source
from shardmill.storage.web import WebStore, refused

T = TypeVar("T")
_MAGIC = re.compile(r"[*?[]")


class _Found(NamedTuple):
    path: str
    """Below what was listed, with slashes."""
    size: int
    version: str


def find_remote(spec: str, input_format: str, pinned: Mapping[str, str]) -> list[Source]:
    """The sources that a URL names; UsageError when there is none, SourceError when a server refuses it."""
    scheme = scheme_of(spec)
    if scheme == "hf":
        return list(_at_hub(spec, input_format, pinned))
    if scheme in WEB:
        return list(_on_web(spec, input_format))
    if scheme in BUCKETS:
        return list(_in_bucket(spec, input_format))
    known = ", ".join(f"`{one}://`" for one in ("hf", *WEB, *BUCKETS))
    raise UsageError(f"there is no kind of source `{scheme}://`", hint=f"there are {known}, and files of this machine")


def _at_hub(spec: str, input_format: str, pinned: Mapping[str, str]) -> Iterator[Source]:
    hub = needs("huggingface_hub", "hub", "hf:// sources")
    address, api = HubAddress.parse(spec), hub.HfApi()
    timeout = Patience.from_environment().timeout

    def commit() -> str:
        info = api.repo_info(address.repo, repo_type="dataset", revision=address.revision or None, timeout=timeout)
        return str(info.sha)

    if address.is_commit:
        sha = address.revision
    else:
        sha = pinned.get(address.asked) or _asked(lambda: _hub_call(spec, commit), spec)
    root, _ = _parted(address.path)
    recursive = "**" in address.path or not _MAGIC.search(address.path)

    def listed(folder: str, below: bool) -> list[Any]:
        tree = api.list_repo_tree(
            address.repo, folder or None, repo_type="dataset", revision=sha, recursive=below, expand=False
        )
        return [entry for entry in tree if hasattr(entry, "blob_id")]

    def at(paths: list[str]) -> list[Any]:
        infos = api.get_paths_info(address.repo, paths, repo_type="dataset", revision=sha)
        return [entry for entry in infos if hasattr(entry, "blob_id")]

    def version(entry: Any) -> str:
        return str(entry.lfs.sha256 if entry.lfs else entry.blob_id)

    entries = []
    if address.path and not _MAGIC.search(address.path):
        entries = _asked(lambda: _hub_call(spec, lambda: at([address.path])), spec)
    single = bool(entries)
    if not single:
        deep = recursive or address.path[len(root) :].strip("/").count("/") > 0
        entries = _asked(lambda: _hub_call(spec, lambda: listed(root, deep)), spec)
    found = [_Found(entry.path, int(entry.size), version(entry)) for entry in entries]
    if not _MAGIC.search(address.path):
        # The card at the root of a dataset is about the text, not part of it.
        found = [one for one in found if single or one.path != "README.md"]
    for one in _chosen(found, address.path, spec, input_format, single):
        name = address.named(sha, one.path)
        yield Source(name, name, one.size, one.version, input_format, address.asked)


def _hub_call(spec: str, call: Callable[[], T]) -> T:
    """One call of the hub's client, its errors told apart. Where the client tries again itself, that is one try."""
    errors = import_module("huggingface_hub.errors")
    try:
        return call()
    except errors.HFValidationError:
        raise UsageError("the address names no dataset", place=spec, hint="a dataset is OWNER/NAME") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if isinstance(error, errors.GatedRepoError):
            refused(spec, 403, "GatedRepo")
        if status in (401, 403, 404):
            refused(spec, status, error.response.headers.get("x-error-code", ""))
        raise Transient(f"{status} from the hub" if status else "no connection to the hub") from None
    except OSError as error:
        raise Transient(f"no connection to the hub ({type(error).__name__})") from None
    except Exception as error:
        # httpx's errors share no base with Python's own.
        if not type(error).__module__.startswith("httpx"):
            raise
        raise Transient(f"no connection to the hub ({type(error).__name__})") from None


def _on_web(spec: str, input_format: str) -> Iterator[Source]:
    store = WebStore(Patience.from_environment())
    path = path_in(spec)
    # A query is the server's business, and so is a `?`: a pattern on the web has `*` or `[…]` in its path.
    if not re.search(r"[*[]", path) and not path.endswith("/"):
        size, version = _asked(lambda: store.find(spec), spec)
        yield Source(shown(spec), spec, size, version, input_format)
        return
    if "?" in spec:
        raise UsageError("a folder or pattern on the web cannot have a query", place=shown(spec))
    needs("aiohttp", "hub", "folders and patterns on the web")
    fsspec = needs("fsspec", "hub", "folders and patterns on the web")
    web = fsspec.filesystem("http", skip_instance_cache=True, use_listings_cache=False)
    host = spec[: spec.index("/", spec.index("://") + 3)]
    root, pattern = _parted(spec[len(host) :])
    deep = pattern.count("/") + 1 if pattern and "**" not in pattern else None
    listed = _asked(lambda: _web_list(web, f"{host}{root}/", deep, spec), spec)
    below = f"{host}{root}/"
    found = [_Found(f"{root}/{url[len(below) :]}", 0, "") for url in listed if url.startswith(below) and "?" not in url]
    for one in _chosen(found, f"{root}/{pattern}" if pattern else root, spec, input_format, False):
        url = host + one.path
        size, version = _asked(lambda url=url: store.find(url), url)  # type: ignore[misc]
        yield Source(shown(url), url, size, version, input_format)


def _web_list(web: Any, folder: str, depth: int | None, spec: str) -> list[str]:
    try:
        return list(web.find(folder, maxdepth=depth))
    except FileNotFoundError:
        raise SourceError("the source is not there", place=shown(spec)) from None
    except Exception as error:  # noqa: BLE001 - aiohttp's errors share no base with Python's own
        status = getattr(error, "status", 0)
        if 400 <= status < 500 and status not in (408, 425, 429):
            refused(spec, status)
        raise Transient(f"the folder cannot be listed ({status or type(error).__name__})") from None


def _in_bucket(spec: str, input_format: str) -> Iterator[Source]:
    scheme = scheme_of(spec)
    store = BucketStore(scheme, Patience.from_environment())
    rest = spec.partition("://")[2]
    root, pattern = _parted(rest)
    if not root.strip("/"):
        raise UsageError("the address names no bucket", place=spec, hint=f"write `{scheme}://BUCKET/PATH`")
    deep = pattern.count("/") + 1 if pattern and "**" not in pattern else None
    listed = _asked(lambda: store.list(f"{scheme}://{root.rstrip('/')}", deep), spec)
    found = [_Found(name, *store.size_and_version(info)) for name, info in listed.items() if not name.endswith("/")]
    single = not pattern and [one.path for one in found] == [rest]
    for one in _chosen(found, rest.rstrip("/"), spec, input_format, single):
        name = f"{scheme}://{one.path}"
        yield Source(name, name, one.size, one.version, input_format)


def _chosen(found: list[_Found], path: str, spec: str, input_format: str, single: bool) -> list[_Found]:
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

    def begin(self, words: str) -> None:
        super().begin(words)
        logging.getLogger("shardmill").warning("retrying: %s", words)


def _asked(call: Callable[[], T], spec: str) -> T:
    """What a call gives, tried again where that may help, within a time: clients wait for ever where they may."""
    patience = Patience.from_environment()
    over = threading.Event()
    answers: list[T] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(patiently(lambda _: call(), shown(spec), patience, _ToldRetries(), over))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            errors.append(error)

    thread = threading.Thread(target=ask, name="shardmill-listing", daemon=True)
    thread.start()
    thread.join(patience.retry_seconds + patience.timeout)
    over.set()
    if errors:
        raise errors[0]
    if not answers:
        seconds = patience.retry_seconds + patience.timeout
        raise SourceError(f"no answer for {seconds:,.0f} s", place=shown(spec))
    return answers[0]
