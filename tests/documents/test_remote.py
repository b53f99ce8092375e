"""Sources at the hub and on the web give the same bytes as the same files on disk."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.errors import MismatchError, OutputError, SourceError, UsageError
from shardmill.sources import find_sources
from tests.corpus import documents
from tests.documents.away import REPO, every_format, jsonl, made_of, parquet, prepared
from tests.hub import Fault, Hub, Request

pytestmark = pytest.mark.thorough

Local = tuple[Path, dict[str, bytes], dict[str, Any]]
"""A folder, its files, and what is made of each."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Local:
    """Every format on disk, and what is made of each alone."""
    folder = tmp_path_factory.mktemp("local")
    files = every_format(folder / "data")
    made = {name: prepared(folder / "data" / name, folder / "out" / name) for name in files}
    made["all"] = prepared(folder / "data", folder / "out" / "all")
    return folder / "data", files, made


NAMES = "a.jsonl b.txt c.jsonl.gz d.txt.zst e.jsonl.bz2 f.txt.xz g.parquet h.csv i.arrow j.txt k.jsonl".split()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["hub", "web"])
def test_a_remote_file_gives_the_same_bytes_as_the_file_on_disk(
    name: str, place: str, local: Local, hub: Hub, tmp_path: Path
) -> None:
    _, files, made = local
    hub.add(REPO, {f"data/{name}": files[name]})
    hub.web[f"some folder/{name}"] = files[name]
    source = {"hub": f"hf://datasets/{REPO}/data/{name}", "web": f"{hub.url}/web/some%20folder/{name}"}[place]
    assert prepared(source, tmp_path / "out") == made[name]


def test_a_remote_folder_gives_the_same_bytes_as_the_folder_on_disk(local: Local, hub: Hub, tmp_path: Path) -> None:
    folder, _, made = local
    hub.add(REPO, folder)
    assert prepared(f"hf://datasets/{REPO}", tmp_path / "out") == made["all"]
    sources = json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"]
    assert [source["name"].rpartition("/")[2] for source in sources] == NAMES


def test_small_pages_of_a_listing_are_all_read(hub: Hub) -> None:
    hub.page = 3
    hub.add(REPO, {f"data/{i:03}.txt": b"text" for i in range(20)})
    assert len(find_sources([f"hf://datasets/{REPO}/data"])) == 20


EVERYTHING = "data/_private/x.txt data/a.txt data/b.txt data/deep/c.txt data/deep/er/d.txt data/picture.png".split()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("data/*.txt", ["data/a.txt", "data/b.txt"]),
        (
            "data/**/*.txt",
            ["data/_private/x.txt", "data/a.txt", "data/b.txt", "data/deep/c.txt", "data/deep/er/d.txt"],
        ),
        ("data/**", EVERYTHING),
        ("data/**/**", EVERYTHING),
        ("data/d**", []),
        ("**/c.txt", ["data/deep/c.txt"]),
        ("data/*/*", ["data/_private/x.txt", "data/deep/c.txt"]),
        ("data/?.txt", ["data/a.txt", "data/b.txt"]),
        ("data/[!a]*.txt", ["data/b.txt"]),
        ("*/deep/[c-d].txt", ["data/deep/c.txt"]),
        ("data/.*", ["data/.hidden.txt"]),
        ("data", ["data/a.txt", "data/b.txt", "data/deep/c.txt", "data/deep/er/d.txt"]),
        ("data/deep/", ["data/deep/c.txt", "data/deep/er/d.txt"]),
        ("data/a.txt", ["data/a.txt"]),
        ("", ["data/a.txt", "data/b.txt", "data/deep/c.txt", "data/deep/er/d.txt", "data.txt"]),
    ],
)
@pytest.mark.parametrize("place", ["hub", "disk", "s3", "gs", "az"])
def test_patterns_and_folders_name_the_same_files_everywhere(
    pattern: str, expected: list[str], place: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = "data/a.txt data/b.txt data/deep/c.txt data/deep/er/d.txt data/.hidden.txt data/_private/x.txt "
    paths += "data/picture.png data.txt"
    files = {path: f"text of {path}".encode() for path in paths.split()}
    if place == "disk":
        root = f"{tmp_path}/files/"
        for path, data in files.items():
            (tmp_path / "files" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "files" / path).write_bytes(data)
    elif place == "hub":
        commit = hub.add(REPO, {**files, "README.md": b"about this dataset"})
        root = f"hf://datasets/{REPO}@{commit}/"
    else:
        for name, value in hub.store_environment.items():
            monkeypatch.setenv(name, value)
        hub.objects["bucket"] = dict(files)
        root = f"{place}://bucket/"
    if not expected:
        with pytest.raises(UsageError, match="nothing matches"):
            find_sources([root + pattern])
        return
    found = [source.name.removeprefix(root) for source in find_sources([root + pattern])]
    assert found == expected


def test_of_a_parquet_file_only_the_text_column_is_fetched(hub: Hub, tmp_path: Path) -> None:
    texts = documents(6000, seed=5)
    data = parquet(tmp_path / "x.parquet", texts)
    hub.add(REPO, {"x.parquet": data})
    prepared(f"hf://datasets/{REPO}/x.parquet", tmp_path / "out")
    footer = pq.ParquetFile(tmp_path / "x.parquet").metadata
    text = sum(footer.row_group(i).column(2).total_compressed_size for i in range(footer.num_row_groups))
    assert text < len(data) / 3
    assert hub.sent() < text + (1 << 18), "the head, the footer, and nothing else that is not text"


def test_the_redirect_of_the_hub_is_remembered_and_the_token_stays_at_the_hub(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": jsonl(documents(40000))}, gated=True)
    prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    assert len(hub.answered("/cdn/")) > 4 > len(hub.answered("/resolve/"))
    assert all("authorization" in request.headers for request in hub.answered("/resolve/"))
    assert not any("authorization" in request.headers for request in hub.answered("/cdn/"))


def test_a_redirect_that_has_expired_is_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    lines = jsonl(documents(40000))
    hub.add(REPO, {"x.jsonl": lines})
    (tmp_path / "x.jsonl").write_bytes(lines)
    hub.faults.append(Fault("/cdn/", skip=2, times=1, status=403))
    assert prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out") == prepared(
        tmp_path / "x.jsonl", tmp_path / "local"
    )


def test_the_manifest_names_the_commit(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add(REPO, {"x.txt": b"some text " * 300})
    prepared(f"hf://datasets/{REPO}/x.txt", tmp_path / "out")
    sources = json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"]
    assert sources[0]["name"] == f"hf://datasets/{REPO}@{commit}/x.txt"


def test_a_finished_dataset_is_recognised_by_its_commit_however_that_is_named(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add(REPO, {"x.txt": b"some text " * 300})
    out = tmp_path / "out"
    prepared(f"hf://datasets/{REPO}/x.txt", out)
    assert shardmill.prepare(f"hf://datasets/{REPO}/x.txt", out, name="web").already
    assert shardmill.prepare(f"hf://datasets/{REPO}@{commit}/x.txt", out, name="web").already
    hub.commit(REPO, {"x.txt": b"other text " * 300})
    with pytest.raises(MismatchError, match=commit):
        shardmill.prepare(f"hf://datasets/{REPO}/x.txt", out, name="web")
    assert shardmill.prepare(f"hf://datasets/{REPO}@{commit}/x.txt", out, name="web").already


def test_a_run_in_progress_goes_on_with_its_commit_when_main_has_moved(hub: Hub, tmp_path: Path) -> None:
    before, after = jsonl(documents(30000, seed=1)), jsonl(documents(30000, seed=2))
    (tmp_path / "before.jsonl").write_bytes(before)
    expected = prepared(tmp_path / "before.jsonl", tmp_path / "local")
    commit = hub.add(REPO, {"x.jsonl": before})
    hub.faults.append(Fault("/cdn/", skip=2, times=1000, status=404))
    hub.faults.append(Fault("/resolve/", skip=1, times=1000, status=404))
    source, out = f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out"
    with pytest.raises(SourceError):
        prepared(source, out)
    hub.faults.clear()
    hub.commit(REPO, {"x.jsonl": after, "y.jsonl": after})
    assert prepared(source, out) == expected
    assert commit in (out / "manifest.json").read_text()
    assert json.loads((out / ".shardmill" / "plan.json").read_text())["commits"] == {
        f"hf://datasets/{REPO}@main": commit
    }


def test_another_revision_than_the_one_in_progress_is_refused(hub: Hub, tmp_path: Path) -> None:
    data = jsonl(documents(30000))
    hub.add(REPO, {"x.jsonl": data})
    hub.commit(REPO, {"x.jsonl": jsonl(documents(30000, seed=1))}, branch="v2")

    def is_late(request: Request) -> bool:
        # The beginning arrives: a run that has done nothing would not be in the way.
        return request.range is not None and request.range[0] > len(data) // 2

    hub.faults.append(Fault(is_late, times=1000, status=404))
    with pytest.raises(SourceError):
        prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    hub.faults.clear()
    with pytest.raises(MismatchError):
        prepared(f"hf://datasets/{REPO}@v2/x.jsonl", tmp_path / "out")
    prepared(f"hf://datasets/{REPO}@v2/x.jsonl", tmp_path / "out", overwrite=True)


def test_val_tail_works_on_a_remote_text(local: Local, hub: Hub, tmp_path: Path) -> None:
    folder, files, _ = local
    hub.web["b.txt"] = files["b.txt"]
    expected = prepared(folder / "b.txt", tmp_path / "local", val="tail:0.1")
    assert prepared(f"{hub.url}/web/b.txt", tmp_path / "out", val="tail:0.1") == expected


def test_a_limit_ends_a_remote_run_early(local: Local, hub: Hub, tmp_path: Path) -> None:
    folder, files, _ = local
    hub.add(REPO, {"g.parquet": files["g.parquet"], "h.parquet": files["g.parquet"]})
    expected = prepared(folder / "g.parquet", tmp_path / "local", limit="1000")
    assert prepared(f"hf://datasets/{REPO}/g.parquet", tmp_path / "out", limit="1000") == expected


def test_a_dictionary_of_long_values_is_read_as_from_disk(hub: Hub, tmp_path: Path) -> None:
    texts = [f"{'long value ' * 3000} {i % 40}" for i in range(3000)]
    data = parquet(tmp_path / "d.parquet", texts, rows=3000, dictionary_pagesize_limit=1 << 24)
    hub.add(REPO, {"d.parquet": data})
    assert prepared(f"hf://datasets/{REPO}/d.parquet", tmp_path / "out") == prepared(
        tmp_path / "d.parquet", tmp_path / "local"
    )


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("hf://someone/model/x.txt", "hf://datasets/OWNER/NAME"),
        ("hf://datasets/alone", "hf://datasets/OWNER/NAME"),
        ("ftp://host/file.txt", "hf://"),
        ("s3://", "s3://BUCKET"),
        ("http:///file.txt", "https://HOST"),
        ("http://[::1/file.txt", "https://HOST"),
        ("https://host:99999/file.txt", "https://HOST"),
        ("https://host:port/*.txt", "https://HOST"),
        ("https://user:secret@[::1/file.txt", "https://HOST"),
    ],
)
def test_an_address_that_cannot_be_is_an_error_that_shows_how_it_is_written(source: str, hint: str, hub: Hub) -> None:
    with pytest.raises(UsageError) as caught:
        find_sources([source])
    assert hint in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["folder", "folder/", "folder/*.txt", "folder/[ab].txt", ""])
def test_a_folder_or_pattern_on_the_web_is_an_error_that_says_so(path: str, hub: Hub) -> None:
    hub.web["folder/a.txt"] = b"text"
    with pytest.raises((SourceError, UsageError), match=r"that of a folder|does not list its files") as caught:
        find_sources([f"{hub.url}/web/{path}"])
    assert "name" in str(caught.value.hint)


def test_a_server_without_tls_is_named_as_such(hub: Hub) -> None:
    with pytest.raises(SourceError, match="no encrypted connection"):
        find_sources([f"https://{hub.url.partition('://')[2]}/web/a.txt"])


@pytest.mark.parametrize("name", ["x.parquet", "none/*.txt", "none"])
def test_a_name_that_is_not_in_the_dataset_is_an_error(name: str, hub: Hub) -> None:
    hub.add(REPO, {"data/a.txt": b"text"})
    with pytest.raises((UsageError, SourceError), match=r"not there|no such file|nothing matches"):
        find_sources([f"hf://datasets/{REPO}/{name}"])


def test_the_same_bytes_whatever_the_latency_and_the_number_of_workers(local: Local, hub: Hub, tmp_path: Path) -> None:
    folder, _, made = local
    hub.add(REPO, folder)
    hub.latency = 0.03
    prepared(f"hf://datasets/{REPO}", tmp_path / "out", workers=3)
    assert made_of(tmp_path / "out") == made["all"]


def test_where_the_disk_may_be_too_small_remote_sources_are_sampled(
    local: Local, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, files, made = local
    hub.add(REPO, {"g.parquet": files["g.parquet"], "a.jsonl": files["a.jsonl"]})
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr("shardmill.run.encoded_text.shutil.disk_usage", lambda _: usage(1 << 30, 0, 6 << 20))
    assert prepared(f"hf://datasets/{REPO}/g.parquet", tmp_path / "out") == made["g.parquet"]
    monkeypatch.setattr("shardmill.run.encoded_text.shutil.disk_usage", lambda _: usage(1 << 30, 0, 1 << 16))
    for name in ("g.parquet", "a.jsonl"):
        with pytest.raises(OutputError, match="the output would take about"):
            prepared(f"hf://datasets/{REPO}/{name}", tmp_path / name)


def test_sizes_of_web_files_are_asked_for_at_the_same_time(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{i:02}.txt" for i in range(40)]
    for name in names:
        hub.web[name] = name.encode() * 3
    monkeypatch.setenv("SHARDMILL_TIMEOUT", "120")
    # Each request is answered when eight are there, so one after the other would never be answered.
    together = threading.Barrier(8, timeout=60)

    def wait() -> None:
        together.wait()

    hub.faults.append(Fault("/web/", times=len(names), then=wait))
    found = find_sources([f"{hub.url}/web/{name}" for name in names])
    assert [source.name.rpartition("/")[2] for source in found] == names
    assert [source.size for source in found] == [len(name) * 3 for name in names]
    assert len(hub.answered("/web/")) == len(names) and not together.broken


def test_a_web_address_that_is_wrong_is_found_before_any_request(hub: Hub) -> None:
    hub.web["a.txt"] = b"text"
    with pytest.raises(UsageError, match="does not list"):
        find_sources([f"{hub.url}/web/a.txt", f"{hub.url}/web/folder/"])
    assert hub.answered("/web/") == []
