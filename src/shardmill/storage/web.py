"""Files of web servers and of the Hugging Face hub, by ranges, each answer checked to be of the file that was found.

The client is the one of huggingface_hub: it knows the machine's proxies and certificates. Nothing is tried again here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import urljoin, urlsplit

from shardmill.errors import OutputError, SourceError
from shardmill.extras import needs
from shardmill.storage.addresses import HubAddress, hub_url, scheme_of, shown
from shardmill.storage.feeds import changed
from shardmill.storage.retrying import Patience, Transient
from shardmill.storage.source import Source

_PASSING = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
_ELSEWHERE = (301, 302, 303, 307, 308)
_REFUSED = (400, 401, 403, 404, 410)
_MOST_REDIRECTS = 5
_MOST_REMEMBERED = 64


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

    def fetch(self, source: Source, start: int, end: int, deadline: float) -> bytearray:
        """The bytes of a range; Transient when it may go better another time."""
        data = bytearray(end - start)
        filled = 0
        with self._open(source, {"Range": f"bytes={start}-{end - 1}"}) as answer:
            if answer.status_code == 200 and not (start == 0 and end == source.size):
                raise NoRanges("the server gives no parts of the file", place=source.name, hint=_DOWNLOAD)
            self._check_range(source, answer, start)
            for block in self._blocks(source, answer, deadline):
                if filled + len(block) > len(data):
                    raise changed(source)
                data[filled : filled + len(block)] = block
                filled += len(block)
        if filled < len(data):
            raise Transient(f"{_host(source)} sent {filled:,} of {len(data):,} bytes")
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

    def check(self, source: Source) -> None:
        """Nothing to do: every answer was checked."""

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
    def _get(self, source: Source, url: str, headers: dict[str, str]) -> Iterator[Any]:
        """An answer that is no redirect, its body not yet read."""
        library, timeout = self._library, self._patience.timeout
        try:
            for _ in range(_MOST_REDIRECTS):
                own = self._hub_headers if url.startswith(self._endpoint + "/") else {}
                with self._utils.get_session().stream(
                    "GET",
                    url,
                    headers={**own, **headers, "Accept-Encoding": "identity"},
                    follow_redirects=False,
                    timeout=library.Timeout(timeout, connect=min(timeout, 10.0)),
                ) as answer:
                    if scheme_of(source.path) == "hf" and own:
                        _check_hub(source, answer)
                    if answer.status_code not in _ELSEWHERE or "location" not in answer.headers:
                        yield answer
                        return
                    url = urljoin(url, answer.headers["location"])
                    self._remember(source, url)
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
        if status in _PASSING:
            raise Transient(f"{status} from {_host(source)}", _retry_after(answer.headers.get("retry-after")))
        if status in (412, 416):
            raise changed(source)
        refused(source.path, status, answer.headers.get("x-error-code", ""))

    def _check_range(self, source: Source, answer: Any, start: int) -> None:
        etag = answer.headers.get("etag") or answer.headers.get("last-modified", "")
        if scheme_of(source.path) != "hf" and source.version and etag and etag != source.version:
            raise changed(source)
        told = answer.headers.get("content-range", "")
        if answer.status_code == 206 and told:
            first, _, total = told.removeprefix("bytes").strip().partition("/")
            if total.isdigit() and int(total) != source.size:
                raise changed(source)
            if first.partition("-")[0] != str(start):
                raise Transient(f"{_host(source)} sent another range than was asked for")


def _check_hub(source: Source, answer: Any) -> None:
    """Raise when what the hub has under this name is not what it listed."""
    etag = answer.headers.get("x-linked-etag") or answer.headers.get("etag", "")
    if answer.status_code < 400 and etag and etag.removeprefix("W/").strip('"') != source.version:
        raise changed(source)


def refused(url: str, status: int, code: str = "") -> NoReturn:
    """SourceError for an answer that will not change by itself, with what to do."""
    place = shown(url)
    if scheme_of(url) != "hf":
        if status in (401, 403):
            hint = "a signed address may have expired; a password stands in the address: https://USER:PASSWORD@HOST/…"
            raise SourceError(f"the server refuses to give the file ({status})", place=place, hint=hint)
        raise SourceError(
            "the source is not there" if status in (404, 410) else f"the server answers {status}", place=place
        )
    repo = HubAddress.parse(url).repo
    if code == "GatedRepo" or status == 403:
        raise SourceError(
            "the dataset is gated: its owner wants you to accept its terms first",
            place=place,
            hint=f"accept them at https://huggingface.co/datasets/{repo}, then `hf auth login` or set HF_TOKEN",
        )
    if code == "RevisionNotFound":
        raise SourceError("the dataset has no such revision", place=place, hint="check what stands after the `@`")
    if code == "EntryNotFound":
        raise SourceError("the dataset has no such file", place=place, hint=f"see {_files(repo)}")
    if status in (401, 404):
        raise SourceError(
            "the hub has no such dataset, or does not show it to you",
            place=place,
            hint="check the name; for a private dataset `hf auth login` or set HF_TOKEN",
        )
    raise SourceError(f"the hub answers {status}", place=place)


def _files(repo: str) -> str:
    return f"https://huggingface.co/datasets/{repo}/tree/main"


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
