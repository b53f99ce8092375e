"""A folder and an object store do the same, by one interface."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardmill.errors import UsageError
from shardmill.storage import Store, open_store
from tests.object_store import Bucket, bucket, s3_server

__all__ = ["bucket", "s3_server"]

LARGE = bytes(range(256)) * (34 << 10)
"""Nine megabytes: an upload of two requests."""


@pytest.fixture(params=["folder", "store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made: Bucket | None = request.getfixturevalue("bucket") if request.param == "store" else None
    return open_store(made.url() if made else tmp_path / "out")


def test_a_file_that_is_written_is_read_whole_in_sections_and_in_lines(store: Store) -> None:
    store.put("a/small", b"one\ntwo\nthree")
    store.put("a/small", b"one\ntwo\nend")
    store.upload("large", lambda: [LARGE[:1000], LARGE[1000:]], len(LARGE))
    assert store.read("a/small") == b"one\ntwo\nend"
    assert list(store.lines("a/small")) == [b"one\n", b"two\n", b"end"]
    assert store.section("large", 1000, 2000) == LARGE[1000:2000]
    assert store.section("a/small", 8, 100) == b"end"
    assert b"".join(store.download("large")) == LARGE
    assert store.size("large") == len(LARGE) and store.has("large")


def test_what_is_not_there_is_nothing_or_an_error(store: Store) -> None:
    store.put("a", b"")
    assert store.read("none") is None and store.read("b/none") is None and not store.has("none")
    assert store.read("a") == b"" and store.has("a")
    calls: list[Callable[[], object]] = [
        lambda: store.size("none"),
        lambda: store.section("none", 0, 1),
        lambda: list(store.download("none")),
        lambda: list(store.lines("none")),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call()
    store.delete(["none", "b/none"])
    store.delete_tree("none")
    assert store.list_tree("none") == [] and store.list_folders(["none"]) == {}


def test_of_many_who_create_a_file_one_succeeds(store: Store) -> None:
    texts = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda text: store.create("a/new", text), texts))
    assert made.count(True) == 1 and store.read("a/new") == texts[made.index(True)]
    assert [name for name, _ in store.list_tree("a")] == ["a/new"]


def test_files_are_listed_by_folder_and_deleted(store: Store) -> None:
    for name in ("top", "a/1", "a/2", "a/b/3", "c/4"):
        store.put(name, name.encode())
    assert store.list_folders(["", "a"]) == {"top": 3, "a/1": 3, "a/2": 3}
    assert sorted(store.list_tree("a")) == [("a/1", 3), ("a/2", 3), ("a/b/3", 5)]
    store.delete(["a/1", "top", "none"])
    store.delete_tree("c")
    assert sorted(store.list_tree("a")) == [("a/2", 3), ("a/b/3", 5)]
    assert not store.has("top") and store.list_tree("c") == []


def test_the_files_of_a_folder_are_taken_over_under_their_new_names(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "x").write_bytes(LARGE)
    (folder / "y").write_bytes(b"small")
    sent: list[int] = []
    store.take(folder, {"train/x": "new/train/x", "y": "y"}, sent.append)
    assert store.read("y") == b"small" and b"".join(store.download("new/train/x")) == LARGE
    assert sum(sent) in (0, len(LARGE) + 5)
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file() and "out" not in path.parts)
    assert left == (["x", "y"] if store.folder is None else [])


def test_a_url_that_cannot_be_written_to_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing can be written to `https://`"):
        open_store("https://host/folder")
