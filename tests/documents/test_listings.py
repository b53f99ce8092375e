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

FILES = {f"d/{folder}/{i}.txt": b"some text" for folder in "abc" for i in range(3)}
KINDS = ["s3", "gs", "az", "hub", "web"]
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
    hub.web.update(FILES)
    commit = hub.add(REPO, FILES)
    roots = {"hub": f"hf://datasets/{REPO}@{commit}/", "web": f"{hub.url}/web/"}
    return lambda kind: roots.get(kind, f"{kind}://bucket/")


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
def test_a_pattern_in_one_folder_does_not_list_what_lies_deeper(
    kind: str, place: Callable[[str], str], hub: Hub
) -> None:
    hub.objects["bucket"].update({f"d/deep/{i:04}.txt": b"" for i in range(100)})
    hub.objects["bucket"]["d/x.txt"] = b"text"
    assert found(place(kind), "d/*.txt") == ["d/x.txt"]
    assert len(hub.requests) <= 2


def test_a_folder_of_the_web_that_the_pattern_cannot_mean_is_not_asked_for(
    hub: Hub, place: Callable[[str], str]
) -> None:
    hub.faults.append(Fault("/web/d/a/", times=1000, status=403))
    assert found(place("web"), "d/b/*.txt") == expected("d/b/*.txt")
    hub.web.update({"e/_private/x.txt": b"", "e/y.txt": b"text"})
    hub.faults.append(Fault("/_private/", times=1000, status=403))
    assert found(place("web"), "e/") == ["e/y.txt"]


def test_an_index_page_in_any_style_names_the_same_files(hub: Hub) -> None:
    hub.web["f/z.txt"] = b"text"
    hub.web["f/a b.txt"] = b"text"
    page = f"""<HTML><a href="?C=N;O=D">Name</a> <A HREF='../'>up</A> <a href="/web/f/z.txt">z</a>
        <a href={hub.url}/web/f/a%20b.txt>a b</a> <a href="z.txt#part">again</a> <a href="http://elsewhere/x.txt">x</a>
        <a name="here"> <a href="/web/other.txt">other</a> <a href="z.txt"> <!-- <a href="no.txt"> -->"""
    hub.index["f/"] = page.encode()
    names = [source.name.removeprefix(hub.url) for source in find_sources([f"{hub.url}/web/f/"])]
    assert names == ["/web/f/a%20b.txt", "/web/f/z.txt"]


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


def test_an_index_page_that_also_links_to_what_is_deeper_names_no_file_twice(
    hub: Hub, place: Callable[[str], str]
) -> None:
    hub.index["d/"] = b"<a href=a/>a</a> <a href=a/0.txt>0</a> <a href=b/>b</a> <a href=c/>c</a> <a href=./b/>b</a>"
    assert found(place("web"), "d/") == expected("d/")
