"""A bucket of a million objects: the whole command stays within its memory while it lists them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.meter import metered

TEXT = b"The quick brown fox jumps over the lazy dog.\n"
PAGE = 1000


def key(number: int) -> str:
    return f"corpus/2026-11/document-{number:08}.txt"


def etag(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 128):032x}"


class Listing(BaseHTTPRequestHandler):
    """Answers as S3 does about objects that are made up as they are asked for."""

    protocol_version = "HTTP/1.1"
    count = 0

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if "list-type" in asked:
            self._answer(200, self._page(asked).encode(), {"Content-Type": "application/xml"})
        elif found := re.search(r"document-(\d{8})\.txt$", url.path):
            about = {"ETag": f'"{etag(int(found[1]))}"', "Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
            if "range" in self.headers:
                about["Content-Range"] = f"bytes 0-{len(TEXT) - 1}/{len(TEXT)}"
            self._answer(206 if "range" in self.headers else 200, TEXT, about)
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})

    do_HEAD = do_GET

    def _page(self, asked: dict[str, str]) -> str:
        after = asked.get("continuation-token") or asked.get("start-after", "")
        number = re.search(r"document-(\d+)", after)
        first = int(number[1].ljust(8, "0")) if number else 0
        first += number is not None and key(first) <= after
        last = min(first + PAGE, self.count)
        made = "".join(
            f"<Contents><Key>{key(i)}</Key><Size>{len(TEXT)}</Size><LastModified>1970-01-01T00:00:00.000Z"
            f"</LastModified><ETag>&quot;{etag(i)}&quot;</ETag></Contents>"
            for i in range(first, last)
        )
        more = last < self.count
        token = f"<NextContinuationToken>{key(last - 1)}</NextContinuationToken>" if more else ""
        ended = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        return f"<ListBucketResult>{made}{ended}</ListBucketResult>"

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server with so many objects."""
    handler = type("Counted", (Listing,), {"count": request.param})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("SHARDMILL_TIMEOUT", "120")  # of a busy machine
    yield request.param
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "bucket", [3000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])], indirect=True
)
def test_listing_a_bucket_stays_within_the_memory_of_the_command(bucket: int, tmp_path: Path) -> None:
    limits = ("--memory", "400MB", "--workers", "1")
    inspected = metered("inspect", "s3://many/corpus", *limits, "--json")
    assert inspected.code == 0, inspected.err
    assert json.loads(inspected.out)["sources"] == bucket
    made = metered("prepare", "s3://many/corpus", "-o", tmp_path / "out", *limits, "--limit", "1000", "--json")
    assert made.code == 0, made.err
    assert len(json.loads((tmp_path / "out" / "manifest.json").read_bytes())["sources"]) <= bucket
    assert json.loads(made.out)["documents"] > 50
    assert max(inspected.peak, made.peak) < 400_000_000
