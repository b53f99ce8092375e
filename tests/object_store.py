"""An S3 server of our own: moto in a process of its own on this machine, and a way to it that fails on demand."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import botocore.session
import pytest

from tests.corpus import random_words
from tests.watching import wait_until

MB = 1_000_000
WORDS: dict[str, Any] = {"separator": "\n", "val": 0.1, "format": "shards", "shard_tokens": 400_000}
"""Options for `words`, under which a few shards come of them."""
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"


class Server:
    """A running server, and a client that is not ours."""

    def __init__(self, port: int) -> None:
        self.port, self.endpoint = port, f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.client = botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def bucket(self, name: str) -> Bucket:
        """A new bucket."""
        self.client.create_bucket(Bucket=name)
        return Bucket(self, name)


class Bucket:
    """What is in a bucket, seen from outside."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name

    def url(self, prefix: str = "out") -> str:
        return f"s3://{self.name}/{prefix}"

    def names(self, prefix: str = "out/") -> list[str]:
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [entry["Key"].removeprefix(prefix) for page in pages for entry in page.get("Contents", ())]

    def read(self, name: str, prefix: str = "out/") -> bytes:
        data: bytes = self.server.client.get_object(Bucket=self.name, Key=prefix + name)["Body"].read()
        return data

    def contents(self, prefix: str = "out/") -> dict[str, bytes]:
        """Every file of a dataset, without working files; to be compared with `corpus.contents`."""
        return {name: self.read(name, prefix) for name in self.names(prefix) if not name.startswith(".shardmill/")}

    def working(self) -> list[str]:
        return [name for name in self.names() if name.startswith(".shardmill/")]

    def put(self, name: str, data: bytes, prefix: str = "out/") -> None:
        self.server.client.put_object(Bucket=self.name, Key=prefix + name, Body=data)

    def delete(self, name: str, prefix: str = "out/") -> None:
        self.server.client.delete_object(Bucket=self.name, Key=prefix + name)

    def uploads(self) -> list[str]:
        """The objects whose uploads are open."""
        found = self.server.client.list_multipart_uploads(Bucket=self.name)
        return [upload["Key"] for upload in found.get("Uploads", ())]


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One a module, since it keeps all that is put there in memory; the environment points to it."""
    log = tmp_path_factory.mktemp("moto") / "log"
    with open(log, "wb") as said, pytest.MonkeyPatch.context() as patch:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=said, stderr=said
        )
        try:
            server = Server(_port(process, log))
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                patch.delenv(name)
            for name, value in server.environment.items():
                patch.setenv(name, value)
            yield server
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def bucket(s3_server: Server, request: pytest.FixtureRequest) -> Bucket:
    """A bucket of the test's own."""
    return s3_server.bucket(re.sub(r"[^a-z0-9]+", "-", f"t-{request.node.name.lower()}")[-60:].strip("-"))


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """The free port that the server has found, from which on it answers."""
    wait_until(lambda: b"Running on" in log.read_bytes() or process.poll() is not None)
    found = re.search(r"Running on http://127\.0\.0\.1:(\d+)\s", said := log.read_text())
    assert found, said
    return int(found[1])


LOSE, HALF, STALL = -1, -2, -3


class Fault(BaseException):
    """Raised by a rule: the connection is cut here."""


class Answer(NamedTuple):
    """An answer of success, with a body and some header lines."""

    body: bytes
    headers: str = ""


class FaultyWay:
    """A server before the server: every request goes through `rule`, which may answer it in the server's place.

    `rule(method, path)` gives None (pass it on), a status, a body or an Answer to answer with, LOSE (do it and cut the
    line before the answer), HALF (do it and cut the line within the answer), STALL (do it, and say nothing for `stall`
    seconds) or a function from the server's answer to another one; or it raises Fault (cut the line at once).
    """

    stall = 3.0

    def __init__(self, server: Server, rule: Callable[[str, str], Any]) -> None:
        self._server, self.rule = server, rule
        self.requests: list[tuple[str, str]] = []

    def __enter__(self) -> FaultyWay:
        way = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, Fault):
                    way._serve(self.request)

        self._listener = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._listener.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._listener.server_address[1]}"
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    def _serve(self, near: socket.socket) -> None:
        """One request after the other over one connection, each passed on over its own."""
        while head := _head(near):
            method, path = head.split(b" ", 2)[:2]
            self.requests.append((method.decode(), path.decode()))
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            left = int(length[1]) if length else 0
            answer = self.rule(method.decode(), path.decode())
            if answer not in (None, LOSE, HALF, STALL) and not callable(answer):
                _exactly(near, left, lambda data: None)
                answer = Answer(answer) if isinstance(answer, bytes) else answer
                status, (body, more) = (200, answer) if isinstance(answer, Answer) else (answer, Answer(b""))
                lines = [f"HTTP/1.1 {status} Fault", f"Content-Length: {len(body)}", *more.splitlines(), "", ""]
                near.sendall("\r\n".join(lines).encode() + body)
                continue
            with socket.create_connection(("127.0.0.1", self._server.port), 30) as far:
                far.sendall(re.sub(rb"(?i)\r\nconnection: *[\w-]+", b"", head)[:-2] + b"Connection: close\r\n\r\n")
                if b"100-continue" in head:
                    near.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                _exactly(near, left, far.sendall)
                said = b""
                while data := far.recv(1 << 16):
                    if answer is None:
                        near.sendall(data)
                    else:
                        said += data
            if callable(answer):
                near.sendall(answer(said))
            elif answer == HALF:
                head, _, body = said.partition(b"\r\n\r\n")
                near.sendall(head + b"\r\n\r\n" + body[: len(body) // 2] if body else head[: len(head) // 2])
            elif answer == STALL:
                time.sleep(self.stall)
            return


def _head(sock: socket.socket) -> bytes:
    """The lines of a request up to the empty one; a byte at a time, so that nothing of the body is taken."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not select.select([sock], [], [], 30)[0]:
            return b""
        byte = sock.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def _exactly(sock: socket.socket, size: int, take: Callable[[bytes], Any]) -> None:
    while size:
        data = sock.recv(min(size, 1 << 16))
        if not data:
            raise Fault
        take(data)
        size -= len(data)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    source = tmp_path / "words.txt"
    source.write_bytes(random_words(4 * MB, seed=5))
    return source


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and pushes after every small chunk."""
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    monkeypatch.setattr("shardmill.write.store_destination._EVERY", 0.0)
    monkeypatch.setattr("shardmill.run.budget.LARGEST", 1 << 18)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDMILL_TRIES", "3")
