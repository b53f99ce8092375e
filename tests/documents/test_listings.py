"""A listing is read whole, or it is an error: whatever goes wrong with any request of it, no file is left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shardmill.errors import OutputError, ShardmillError, SourceError
from shardmill.sources import find_sources
from shardmill.storage import ObjectStore
from shardmill.storage.fetching import Fetcher
from tests.documents.away import REPO
from tests.hub import Fault, Hub, Request

pytestmark = pytest.mark.thorough

FILES = {f"d/{folder}/{i}.txt": b"some text" for folder in "abc" for i in range(3)}
KINDS = ["s3", "gs", "az", "hub"]
SHAPES = ["d/*/*.txt", "d/", "d/**/*.txt", "d/b/*.txt"]
FAULTS: list[dict[str, Any]] = [{"status": status} for status in (500, 503, 429, 403)] + [{"cut": 5}, {"cut": 0}]


@pytest.fixture
def place(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The root of the same files at each kind of server, whose listings have pages of four entries."""
    for name, value in hub.store_environment.items():
        monkeypatch.setenv(name, value)
    hub.page = 4
    # A busy machine may be slow to answer, which is no fault.
    monkeypatch.setenv("SHARDMILL_TIMEOUT", "30")
    monkeypatch.setenv("SHARDMILL_RETRY_SECONDS", "120")
    monkeypatch.setenv("SHARDMILL_PAUSE", "0.01")
    monkeypatch.setenv("SHARDMILL_LONGEST_PAUSE", "0.02")
    hub.objects["bucket"] = dict(FILES)
    commit = hub.add(REPO, FILES)
    return lambda kind: f"hf://datasets/{REPO}@{commit}/" if kind == "hub" else f"{kind}://bucket/"


def found(root: str, shape: str) -> list[str]:
    return [source.name.removeprefix(root) for source in find_sources([root + shape])]


def expected(shape: str) -> list[str]:
    return [name for name in FILES if shape != "d/b/*.txt" or name.startswith("d/b/")]


def _asks(path: str, query: str, request: Any) -> bool:
    return (request.path, request.query) == (path, query)


class Nth:
    """Chooses the n-th request from the time at which it is made."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, request: Request) -> bool:
        self.left -= 1
        return self.left == -1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_listing_of_several_pages_names_every_file(kind: str, shape: str, place: Callable[[str], str]) -> None:
    assert found(place(kind), shape) == expected(shape)


@pytest.mark.parametrize("shape", ["d/*/*.txt", "d/b/*.txt"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_fault_at_any_request_of_a_listing_is_retried_or_an_error(
    kind: str, shape: str, place: Callable[[str], str], hub: Hub
) -> None:
    assert found(place(kind), shape) == expected(shape)
    requests = len(hub.requests)
    assert requests >= (3 if shape == "d/*/*.txt" else 1)
    for number in range(requests):
        for fault in FAULTS:
            hub.faults[:] = [Fault(Nth(number), **fault)]
            if fault == {"status": 403}:
                with pytest.raises(ShardmillError):
                    found(place(kind), shape)
            else:
                assert found(place(kind), shape) == expected(shape), f"request {number}, {fault}"
            assert hub.faults[0].times == 0, "the fault was never met"


@pytest.mark.parametrize("status", [503, 403])
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_goes_on_failing_within_a_listing_is_an_error(
    kind: str, status: int, place: Callable[[str], str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_TRIES", "2")
    found(place(kind), "d/")
    requests = len(hub.requests)
    for number in range(requests):
        path, query = hub.requests[number].path, hub.requests[number].query
        hub.faults[:] = [Fault(partial(_asks, path, query), times=1000, status=status)]
        with pytest.raises(ShardmillError):
            found(place(kind), "d/")


@pytest.mark.parametrize("kind", KINDS)
def test_silence_in_a_listing_is_waited_for_so_long_and_then_retried(
    kind: str, place: Callable[[str], str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_TIMEOUT", "1")
    monkeypatch.setenv("SHARDMILL_TRIES", "50")
    hub.faults += [Fault(Nth(1), stall=2.0), Fault(Nth(3), cut=5, stall=2.0)]
    assert found(place(kind), "d/") == expected("d/")


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_an_object_that_is_replaced_while_it_is_read_is_an_error(
    kind: str, place: Callable[[str], str], hub: Hub
) -> None:
    hub.objects["bucket"]["x.txt"] = b"a" * 1000
    (source,) = find_sources([f"{kind}://bucket/x.txt"])
    with Fetcher([source]) as fetcher:
        assert bytes(fetcher.read(source, 10, 20)) == b"a" * 10
        hub.objects["bucket"]["x.txt"] = b"b" * 1000
        with pytest.raises(SourceError, match="changed while it was read"):
            fetcher.read(source, 20, 30)


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_every_fault_in_the_middle_of_an_object_is_retried(kind: str, place: Callable[[str], str], hub: Hub) -> None:
    data = bytes(range(256)) * 40
    hub.objects["bucket"]["x.bin"] = data
    (source,) = find_sources([f"{kind}://bucket/x.bin"])
    statuses = [{"status": status} for status in (500, 503, 429)]
    faults: list[dict[str, Any]] = [*statuses, {"cut": 0}, {"cut": 7}, {"short": 3}, {"whole": True}]
    with Fetcher([source]) as fetcher:
        for retries, fault in enumerate(faults, 1):
            hub.faults[:] = [Fault(Nth(0), **fault)]
            assert bytes(fetcher.read(source, 100, 5000)) == data[100:5000], fault
            assert fetcher.retries.count == retries, fault


@pytest.mark.parametrize("shape", ["d/", "d/b/*.txt"])
@pytest.mark.parametrize("way", ["same", "empty", "later"])
@pytest.mark.parametrize("kind", ["s3", "gs", "az", "hub"])
def test_a_list_without_an_end_or_with_a_page_twice_is_an_error(
    kind: str, way: str, shape: str, place: Callable[[str], str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.page, hub.stuck = 2, way
    # An empty page is met within the library, as is any page of a folder without those below: only time ends them.
    monkeypatch.setenv("SHARDMILL_RETRY_SECONDS", "1" if way != "later" else "30")
    with pytest.raises(SourceError):
        found(place(kind), shape)
    if kind != "hub":
        store = ObjectStore(place(kind) + "d")
        with pytest.raises(OutputError):
            store.list_folders(["b"]) if shape != "d/" else store.list_tree("b")


def test_an_empty_page_of_the_hub_where_more_was_promised_is_asked_for_again(
    place: Callable[[str], str], hub: Hub
) -> None:
    hub.faults.append(Fault(lambda request: "cursor=8" in request.query, status=200, body=b"[]"))
    assert found(place("hub"), "d/") == expected("d/")
    assert hub.faults[0].times == 0


NO_LISTS = [
    b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>",
    b"<html><body>Please log in</body></html>",
    b"<ListBucketResult></ListBucketResult>",
    b"{}",
    b"",
]


@pytest.mark.parametrize("body", NO_LISTS)
@pytest.mark.parametrize("shape", ["d/", "d/b/*.txt", "d/*"])
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_an_answer_that_is_not_a_list_never_ends_one(
    kind: str, shape: str, body: bytes, place: Callable[[str], str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever request is answered with status 200 and something else, and if all but the first are."""
    monkeypatch.setenv("SHARDMILL_TRIES", "2")
    hub.page = 2
    hub.objects["bucket"].update({"d/k.txt": b"text", "d/x.txt": b"text"})

    def names() -> list[str]:
        return found(place(kind), shape)

    def listed() -> dict[str, int]:
        store = ObjectStore(place(kind) + "d")
        return dict(store.list_tree("b")) if shape == "d/" else store.list_folders([""])

    def goes_on(request: Request) -> bool:
        return any(word in request.query for word in ("continuation-token", "start-after", "marker"))

    for call in (names, listed):
        hub.faults.clear()
        hub.requests.clear()
        expected = call()
        assert expected and any(map(goes_on, hub.requests))
        for number in range(len(hub.requests)):
            hub.faults[:] = [Fault(Nth(number), status=200, body=body)]
            assert call() == expected, f"request {number}"
        hub.faults[:] = [Fault(goes_on, times=1000, status=200, body=body)]
        with pytest.raises(ShardmillError):
            call()


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_names_that_are_odd_or_mark_a_folder_do_not_disturb_a_list(
    kind: str, place: Callable[[str], str], hub: Hub
) -> None:
    names = ["d/a b.txt", "d/m-x.txt", "d/m/k.txt", "d/ä~%#&+.txt", "d/m.txt", "d/z/y", "d/1", "e"]
    for marks in ([], ["d/"], ["d/m/"], ["d/z/"], ["d/zz/"], ["d/", "d/m/", "d/z/", "d/zz/"]):
        for last in range(len(names) + 1):  # each of them is the last one of a list in its turn
            some = sorted(names)[:last] or names
            hub.objects["bucket"] = {**dict.fromkeys(some, b"text"), **dict.fromkeys(marks, b"")}
            expected = sorted((name for name in some if name.startswith("d/")), key=lambda name: name.split("/"))
            direct = [name for name in sorted(expected) if name.count("/") == 1]
            if expected:
                assert found(place(kind), "d/") == expected
            if direct:
                assert found(place(kind), "d/*") == direct
