"""How the hub on this machine answers: its API, redirects to a CDN, files by ranges, and a plain web server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import socket
import time
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_uploads import answer, git_oid

if TYPE_CHECKING:
    from tests.hub import Hub

Content = bytes | Path
T = TypeVar("T")
TOKEN = "hf_loopbackTokenThatMustNeverBeWritten"
_SIGNATURE = "X-Amz-Signature=5ec2e7" + "0" * 58
_LARGE = 1 << 10  # bytes from which a file lies at the CDN, as large files do
_BLOCK = 1 << 20


def etag_of(content: Content) -> str:
    """The hash that names a content; of a file on disk that of its name, size and time, since it may be gigabytes."""
    if isinstance(content, bytes):
        return _sha256(content)
    status = content.stat()
    return hashlib.sha256(f"{content} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()


def _small_oid(content: Content) -> str:
    """Git's hash of a file; of one on disk, some hash."""
    return git_oid(content) if isinstance(content, bytes) else etag_of(content)[:40]


@lru_cache(256)
def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


class HubServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    hub: Hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    wbufsize = 1 << 16
    server: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.server.hub
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._body = self.rfile.read(int(headers.get("content-length", 0)))
        self._request, self._fault = hub.received(self.command, url.path, url.query, headers)
        if hub.latency:
            time.sleep(hub.latency)
        fault = self._fault
        if fault is not None and fault.stall and fault.cut is None:
            time.sleep(fault.stall)
        if fault is not None and fault.drip:
            while not hub.ended.wait(fault.drip):
                self.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                self.wfile.flush()
        if fault is not None and fault.status is not None:
            self._answer(fault.status, fault.body, fault.headers)
            return
        lost = fault is not None and fault.lost
        taken = answer(hub, self.command, url.path, self._body) if self.command in ("POST", "PUT") else None
        if taken is not None:
            if lost:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._answer(taken[0], json.dumps(taken[1]).encode(), {"Content-Type": "application/json", **taken[2]})
            return
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts[:2] == ["api", "buckets"] and len(parts) >= 5 and parts[4] == "tree":
            self._bucket_tree(hub, "/".join(parts[2:4]), "/".join(parts[5:]))
        elif parts[0] == "buckets" and len(parts) >= 5 and parts[3] == "resolve":
            self._bucket_file(hub, "/".join(parts[1:3]), "/".join(parts[4:]))
        elif parts[:2] == ["api", "datasets"] and len(parts) >= 4:
            self._api(hub, "/".join(parts[2:4]), parts[4:])
        elif parts[0] == "datasets" and len(parts) >= 6 and parts[3] == "resolve":
            self._resolve(hub, "/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        elif parts[0] == "cdn" and len(parts) > 1:
            self._cdn(hub, parts[1], url.query)
        elif parts[0] == "web":
            self._web(hub, "/".join(parts[1:]), url.path.endswith("/"))
        elif parts[0] in ("s3", "gs", "az"):
            self._object(hub, parts[0], parts[1], "/".join(parts[2:]))
        else:
            self._answer(404, b"not found")

    do_HEAD = do_GET
    do_POST = do_GET
    do_PUT = do_GET

    def _repo(self, hub: Hub, name: str, revision: str) -> tuple[dict[str, Content], str] | None:
        """The files of a revision and its commit; None when that was refused already."""
        repo = hub.repos.get(name)
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repo is None or (repo.private and not known):
            code = 404 if known else 401  # the hub does not tell strangers what there is
            self._answer(code, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return None
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._answer(404, b'{"error":"Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
            return None
        return repo.commits[commit], commit

    def _api(self, hub: Hub, name: str, rest: list[str]) -> None:
        revision = rest[1] if len(rest) > 1 else "main"
        found = self._repo(hub, name, revision)
        if found is None:
            return
        files, commit = found
        what = rest[0] if rest else "revision"
        if what == "revision":
            info = {"id": name, "sha": commit, "private": False, "gated": False, "disabled": False, "downloads": 0}
            siblings = [{"rfilename": path} for path in files]
            self._json({**info, "likes": 0, "tags": [], "siblings": siblings})
        elif what == "tree":
            self._tree(hub, files, "/".join(rest[2:]))
        elif what == "paths-info":
            form = parse_qs(self._body.decode())
            wanted = form.get("paths", [])
            self._json([entry for path in wanted for entry in _entries(files) if entry["path"] == path])
        else:
            self._answer(404, b"not found")

    def _bucket_tree(self, hub: Hub, name: str, folder: str) -> None:
        if name not in hub.buckets:
            self._answer(404, b'{"error":"Bucket not found"}', {"X-Error-Code": "RepoNotFound"})
            return
        recursive = parse_qs(self._request.query).get("recursive", ["false"])[0].lower() == "true"
        below = folder + "/" if folder else ""
        inside = [entry for entry in _entries(hub.buckets[name]) if entry["path"].startswith(below)]
        self._json(
            [
                {"type": entry["type"], "path": entry["path"]}
                | ({"size": entry["size"], "xetHash": entry["xet"]} if entry["type"] == "file" else {})
                for entry in inside
                if recursive or "/" not in entry["path"][len(below) :]
            ]
        )

    def _bucket_file(self, hub: Hub, name: str, path: str) -> None:
        content = hub.buckets.get(name, {}).get(path)
        if content is None:
            self._answer(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
            return
        etag = etag_of(content)
        where = f"http://localhost:{self.server.server_port}/cdn/{etag}?{_SIGNATURE}"
        self._answer(302, b"Found", {"Location": where, "X-Linked-Size": str(_size(content)), "X-Xet-Hash": etag[::-1]})

    def _tree(self, hub: Hub, files: dict[str, Content], folder: str) -> None:
        query = parse_qs(self._request.query)
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        below = folder + "/" if folder else ""
        entries = [entry for entry in _entries(files) if entry["path"].startswith(below) and entry["path"] != folder]
        if folder and not entries:
            self._answer(404, b'{"error":"not found"}', {"X-Error-Code": "EntryNotFound"})
            return
        if not recursive:
            entries = [entry for entry in entries if "/" not in entry["path"][len(below) :]]
        first = int(query.get("cursor", ["0"])[0])
        last = first + hub.page
        more = {}
        page, goes_on = _stuck(hub, entries[first:last], entries[: hub.page], first > 0, last < len(entries))
        if goes_on:
            rest = f"{hub.url}{self._request.path}?recursive={recursive}&expand=False&cursor={last}"
            more["Link"] = f'<{rest}>; rel="next"'
        self._json(page, more)

    def _resolve(self, hub: Hub, name: str, revision: str, path: str) -> None:
        found = self._repo(hub, name, revision)
        if found is None:
            return
        files, commit = found
        if hub.repos[name].gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(403, b"Access to this dataset is restricted", {"X-Error-Code": "GatedRepo"})
            return
        if path not in files:
            self._answer(404, b"Entry not found", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        content = files[path]
        etag = etag_of(content)
        about = {"X-Repo-Commit": commit, "X-Linked-Size": str(_size(content)), "X-Linked-Etag": f'"{etag}"'}
        if _size(content) < _LARGE:
            self._file(content, {"X-Repo-Commit": commit}, _small_oid(content))
            return
        # Another host's name, as a CDN has: what is meant for the hub must not come here.
        where = f"http://localhost:{self.server.server_port}/cdn/{etag}?{_SIGNATURE}&Expires={int(time.time()) + 3600}"
        self._answer(302, b"Found", {**about, "Location": where, "ETag": f'"{etag}"'})

    def _cdn(self, hub: Hub, etag: str, query: str) -> None:
        if _SIGNATURE not in query:
            self._answer(403, b"no signature")
            return
        commits = [files for repo in hub.repos.values() for files in repo.commits.values()]
        for files in (*commits, *hub.buckets.values()):
            for content in files.values():
                if etag_of(content) == etag:
                    self._file(content, {})
                    return
        self._answer(404, b"gone")

    def _web(self, hub: Hub, path: str, folder: bool) -> None:
        if hub.web_password is not None:
            expected = "Basic " + base64.b64encode(hub.web_password.encode()).decode()
            if self.headers.get("Authorization") != expected:
                self._answer(401, b"who are you?", {"WWW-Authenticate": 'Basic realm="web"'})
                return
        if path in hub.web:
            self._file(hub.web[path], {})
            return
        if not folder and any(name.startswith(f"{path}/") for name in hub.web):
            self._answer(301, b"", {"Location": hub.url + self._request.path + "/"})
        elif folder:
            self._answer(200, b"<html><body>what is here</body></html>", {"Content-Type": "text/html"})
        else:
            self._answer(404, b"not found")

    def _object(self, hub: Hub, dialect: str, bucket: str, key: str) -> None:
        """An object store: objects by ranges, and lists of them in pages."""
        objects = hub.objects.get(bucket)
        if objects is None:
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif not key:
            self._answer(200, _listed(hub, dialect, objects, parse_qs(self._request.query)).encode())
        elif key in objects:
            self._file(objects[key], {"x-ms-blob-type": "BlockBlob"})
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _json(self, data: Any, headers: dict[str, str] | None = None) -> None:
        self._answer(200, json.dumps(data).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, len(body), headers or {})
        if self.command != "HEAD":
            self._send(body, 0, len(body))
        self.wfile.flush()

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self._request.status = status
        if "Date" in headers:
            self.send_response_only(status)
        else:
            self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _file(self, content: Content, headers: dict[str, str], etag: str = "") -> None:
        size, etag = _size(content), f'"{etag or etag_of(content)}"'
        about = {**headers, "ETag": etag, "Accept-Ranges": "bytes", "Last-Modified": formatdate(0, usegmt=True)}
        about["Content-Type"] = "application/octet-stream"
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != etag:
            self._answer(412, b"changed", about)
            return
        start, end = 0, size
        span = self._request.range
        fault = self._fault
        if span is not None and not (fault and fault.whole):
            start = span[0] if span[0] >= 0 else max(0, size + span[0])
            end = size if span[1] is None else min(size, span[1] + 1)
            if start >= size:
                self._answer(416, b"", {**about, "Content-Range": f"bytes */{size}"})
                return
            about["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            status = 206
        else:
            status = 200
        if fault is not None and fault.short is not None:
            end = max(start, end - fault.short)
        self._head(status, end - start, {**about, **(fault.headers if fault is not None else {})})
        if self.command != "HEAD":
            self._send(content, start, end)
        self.wfile.flush()

    def _send(self, content: Content, start: int, end: int) -> None:
        fault = self._fault
        last = end if fault is None or fault.cut is None else min(end, start + fault.cut)
        if isinstance(content, bytes):
            view = memoryview(content)
            for at in range(start, last, _BLOCK):
                self._request.sent += self.wfile.write(view[at : min(last, at + _BLOCK)])
        else:
            self.wfile.flush()
            with open(content, "rb") as file:
                self._request.sent += self.connection.sendfile(file, start, last - start) if last > start else 0
        if last < end or (fault is not None and fault.cut is not None):
            self.wfile.flush()
            if fault is not None and fault.stall:
                time.sleep(fault.stall)
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True


def _entries(files: dict[str, Content]) -> list[dict[str, Any]]:
    """The tree as the hub lists it: folders, and files with the hashes of their contents."""
    folders = {parent.as_posix() for path in files for parent in Path(path).parents if parent.as_posix() != "."}
    listed: list[dict[str, Any]] = [
        {"type": "directory", "oid": hashlib.sha1(folder.encode()).hexdigest(), "size": 0, "path": folder}
        for folder in folders
    ]
    for path, content in files.items():
        etag, size = etag_of(content), _size(content)
        entry: dict[str, Any] = {
            "type": "file",
            "oid": _small_oid(content),
            "size": size,
            "path": path,
            "xet": etag[::-1],
        }
        if size >= _LARGE:
            entry["lfs"] = {"oid": etag, "size": size, "pointerSize": 134}
        listed.append(entry)
    return sorted(listed, key=lambda entry: entry["path"])


def _stuck(hub: Hub, page: list[T], first: list[T], later: bool, goes_on: bool) -> tuple[list[T], bool]:
    """A page of a list, and whether another one follows, as it is or as `hub.stuck` says."""
    if hub.stuck == "empty":
        return [], True
    return (first if hub.stuck and later else page), goes_on or hub.stuck == "same"


def _listed(hub: Hub, dialect: str, objects: dict[str, Content], query: dict[str, list[str]]) -> str:
    """A page of a list as XML; Google's is Amazon's."""
    asked = {name: values[0] for name, values in query.items()}
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    after = asked.get("continuation-token") or asked.get("marker") or asked.get("start-after", "")
    entries: dict[str, Content | None] = {}
    for key in sorted(objects):
        inside, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if key.startswith(prefix):
            name = prefix + inside + slash if slash else key
            entries[name] = None if slash else objects[key]
    following = [name for name in entries if name > after]
    names, goes_on = _stuck(
        hub, following[: hub.page], list(entries)[: hub.page], bool(after), len(following) > hub.page
    )
    page = {name: entries[name] for name in names}
    more = following[: hub.page][-1] if goes_on and following else "~" if goes_on else ""
    files = {html.escape(name): content for name, content in page.items() if content is not None}
    folders = [html.escape(name) for name, content in page.items() if content is None]
    date = formatdate(0, usegmt=True)
    if dialect == "az":
        made = "".join(
            f"<Blob><Name>{name}</Name><Properties><Creation-Time>{date}</Creation-Time><Last-Modified>{date}"
            f"</Last-Modified><Content-Length>{_size(content)}</Content-Length><Content-Type>x/x</Content-Type>"
            f"<Etag>&quot;{etag_of(content)}&quot;</Etag></Properties></Blob>"
            for name, content in files.items()
        )
        made += "".join(f"<BlobPrefix><Name>{name}</Name></BlobPrefix>" for name in folders)
        rest = f"<NextMarker>{html.escape(more)}</NextMarker>"
        return f"<EnumerationResults><Blobs>{made}</Blobs>{rest}</EnumerationResults>"
    made = "".join(
        f"<Contents><Key>{name}</Key><Size>{_size(content)}</Size><LastModified>1970-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;{etag_of(content)}&quot;</ETag></Contents>"
        for name, content in files.items()
    )
    made += "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in folders)
    token = f"<NextContinuationToken>{html.escape(more)}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{made}<IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}</ListBucketResult>"
