"""Every request to the store of an output is retried, whatever goes wrong with it, and each retry is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.errors import OutputError
from shardmill.storage import ObjectStore
from shardmill.write.summary import as_data, as_text
from tests.corpus import contents, random_words
from tests.object_store import HALF, LOSE, STALL, WORDS, Bucket, Fault, FaultyWay, bucket, often, s3_server
from tests.watching import interrupt_after

pytestmark = pytest.mark.thorough

__all__ = ["bucket", "often", "s3_server"]

LARGE = bytes(range(256)) * (34 << 10)
"""Nine megabytes: an upload of two parts."""
FAULTS = {"500": 500, "429": 429, "cut": Fault, "lost": LOSE, "half": HALF}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDMILL_PAUSE", "0.01")
    monkeypatch.setenv("SHARDMILL_LONGEST_PAUSE", "0.05")


def strike(numbers: Callable[[int], bool], fault: Any) -> Callable[[str, str], int | None]:
    """A rule that strikes the requests with these numbers."""
    count = iter(range(1_000_000))

    def rule(method: str, path: str) -> int | None:
        if not numbers(next(count)):
            return None
        if fault is Fault:
            raise Fault
        return fault

    return rule


def _read(store: ObjectStore) -> Any:
    return store.read("small")


def _exchanged(store: ObjectStore) -> Any:
    """Made, replaced, and refused to one who knows only an older state."""
    first = store.compare_and_swap("turn", b"one", None)
    second = store.compare_and_swap("turn", b"two", first)
    refused = store.compare_and_swap("turn", b"three", first)
    found = store.read_version("turn")
    store.delete(["turn"])
    return first is not None and found and (found[0], found[1] == second, refused)


def _sent(store: ObjectStore) -> Any:
    store.upload("sent", lambda: iter([LARGE[:1000], LARGE[1000:]]), len(LARGE))
    return store.size("sent")


def _created(store: ObjectStore) -> Any:
    """Of two who create it, the first succeeds."""
    answers = store.create("new", b"one"), store.create("new", b"two"), store.read("new")
    store.delete(["new"])
    return answers


def _put(store: ObjectStore) -> Any:
    store.put("put", b"data")
    return _data(store, "put")


def _deleted(store: ObjectStore) -> Any:
    store.put("gone", b"")
    store.delete(["gone", "never", "there"])
    return store.version("gone")


def _data(store: ObjectStore, name: str) -> bytes:
    return b"".join(store.download(name))


OPERATIONS: dict[str, tuple[Callable[[ObjectStore], Any], Any]] = {
    "read": (_read, b"some bytes"),
    "read what is not there": (lambda store: store.read("none"), None),
    "create": (_created, (True, False, b"one")),
    "section": (lambda store: store.section("small", 2, 6), b"me b"),
    "version": (lambda store: store.version("small") is not None, True),
    "size": (lambda store: store.size("large"), len(LARGE)),
    "put": (_put, b"data"),
    "compare_and_swap": (_exchanged, (b"two", True, None)),
    "upload": (_sent, len(LARGE)),
    "download": (lambda store: _data(store, "large") == LARGE, True),
    "list_folders": (lambda store: store.list_folders(["", "f"])["f/1"], 1),
    "list_tree": (lambda store: len(store.list_tree("f")), 3),
    "delete": (_deleted, None),
    "abort": (lambda store: store.abort_uploads(lambda name: True), None),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_at_any_request_is_retried(
    operation: str, fault: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in {"small": b"some bytes", "f/1": b"1", "f/2": b"2", "f/g/3": b"3"}.items():
        bucket.put(name, data)
    if operation in ("size", "download"):
        bucket.put("large", LARGE)
    call, expected = OPERATIONS[operation]
    with FaultyWay(bucket.server, lambda method, path: None) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        bucket.server.client.create_multipart_upload(Bucket=bucket.name, Key="out/left")
        assert call(ObjectStore(bucket.url())) == expected
        requests = len(way.requests)
        for number in range(requests):
            bucket.server.client.create_multipart_upload(Bucket=bucket.name, Key="out/left")
            way.rule = strike(number.__eq__, FAULTS[fault])
            store = ObjectStore(bucket.url())
            assert call(store) == expected, f"request {number} of {requests}"
            # In requests of many parts the library retries too. Where the answer to a swap was lost, what stands
            # there says that it was done; of an answer without a body its first half may be enough.
            counted = (
                operation not in ("upload", "list_folders", "list_tree", "compare_and_swap", "create")
                and fault != "half"
            )
            assert store.retries.count == 1 or not counted
            assert operation != "abort" or bucket.uploads() == []
        # Where the answer to its beginning was lost, nobody knows the number of an upload: a list finds it.
        store.abort_uploads(lambda name: name == "sent")
    assert "out/sent" not in bucket.uploads()


@pytest.mark.parametrize("fault", [500, Fault, HALF, LOSE], ids=["500", "cut", "half", "lost"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_run_whose_every_other_request_fails_gives_the_same_bytes(
    tmp_path: Path,
    bucket: Bucket,
    often: None,
    monkeypatch: pytest.MonkeyPatch,
    fault: int | type[BaseException],
    first: int,
) -> None:
    source = tmp_path / "words.txt"
    source.write_bytes(random_words(1_300_000))
    options: dict[str, Any] = {**WORDS, "shard_tokens": 100_000}
    shardmill.prepare(source, tmp_path / "out", **options)
    interrupt_after(3, source, bucket.url(), **options)
    # A request that failed is made again next: with every third all are struck by the one or the other first.
    with FaultyWay(bucket.server, strike(lambda number: number % 3 == first, fault)) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        result = shardmill.prepare(source, bucket.url(), **options)
        assert verify(bucket.url()).damage == []
        assert len(way.requests) > 30
    assert bucket.contents() == contents(tmp_path / "out")
    assert bucket.working() == [".shardmill/plan.json"]
    assert result.retries > 5
    assert as_data(result)["retries"] == result.retries
    assert f"{result.retries:,} requests were retried" in as_text(result)


def test_silence_is_waited_for_so_long_and_then_retried(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDMILL_TIMEOUT", "1")
    monkeypatch.setenv("SHARDMILL_TRIES", "50")
    bucket.put("small", b"some bytes")
    with FaultyWay(bucket.server, strike(lambda number: number == 0, STALL)) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        store = ObjectStore(bucket.url())
        assert _read(store) == b"some bytes"
        assert store.retries.count >= 1


def test_an_object_that_is_replaced_while_it_is_downloaded_is_an_error(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("large", LARGE)

    def replaced_within_the_first_answer(method: str, path: str) -> Any:
        way.rule = strike(lambda number: number == 0, None)
        return HALF

    with FaultyWay(bucket.server, replaced_within_the_first_answer) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        blocks = ObjectStore(bucket.url()).download("large")
        got = [next(blocks)]
        bucket.put("large", LARGE[::-1])
        with pytest.raises(OutputError, match="replaced while it was read"):
            got += blocks
    assert LARGE.startswith(b"".join(got))
