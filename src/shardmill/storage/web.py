"""Files on web servers and on the Hugging Face hub, read by ranges; each response is checked against what was found.

The client is that of huggingface_hub, which knows the machine's proxies and certificates. One call is one attempt.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import quote, urljoin, urlsplit

from shardmill.errors import OutputError, SourceError
from shardmill.extras import needs
from shardmill.storage.names import WEB, HubAddress, public_url, scheme_of
from shardmill.storage.retrying import RetryPolicy, Transient, Unreachable, seems_changed
from shardmill.storage.source import Source, changed_error

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
_REDIRECTS = (301, 302, 303, 307, 308)
_REFUSED = (400, 401, 403, 404, 410)
_MAX_REDIRECTS = 5
_MAX_REMEMBERED = 64
_LARGEST_PAGE = 64 << 20  # an index of half a million files
_UNMARKED = {"br", "deflate", "compress", "x-compress"}
_WHOLE_PACE = 1 << 20  # bytes that come within the time for a request, or a whole file comes too slowly


class NoRanges(SourceError):
    """The server sends only whole files, no ranges."""


class WebStore:
    """Any thread may call it. Its methods raise Transient where another attempt may succeed, else SourceError."""

    def __init__(self, policy: RetryPolicy) -> None:
        needs("huggingface_hub", "hub", "sources at the hub and on the web")
        # The package loads its modules when they are first imported, not when they are named.
        self._utils = import_module("huggingface_hub.utils")
        self._constants = import_module("huggingface_hub.constants")
        # httpx, or httpx2 with a later huggingface_hub.
        self._library = import_module(type(self._utils.get_session()).__module__.partition(".")[0])
        self._offline = import_module("huggingface_hub.errors").OfflineModeIsEnabled
        self._hub_headers: dict[str, str] = self._utils.build_hf_headers(library_name="shardmill")
        self._policy = policy
        self._redirects: dict[str, str] = {}
        """The target of each source's last redirect. The hub limits the number of requests."""

    def find(self, url: str) -> tuple[int, str]:
        """Return size and version of a web file, from a GET of one byte: a signed URL does not allow HEAD."""
        source = Source(public_url(url), url, None, "")
        with self._get(source, {"Range": "bytes=0-0"}) as response:
            if urlsplit(str(response.url)).path == urlsplit(url).path + "/":  # so servers say that it is a folder
                hint = "end it with a slash: then the files are read to which its index links"
                raise SourceError("the address is that of a folder", place=source.name, hint=hint)
            _refuse_encoded(source, response)
            if response.status_code in (206, 416):
                size = response.headers.get("content-range", "").rpartition("/")[2]
            else:
                size = response.headers.get("content-length", "")
            if not size.isdigit():
                message = "the server does not say how large the file is"
                error = SourceError(message, place=source.name, hint="download the file first")
                raise Transient(message, tries=3, error=error)
            return int(size), _etag(response)

    def links(self, url: str) -> list[str]:
        """Return the links on the index page of a folder, relative to it, that are below it. A folder ends with `/`."""
        source = Source(public_url(url), url, None, "")
        with self._get(source, {}) as response:
            page = self._body(source, response).decode("utf-8", "replace")
            # After a redirect, links may be relative to the new URL.
            roots = [public_url(url), public_url(str(response.url))]
        below = []
        for link in _links_of(page):
            try:
                target = urljoin(roots[1], link)
            except ValueError:  # not an address, so not one below
                continue
            root = next((root for root in roots if target.startswith(root) and target != root), None)
            if root is not None and not re.search(r"[?#]", target):
                below.append(target[len(root) :])
        return list(dict.fromkeys(below))

    def fetch(self, source: Source, start: int, end: int, deadline: float) -> bytearray:
        """Return the bytes of a range."""
        data = bytearray(end - start)
        filled = 0
        with self._get(source, {"Range": f"bytes={start}-{end - 1}"}) as response:
            whole = response.status_code == 200
            if whole and start > 0:
                # One of several servers may have ignored the range. Reading up to its start each time would make the
                # traffic grow with the square of the size.
                error = NoRanges("the server gives no parts of the file", place=source.name, hint=_DOWNLOAD)
                raise Transient(f"{_host(source)} sent the whole file in place of a part", tries=3, error=error)
            _check_range(source, response, start)
            more_follows = whole and end < (source.size or 0)
            for block in self._blocks(source, response.iter_raw(), deadline):
                if filled + len(block) > len(data) and not more_follows:
                    why = _compression_error(source, response) or changed_error(source)
                    raise Transient(f"{_host(source)} sent more than was asked for", tries=3, error=why)
                part = block[: len(data) - filled]
                data[filled : filled + len(part)] = part
                filled += len(part)
                if more_follows and filled == len(data):
                    break
        if filled < len(data):
            reason = f"{_host(source)} sent {filled:,} of {len(data):,} bytes"
            raise Transient(reason, error=_compression_error(source, response))
        return data

    def stream(self, source: Source, write: Callable[[bytes], object], deadline: float) -> None:
        """Write the whole file, for servers that give no ranges; `deadline` is that of its first bytes."""
        filled = 0
        with self._get(source, {}) as response:
            _check_range(source, response, 0)
            for block in response.iter_raw():
                if filled + len(block) > (source.size or 0):
                    raise seems_changed(source)
                if filled // _WHOLE_PACE < (filled + len(block)) // _WHOLE_PACE:
                    deadline = time.monotonic() + self._policy.retry_seconds
                elif time.monotonic() > deadline:
                    raise Transient(f"{_host(source)} is too slow")
                try:
                    write(block)
                except OSError as error:  # not the connection's fault
                    raise OutputError(f"the file cannot be kept: {error.strerror}", place=source.name) from None
                filled += len(block)
        if filled != source.size:
            raise Transient(f"{_host(source)} sent {filled:,} of {source.size or 0:,} bytes")

    def ask_hub_api(self, spec: str, path: str, form: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        """Return the hub's response to an API path, or to a URL from it, and the URL of the next page, if any."""
        source = Source(spec, spec, None, "")
        url = path if "://" in path else f"{self._endpoint}/api/{path}"
        with self._get(source, {}, url, form) as response:
            body = self._body(source, response)
            following = response.links.get("next", {}).get("url", "")
            following = following and urljoin(str(response.url), following)
        try:
            return json.loads(body), following
        except (ValueError, RecursionError):
            is_page = body.lstrip()[:1] == b"<"
            raise Transient(f"the hub's answer is {'a web page' if is_page else 'not whole'}") from None

    @property
    def _endpoint(self) -> str:
        return str(self._constants.ENDPOINT).rstrip("/")

    def _url_of(self, source: Source) -> str:
        if scheme_of(source.path) != "hf":
            return source.path
        address = HubAddress.parse(source.path)
        revision = quote(address.revision, safe="")
        return f"{self._endpoint}/datasets/{address.repo}/resolve/{revision}/{quote(address.path)}"

    @contextmanager
    def _connection_errors(self, source: Source) -> Iterator[None]:
        """Turn the errors of the HTTP library into Transient or SourceError, and forget the redirect that failed."""
        library, timeout = self._library, self._policy.timeout
        try:
            yield
        except self._offline:
            raise Unreachable(
                "HF_HUB_OFFLINE is set, so that nothing is asked",
                place=source.name,
                hint="unset it; or run once with `--cache DIR`, which then suffices",
            ) from None
        except Transient:
            self._redirects.pop(source.path, None)  # the next redirect may lead to a server that works
            raise
        except (library.RequestError, OSError) as error:
            self._redirects.pop(source.path, None)
            if isinstance(error, library.TimeoutException):
                raise Transient(f"no answer from {_host(source)} for {timeout:g} s") from None
            # The message may contain a signed URL, so only the kind of failure is shown.
            raise Transient(_failure(error, _host(source))) from None
        except (library.InvalidURL, ValueError):
            self._redirects.pop(source.path, None)  # the next redirect may lead to a server
            impossible = SourceError("the address is not one of a web server", place=source.name)
            raise Transient("a redirect to no address", tries=3, error=impossible) from None

    @contextmanager
    def _get(
        self, source: Source, headers: dict[str, str], url: str = "", form: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        """Give a successful response, after redirects; its body is not read yet.

        `url`: instead of the source's own, for which the target of its last redirect is used. `form`: is posted.
        """
        timeout = self._policy.timeout
        known = "" if url else self._redirects.get(source.path, "")
        url = url or known or self._url_of(source)
        with self._connection_errors(source):
            for _ in range(_MAX_REDIRECTS):
                own = self._hub_headers if self._is_hub(url) else {}
                with self._utils.get_session().stream(
                    "GET" if form is None else "POST",
                    url,
                    data=form,
                    headers={**own, **headers, "Accept-Encoding": "identity"},
                    follow_redirects=False,
                    timeout=self._library.Timeout(timeout, connect=min(timeout, 10.0)),
                ) as response:
                    if scheme_of(source.path) == "hf" and own and source.version:
                        _check_hub(source, response)
                    if response.status_code in _REDIRECTS and "location" in response.headers:
                        url = urljoin(url, response.headers["location"])
                        if scheme_of(url) not in WEB:
                            message = f"{_host(source)} redirects to something that is not a web address"
                            raise SourceError(message, place=source.name)
                        self._remember(source, url)
                    elif known and response.status_code in _REFUSED:
                        # The address behind the redirect was good for some minutes only.
                        self._redirects.pop(source.path, None)
                        url, known = self._url_of(source), ""
                    else:
                        self._check_status(source, response)
                        yield response
                        return
        raise SourceError(f"more than {_MAX_REDIRECTS} redirects", place=source.name)

    def _is_hub(self, url: str) -> bool:
        return url.startswith(self._endpoint + "/")

    def _remember(self, source: Source, url: str) -> None:
        if len(self._redirects) >= _MAX_REMEMBERED:
            self._redirects.pop(next(iter(self._redirects)), None)
        self._redirects[source.path] = url

    def _blocks(self, source: Source, blocks: Iterator[bytes], deadline: float) -> Iterator[bytes]:
        for block in blocks:
            yield block
            if time.monotonic() > deadline:
                raise Transient(f"{_host(source)} is too slow")

    def _body(self, source: Source, response: Any) -> bytes:
        """The whole of a list, decompressed if a proxy compressed it unasked."""
        body = bytearray()
        for block in self._blocks(source, response.iter_bytes(), time.monotonic() + self._policy.retry_seconds):
            body += block
            if len(body) > _LARGEST_PAGE:
                raise SourceError("the server's list of files is too large", place=source.name)
        return bytes(body)

    def _check_status(self, source: Source, response: Any) -> None:
        """Raise for a response that is not the file."""
        status = response.status_code
        if status in (200, 206) or (status == 416 and source.size is None):
            return
        if status in _TRANSIENT:
            raise Transient(f"{status} from {_host(source)}", _retry_after(response.headers))
        if status in (412, 416):
            raise seems_changed(source)
        # The hub's files are on another server, which has its own messages.
        _raise_refused(source.path, status, response.headers, hub=self._is_hub(str(response.url)))


def _etag(response: Any) -> str:
    return str(response.headers.get("etag") or response.headers.get("last-modified", ""))


def _check_range(source: Source, response: Any, start: int) -> None:
    _refuse_encoded(source, response)
    # A proxy that compresses for other clients turns an ETag into a weak one.
    etag, known = _etag(response).removeprefix("W/"), source.version.removeprefix("W/")
    if scheme_of(source.path) != "hf" and known and etag and etag != known:
        raise seems_changed(source)
    length = response.headers.get("content-length")
    if response.status_code == 200 and length != str(source.size) and "content-encoding" not in response.headers:
        # Perhaps only one server of several has sent it: a page about its troubles.
        raise Transient(f"{_host(source)} sent something else than the file", tries=3, error=changed_error(source))
    sent = response.headers.get("content-range", "")
    if response.status_code == 206 and sent:
        first, _, total = sent.removeprefix("bytes").strip().partition("/")
        if total.isdigit() and int(total) != source.size:
            raise seems_changed(source)
        if first.partition("-")[0] != str(start):
            raise Transient(f"{_host(source)} sent another range than was asked for")


def _refuse_encoded(source: Source, response: Any) -> None:
    """Raise for a body that does not show that it was compressed for the transfer; gzip and zstd have marks."""
    if set(re.findall(r"[\w-]+", response.headers.get("content-encoding", "").lower())) & _UNMARKED:
        raise Transient(
            f"{_host(source)} sent something compressed", tries=3, error=_compression_error(source, response)
        )


def _compression_error(source: Source, response: Any) -> SourceError | None:
    """The error for a body that was compressed for the transfer; None: it was not."""
    if response.headers.get("content-encoding", "identity") == "identity":
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


def _check_hub(source: Source, response: Any) -> None:
    """Raise when the hub's file of this name is not the one that was listed."""
    etag = response.headers.get("x-linked-etag") or response.headers.get("etag", "")
    if response.status_code < 400 and etag and etag.removeprefix("W/").strip('"') != source.version:
        raise seems_changed(source)


def _raise_refused(url: str, status: int, headers: Mapping[str, str], *, hub: bool) -> NoReturn:
    """Raise SourceError for a status that no retry changes, with a hint. `hub`: the hub itself answered."""
    code = headers.get("x-error-code", "")
    hint: str | None
    if scheme_of(url) != "hf":
        message, hint = f"the server answers {status}", None
        if status in (401, 403):
            message = f"the server refuses to give the file ({status})"
            hint = "a signed address may have expired; a password stands in the address: https://USER:PASSWORD@HOST/…"
        elif status in (404, 410):
            message = "the source is not there"
        raise SourceError(message, place=public_url(url), hint=hint)
    if not hub:
        message = f"the server to which the hub sends for its files answers {status}"
        hint = "it is not the dataset's owner who refuses: look whether a proxy stands between, or try again later"
    elif code in _HUB_ERRORS:
        message, hint = _HUB_ERRORS[code]
    elif status == 401 and "Invalid credentials" in headers.get("x-error-message", ""):
        message, hint = "the hub does not accept the token (401)", "`hf auth login` again, or correct HF_TOKEN"
    else:
        other = f"the hub answers {status}", "check the address, and HF_ENDPOINT if it is set"
        message, hint = _HUB_ERRORS.get(str(status), other)
    raise SourceError(message, place=public_url(url), hint=hint.format(repo=HubAddress.parse(url).repo))


_NO_DATASET = (
    "the hub has no such dataset, or does not show it to you",
    "check the name; for a private dataset `hf auth login` or set HF_TOKEN",
)
_HUB_ERRORS = {
    "GatedRepo": (
        "the dataset is gated: its owner wants you to accept its terms first",
        "accept them at https://huggingface.co/datasets/{repo}, then `hf auth login` or set HF_TOKEN",
    ),
    "RevisionNotFound": ("the dataset has no such revision", "check the name after the `@`"),
    "EntryNotFound": ("the dataset has no such file", "see https://huggingface.co/datasets/{repo}/tree/main"),
    "RepoNotFound": _NO_DATASET,
    "401": _NO_DATASET,
    "403": ("the hub does not allow it (403)", "the token must allow to read {repo}: `hf auth login` or set HF_TOKEN"),
}
_DOWNLOAD = "add `--cache DIR`: then the file is fetched whole, and read from there"


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
    """Seconds that the server asks to wait: until a time, or until the hub's window of requests ends; None: no word."""
    wanted = headers.get("retry-after", "")
    if not wanted:
        window = re.search(r";\s*t=(\d+)", headers.get("ratelimit", ""))
        wanted = window[1] if window else ""
    try:
        seconds = float(wanted)
    except ValueError:
        try:
            now = headers.get("date")  # its clock may differ from ours
            seconds = (_time(wanted) - (_time(now) if now else datetime.now(timezone.utc))).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _time(date: str) -> datetime:
    time = parsedate_to_datetime(date)
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
