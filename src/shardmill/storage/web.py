"""Files on web servers and on the Hugging Face hub, read by ranges; each response is checked against what was found.

One call is one attempt.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urljoin, urlsplit

from shardmill.errors import SourceError
from shardmill.storage.hub import Hub
from shardmill.storage.names import WEB, compression_of, public_url, scheme_of
from shardmill.storage.retrying import RetryPolicy, Transient, check_running, seems_changed
from shardmill.storage.source import Source, changed_error

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
_REDIRECTS = (301, 302, 303, 307, 308)
_REFUSED = (400, 401, 403, 404, 410)
_MAX_REDIRECTS = 5
_MAX_REMEMBERED = 64
_LARGEST_PAGE = 64 << 20  # of the hub's API


class NoRanges(SourceError):
    """The server sends only whole files, no ranges."""


class WebStore:
    """Any thread may call it. Its methods raise Transient where another attempt may succeed, else SourceError."""

    def __init__(self, policy: RetryPolicy, stopped: threading.Event) -> None:
        """`stopped`: set when nobody waits for an answer any more, to end one that comes byte by byte."""
        import httpx  # a tenth of a second, which only remote sources cost

        self._library = httpx
        timeout = httpx.Timeout(policy.timeout, connect=min(policy.timeout, 10.0))
        self._client = httpx.Client(timeout=timeout, follow_redirects=False)
        self._policy, self._stopped = policy, stopped
        self._redirects: dict[str, str] = {}
        """The target of each source's last redirect. The hub limits the number of requests."""

    def close(self) -> None:
        self._client.close()

    def find(self, url: str) -> tuple[int, str]:
        """Return size and version of a web file, from a GET of one byte: a signed URL does not allow HEAD."""
        source = Source(public_url(url), url, None, "")
        with self._get(source, {"Range": "bytes=0-0"}) as response:
            if urlsplit(str(response.url)).path == urlsplit(url).path + "/":  # so servers say that it is a folder
                raise SourceError("the address is that of a folder", place=source.name, hint="name the files in it")
            _check_encoding(source, response)
            if response.status_code in (206, 416):
                size = response.headers.get("content-range", "").rpartition("/")[2]
            else:
                size = response.headers.get("content-length", "")
            if not size.isdigit():
                message = "the server does not say how large the file is"
                error = SourceError(message, place=source.name, hint="download the file first")
                raise Transient(message, tries=3, error=error)
            return int(size), _etag(response)

    def fetch(self, source: Source, start: int, end: int) -> bytearray:
        """Return the bytes of a range."""
        size = end - start
        data, filled = bytearray(size), 0
        with self._get(source, {"Range": f"bytes={start}-{end - 1}"}) as response:
            whole = response.status_code == 200
            if whole and start > 0:
                # One of several servers may have ignored the range. Reading up to its start each time would make the
                # traffic grow with the square of the size.
                hint = "`--cache DIR` copies the whole file to a folder first"
                error = NoRanges("the server gives no parts of the file", place=source.name, hint=hint)
                raise Transient(f"{_host(source)} sent the whole file in place of a part", tries=3, error=error)
            _check_range(source, response, start)
            more_follows = whole and end < (source.size or 0)
            for block in self._blocks(source, response.iter_raw()):
                if filled + len(block) > size and not more_follows:
                    reason = f"{_host(source)} sent more than was asked for"
                    raise Transient(reason, tries=3, error=changed_error(source))
                taken = block[: size - filled]
                data[filled : filled + len(taken)] = taken
                filled += len(taken)
                if more_follows and filled == size:
                    break
        if filled < size:
            raise Transient(f"{_host(source)} sent {filled:,} of {size:,} bytes")
        return data

    def whole(self, source: Source) -> Iterator[bytes]:
        """Yield the bytes of a file from a server that gives no ranges."""
        left = source.size or 0
        with self._get(source, {}) as response:
            _check_range(source, response, 0)
            for block in self._blocks(source, response.iter_raw()):
                left -= len(block)
                yield block
        if left:
            raise Transient(f"{_host(source)} sent another number of bytes than it said")

    def ask_hub_api(self, spec: str, path: str, form: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        """Return the hub's response to an API path, or to a URL from it, and the URL of the next page, if any."""
        source = Source(spec, spec, None, "")
        url = path if "://" in path else f"{self._hub.endpoint}/api/{path}"
        body = bytearray()
        with self._get(source, {}, url, form) as response:
            for block in self._blocks(source, response.iter_bytes()):  # a proxy may have compressed it unasked
                body += block
                if len(body) > _LARGEST_PAGE:
                    raise SourceError("the hub's list of files is too large", place=source.name)
            following = response.links.get("next", {}).get("url", "")
            following = following and urljoin(str(response.url), following)
        try:
            return json.loads(body), following
        except (ValueError, RecursionError):
            is_page = body.lstrip()[:1] == b"<"
            raise Transient(f"the hub's answer is {'a web page' if is_page else 'not whole'}") from None

    @cached_property
    def _hub(self) -> Hub:
        return Hub()

    def _url_of(self, source: Source) -> str:
        return self._hub.url_of(source) if scheme_of(source.path) == "hf" else source.path

    @contextmanager
    def _get(
        self, source: Source, headers: dict[str, str], url: str = "", form: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        """Give a successful response, after redirects; its body is not read yet.

        `url`: instead of the source's own, for which the target of its last redirect is used. `form`: is posted.
        """
        at_hub = scheme_of(source.path) == "hf"
        if at_hub:
            self._hub.check_online(source)
        known = "" if url else self._redirects.get(source.path, "")
        url = url or known or self._url_of(source)
        try:
            for _ in range(_MAX_REDIRECTS):
                hub = self._hub if at_hub and self._hub.has(url) else None
                own = hub.headers if hub else {}
                with closing(self._send(source, url, {**own, **headers}, form)) as response:
                    if hub and source.version:
                        hub.check_version(source, response)
                    if response.status_code in _REDIRECTS and "location" in response.headers:
                        url = _redirected(source, url, response.headers["location"])
                        self._remember(source, url)
                    elif known and response.status_code in _REFUSED:
                        # The address behind the redirect was good for some minutes only.
                        self._redirects.pop(source.path, None)
                        url, known = self._url_of(source), ""
                    else:
                        _check_status(source, response, hub)
                        yield response
                        return
        except Transient:
            self._redirects.pop(source.path, None)  # the next redirect may lead to a server that works
            raise
        raise SourceError(f"more than {_MAX_REDIRECTS} redirects", place=source.name)

    def _send(self, source: Source, url: str, headers: dict[str, str], form: Mapping[str, Any] | None) -> Any:
        """Return the response to one request. Its body is not read yet."""
        library = self._library
        try:
            request = self._client.build_request(
                "GET" if form is None else "POST", url, data=form, headers={**headers, "Accept-Encoding": "identity"}
            )
            return self._client.send(request, stream=True)
        except (library.InvalidURL, library.UnsupportedProtocol, UnicodeError, OverflowError):
            raise _no_address(source) from None  # a name or a port that cannot be
        except (library.RequestError, OSError) as error:
            raise self._cut(source, error) from None

    def _blocks(self, source: Source, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks of a body; raise Transient where the connection fails."""
        try:
            for block in blocks:
                check_running(self._stopped)
                yield block
        except (self._library.RequestError, OSError) as error:
            raise self._cut(source, error) from None

    def _cut(self, source: Source, error: BaseException) -> Transient:
        if isinstance(error, self._library.TimeoutException):
            return Transient(f"no answer from {_host(source)} for {self._policy.timeout:g} s")
        # The message may contain a signed URL, so only the kind of failure is shown.
        return Transient(_failure(error, _host(source)))

    def _remember(self, source: Source, url: str) -> None:
        if len(self._redirects) >= _MAX_REMEMBERED:
            self._redirects.pop(next(iter(self._redirects)), None)
        self._redirects[source.path] = url


def _redirected(source: Source, url: str, location: str) -> str:
    try:
        url = urljoin(url, location)
    except ValueError:
        raise _no_address(source) from None
    if scheme_of(url) not in WEB:
        raise SourceError(f"{_host(source)} redirects to something that is not a web address", place=source.name)
    return url


def _no_address(source: Source) -> Transient:
    error = SourceError("the address is not one of a web server", place=source.name)
    return Transient("a redirect to no address", tries=3, error=error)


def _check_status(source: Source, response: Any, hub: Hub | None) -> None:
    """Raise for a response that is not the file. `hub`: if it has answered itself."""
    status = response.status_code
    if status in (200, 206) or (status == 416 and source.size is None):
        return
    if status in _TRANSIENT:
        raise Transient(f"{status} from {_host(source)}", _retry_after(response.headers))
    if status in (412, 416):
        raise seems_changed(source)
    raise hub.refusal(source.path, status, response.headers) if hub else _refusal(source.path, status)


def _etag(response: Any) -> str:
    return str(response.headers.get("etag") or response.headers.get("last-modified", ""))


def _check_range(source: Source, response: Any, start: int) -> None:
    """Raise when a response is not about the file as it was found, or about another range."""
    _check_encoding(source, response)
    # A proxy that compresses for other clients turns an ETag into a weak one.
    etag, known = _etag(response).removeprefix("W/"), source.version.removeprefix("W/")
    if scheme_of(source.path) != "hf" and known and etag and etag != known:
        raise seems_changed(source)
    if response.status_code == 200 and response.headers.get("content-length") != str(source.size):
        # Perhaps only one server of several has sent it: a page about its troubles.
        raise Transient(f"{_host(source)} sent something else than the file", tries=3, error=changed_error(source))
    sent = response.headers.get("content-range", "")
    if response.status_code == 206 and sent:
        first, _, total = sent.removeprefix("bytes").strip().partition("/")
        if total.isdigit() and int(total) != source.size:
            raise seems_changed(source)
        if first.partition("-")[0] != str(start):
            raise Transient(f"{_host(source)} sent another range than was asked for")


def _check_encoding(source: Source, response: Any) -> None:
    """Raise for a body that was compressed for the transfer, unless that is the compression of the file itself."""
    encoding = response.headers.get("content-encoding", "identity").lower().removeprefix("x-")
    if encoding not in ("identity", compression_of(source.path)):
        message = "the server compresses what it sends, though it was asked not to, so no part of the file can be read"
        error = SourceError(message, place=source.name, hint="download the file first")
        raise Transient(f"{_host(source)} sent something compressed", tries=3, error=error)


def _refusal(url: str, status: int) -> SourceError:
    """The error for a status that no retry changes, with a hint."""
    message, hint = f"the server answers {status}", None
    if scheme_of(url) == "hf":
        message = f"the server to which the hub sends for its files answers {status}"
        hint = "it is not the dataset's owner who refuses: look whether a proxy stands between, or try again later"
    elif status in (401, 403):
        message = f"the server refuses to give the file ({status})"
        hint = "a signed address may have expired; a password stands in the address: https://USER:PASSWORD@HOST/…"
    elif status in (404, 410):
        message = "the source is not there"
    return SourceError(message, place=public_url(url), hint=hint)


def _host(source: Source) -> str:
    return "the hub" if scheme_of(source.path) == "hf" else urlsplit(source.name).netloc


def _failure(error: BaseException, host: str) -> str:
    name = type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the certificate of {host} is not trusted (SSL_CERT_FILE can name others)"
    if "SSL" in str(error):
        return f"no encrypted connection to {host}"
    if "Protocol" in name or name == "ReadError":
        return f"the connection to {host} was cut"
    return f"no connection to {host}" if name == "ConnectError" else f"the connection to {host} failed"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, or until the hub's window of requests ends; None: no word of it."""
    window = re.search(r";\s*t=(\d+)", headers.get("ratelimit", ""))
    wanted = headers.get("retry-after") or (window[1] if window else "")
    return float(wanted) if wanted.isdigit() else None
