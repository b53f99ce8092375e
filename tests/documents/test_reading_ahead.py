"""What is requested of a remote file before it is read, and what counts in the window."""

from __future__ import annotations

import pytest

from shardmill.documents import footer_bytes
from shardmill.storage import Fetcher, Source
from shardmill.storage.pool import Fetch
from shardmill.storage.remote_file import Bytes, RemoteFile

MB = 1 << 20


class HeldFetcher(Fetcher):
    """Requests begin at once, and end when the test says so."""

    def __init__(self, window: int) -> None:
        super().__init__((), window)
        self.requests: list[Fetch[Bytes]] = []

    def submit_range(self, source: Source, start: int, end: int, urgent: bool = False) -> Fetch[Bytes]:
        fetch: Fetch[Bytes] = Fetch(f"{start}", 60.0)
        fetch.set_running_or_notify_cancel()
        self.requests.append(fetch)
        return fetch


def test_a_released_range_counts_until_its_request_has_ended() -> None:
    fetcher = HeldFetcher(16 * MB)
    with fetcher:
        free = fetcher.window.free
        file = RemoteFile(fetcher, Source("a.txt", "https://host/a.txt", 100 * MB, "1"))
        edges = len(fetcher.requests)
        file.expect([(MB, 3 * MB)])
        assert fetcher.window.free == free - 2 * MB
        file.close()
        assert fetcher.window.free == free - 2 * MB, "the requests are under way, and their bytes will be in memory"
        for request in fetcher.requests[edges:]:
            request.set_result(b"")
        assert fetcher.window.free == free


@pytest.mark.parametrize(("name", "spans"), [("a.txt", 1), ("a.jsonl.zst", 1), ("a.parquet", 2)])
def test_only_of_parquet_the_end_is_requested_first(name: str, spans: int) -> None:
    with Fetcher(footer_bytes=footer_bytes) as fetcher:
        source = Source(name, f"https://host/{name}", 100 * MB, "1")
        assert len(fetcher.edge_spans(source)) == spans
