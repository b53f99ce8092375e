"""Files of web servers and of the Hugging Face hub, by ranges, each answer checked to be of the file that was found.

The client is the one of huggingface_hub: it knows the machine's proxies and certificates. Nothing is tried again here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import urljoin, urlsplit

from shardmill.errors import OutputError, SourceError
from shardmill.extras import needs
from shardmill.storage.addresses import HubAddress, hub_url, scheme_of, shown
from shardmill.storage.retrying import Patience, Transient, Unreachable
from shardmill.storage.source import Source, changed

PASSING = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
_ELSEWHERE = (301, 302, 303, 307, 308)
_REFUSED = (400, 401, 403, 404, 410)
_MOST_REDIRECTS = 5
_MOST_REMEMBERED = 64
_LARGEST_PAGE = 64 << 20  # an index of half a million files


class NoRanges(SourceError):
    """The server gives a file whole or not at all."""


class WebStore:
    """Any thread may call it."""

    def __init__(self, patience: Patience) -> None:
        needs("huggingface_hub", "hub", "sources at the hub and on the web")
        # The package loads its modules when they are first imported, not when they are named.
        self._utils = import_module("huggingface_hub.utils")
        self._constants = import_module("huggingface_hub.constants")
        # httpx, or httpx2 with a later huggingface_hub.
        self._library = import_module(type(self._utils.get_session()).__module__.partition(".")[0])
        self._offline = import_module("huggingface_hub.errors").OfflineModeIsEnabled
        self._hub_headers: dict[str, str] = self._utils.build_hf_headers(library_name="shardmill")
        self._patience = patience
        self._led: dict[str, str] = {}
        """Where a source's last redirect led. At the hub each would cost a request of a limited number."""

    def find(self, url: str) -> tuple[int, str]:
        """Size and version of a web file; a GET of one byte, since a signed URL allows no HEAD."""
        source = Source(shown(url), url, None, "")
        with self._get(source, url, {"Range": "bytes=0-0"}) as answer:
            self._refuse(source, answer)
            if answer.status_code == 416 or answer.status_code == 206:
                size = answer.headers.get("content-range", "").rpartition("/")[2]
            else:
                size = answer.headers.get("content-length", "")
            if not size.isdigit():
                raise SourceError("the server does not say how large the file is", place=source.name, hint=_DOWNLOAD)
            return int(size), answer.headers.get("etag") or answer.headers.get("last-modified", "")

    def links(self, url: str) -> list[str]:
        """What the index page of a folder links to below it, from its URL on; a folder ends with a slash."""
        source = Source(shown(url), url, None, "")
        with self._get(source, url, {}) as answer:
            self._refuse(source, answer)
            page = bytearray()
            for block in self._blocks(source, answer, time.monotonic() + self._patience.retry_seconds):
                page += block
                if len(page) > _LARGEST_PAGE:
                    raise SourceError("the index of the folder is too large", place=source.name)
            links = _links_of(page.decode("utf-8", "replace"))
            # Where a redirect led elsewhere, links may be of there.
            roots = [shown(url), shown(str(answer.url))]
        below = []
        for link in links:
            target = urljoin(roots[1], link)
            root = next((root for root in roots if target.startswith(root) and target != root), None)
            if root is not None and not re.search(r"[?#]", target):
                below.append(target[len(root) :])
        return list(dict.fromkeys(below))

    def fetch(self, source: Source, start: int, end: int, deadline: float) -> bytearray:
        """The bytes of a range; Transient when it may go better another time."""
        data = bytearray(end - start)
        filled = 0
        with self._open(source, {"Range": f"bytes={start}-{end - 1}"}) as answer:
            whole = answer.status_code == 200
            if whole and start > 0:
                # One server of several may have ignored the range. To read up to its start each time would make the
                # traffic grow with the square of the size.
                error = NoRanges("the server gives no parts of the file", place=source.name, hint=_DOWNLOAD)
                raise Transient(f"{_host(source)} sent the whole file in place of a part", tries=3, error=error)
            self._check_range(source, answer, start)
            for block in self._blocks(source, answer, deadline):
                if filled + len(block) > len(data) and not (whole and end < (source.size or 0)):
                    raise changed(source)
                taken = block[: len(data) - filled]
                data[filled : filled + len(taken)] = taken
                filled += len(taken)
                if whole and filled == len(data) and end < (source.size or 0):
                    break
        if filled < len(data):
            raise Transient(
                f"{_host(source)} sent {filled:,} of {len(data):,} bytes", error=_compressed(source, answer)
            )
        return data

    def stream(self, source: Source, write: Callable[[bytes], object], deadline: float) -> None:
        """The whole file at once, for servers that give no ranges."""
        filled = 0
        with self._open(source, {}) as answer:
            for block in self._blocks(source, answer, deadline):
                try:
                    write(block)
                except OSError as error:  # not the connection's fault
                    raise OutputError(f"the file cannot be kept: {error.strerror}", place=source.name) from None
                filled += len(block)
        if filled != source.size:
            raise Transient(f"{_host(source)} sent {filled:,} of {source.size or 0:,} bytes")

    def ask_hub(self, spec: str, path: str, form: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        """What the hub's API says at a path, or at a URL that it gave, and the URL of the next page if there is one."""
        source = Source(spec, spec, None, "")
        url = path if "://" in path else f"{self._endpoint}/api/{path}"
        with self._get(source, url, {}, form) as answer:
            self._refuse(source, answer)
            body = b"".join(self._blocks(source, answer, time.monotonic() + self._patience.retry_seconds))
            following = answer.links.get("next", {}).get("url", "")
        try:
            return json.loads(body), following
        except ValueError:
            raise Transient("the hub's answer is not whole") from None

    @contextmanager
    def _open(self, source: Source, headers: dict[str, str]) -> Iterator[Any]:
        led = self._led.get(source.path)
        with self._get(source, led or self._first(source), headers) as answer:
            if led is None or answer.status_code not in _REFUSED:
                self._refuse(source, answer)
                yield answer
                return
        # The address behind the redirect was good for some minutes only.
        self._led.pop(source.path, None)
        with self._get(source, self._first(source), headers) as answer:
            self._refuse(source, answer)
            yield answer

    @property
    def _endpoint(self) -> str:
        return str(self._constants.ENDPOINT).rstrip("/")

    def _first(self, source: Source) -> str:
        if scheme_of(source.path) == "hf":
            return hub_url(self._endpoint, HubAddress.parse(source.path))
        return source.path

    @contextmanager
    def _get(
        self, source: Source, url: str, headers: dict[str, str], form: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        """An answer that is no redirect, its body not yet read. `form`: what is posted, in place of a GET."""
        library, timeout = self._library, self._patience.timeout
        try:
            for _ in range(_MOST_REDIRECTS):
                own = self._hub_headers if url.startswith(self._endpoint + "/") else {}
                with self._utils.get_session().stream(
                    "GET" if form is None else "POST",
                    url,
                    data=form,
                    headers={**own, **headers, "Accept-Encoding": "identity"},
                    follow_redirects=False,
                    timeout=library.Timeout(timeout, connect=min(timeout, 10.0)),
                ) as answer:
                    if scheme_of(source.path) == "hf" and own and source.version:
                        _check_hub(source, answer)
                    if answer.status_code not in _ELSEWHERE or "location" not in answer.headers:
                        yield answer
                        return
                    url = urljoin(url, answer.headers["location"])
                    self._remember(source, url)
        except self._offline:
            raise offline(source.name) from None
        except library.TimeoutException:
            raise Transient(f"no answer from {_host(source)} for {timeout:g} s") from None
        except (library.TransportError, OSError) as error:
            # The text may hold the address with its signature: only what kind of failure it is may be told.
            words = "the connection was cut" if "Protocol" in type(error).__name__ else _kind(error)
            raise Transient(f"{words} ({_host(source)})") from None
        except library.InvalidURL:
            raise SourceError("the address is not one of a web server", place=source.name) from None
        raise SourceError(f"more than {_MOST_REDIRECTS} redirects", place=source.name)

    def _remember(self, source: Source, url: str) -> None:
        if len(self._led) >= _MOST_REMEMBERED:
            self._led.pop(next(iter(self._led)), None)
        self._led[source.path] = url

    def _blocks(self, source: Source, answer: Any, deadline: float) -> Iterator[bytes]:
        for block in answer.iter_raw():
            yield block
            if time.monotonic() > deadline:
                raise Transient(f"{_host(source)} is too slow")

    def _refuse(self, source: Source, answer: Any) -> None:
        """Raise for an answer that is not the file."""
        status = answer.status_code
        if status in (200, 206) or (status == 416 and source.size is None):
            return
        if status in PASSING:
            raise Transient(f"{status} from {_host(source)}", _retry_after(answer.headers.get("retry-after")))
        if status in (412, 416):
            raise changed(source)
        # Files of the hub lie elsewhere, at a server that has words of its own.
        refused(source.path, status, answer.headers, hub=str(answer.url).startswith(self._endpoint + "/"))

    def _check_range(self, source: Source, answer: Any, start: int) -> None:
        etag = answer.headers.get("etag") or answer.headers.get("last-modified", "")
        # A proxy that compresses for others calls the same version a weak one.
        known = source.version.removeprefix("W/")
        if scheme_of(source.path) != "hf" and known and etag and etag.removeprefix("W/") != known:
            raise changed(source)
        told = answer.headers.get("content-range", "")
        if answer.status_code == 206 and told:
            first, _, total = told.removeprefix("bytes").strip().partition("/")
            if total.isdigit() and int(total) != source.size:
                raise changed(source)
            if first.partition("-")[0] != str(start):
                raise Transient(f"{_host(source)} sent another range than was asked for")


def _compressed(source: Source, answer: Any) -> SourceError | None:
    """What to say of a body that is not the file's own bytes; None: it is."""
    if answer.headers.get("content-encoding", "identity") == "identity":
        return None
    message = "the server compresses what it sends, though it was asked not to, so that no part of the file can be had"
    return SourceError(message, place=source.name, hint="download the file first")


def _links_of(page: str) -> list[str]:
    from html.parser import HTMLParser  # some milliseconds, which only the index of a folder costs

    links: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links.extend(value for name, value in attrs if tag == "a" and name == "href" and value)

    Links().feed(page)
    return links


def _check_hub(source: Source, answer: Any) -> None:
    """Raise when what the hub has under this name is not what it listed."""
    etag = answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")
    if answer.status_code < 400 and etag and etag.removeprefix("W/").strip('"') != source.version:
        raise changed(source)


def offline(place: str) -> Unreachable:
    return Unreachable(
        "HF_HUB_OFFLINE is set, so that nothing is asked",
        place=place,
        hint="unset it; or run once with `--cache DIR`, which then suffices",
    )


def refused(url: str, status: int, headers: Mapping[str, str], *, hub: bool = True) -> NoReturn:
    """SourceError for an answer that will not change by itself, with what to do. `hub`: the hub itself gave it."""
    place, code = shown(url), headers.get("x-error-code", "")
    if scheme_of(url) != "hf":
        if status in (401, 403):
            hint = "a signed address may have expired; a password stands in the address: https://USER:PASSWORD@HOST/…"
            raise SourceError(f"the server refuses to give the file ({status})", place=place, hint=hint)
        raise SourceError(
            "the source is not there" if status in (404, 410) else f"the server answers {status}", place=place
        )
    repo = HubAddress.parse(url).repo
    if not hub:
        raise SourceError(
            f"the server to which the hub sends for its files answers {status}",
            place=place,
            hint="it is not the dataset's owner who refuses: look whether a proxy stands between, or try again later",
        )
    if code in _HUB_SAYS:
        message, hint = _HUB_SAYS[code]
    elif status == 401 and "Invalid credentials" in headers.get("x-error-message", ""):
        message, hint = "the hub does not accept the token (401)", "`hf auth login` again, or correct HF_TOKEN"
    elif status == 401:
        message, hint = _HUB_SAYS["RepoNotFound"]
    elif status == 403:
        message = "the hub does not allow it (403)"
        hint = "the token must allow to read {repo}: `hf auth login` or set HF_TOKEN"
    else:
        message, hint = f"the hub answers {status}", "check the address, and HF_ENDPOINT if it is set"
    raise SourceError(message, place=place, hint=hint.format(repo=repo))


_HUB_SAYS = {
    "GatedRepo": (
        "the dataset is gated: its owner wants you to accept its terms first",
        "accept them at https://huggingface.co/datasets/{repo}, then `hf auth login` or set HF_TOKEN",
    ),
    "RevisionNotFound": ("the dataset has no such revision", "check what stands after the `@`"),
    "EntryNotFound": ("the dataset has no such file", "see https://huggingface.co/datasets/{repo}/tree/main"),
    "RepoNotFound": (
        "the hub has no such dataset, or does not show it to you",
        "check the name; for a private dataset `hf auth login` or set HF_TOKEN",
    ),
}
_DOWNLOAD = "add `--cache DIR`: then the file is fetched whole, and read from there"


def _host(source: Source) -> str:
    return "the hub" if scheme_of(source.path) == "hf" else urlsplit(source.name).netloc


def _kind(error: BaseException) -> str:
    names = {"ConnectError": "no connection", "ReadError": "the connection was cut"}
    return names.get(type(error).__name__, "the connection failed")


def _retry_after(value: str | None) -> float | None:
    """Seconds; a date is left to our own pauses."""
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None
