"""Datasets at URLs are read by ranges, with a cache on disk: the same tokens as from a folder, or an error."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.dataset import show, trace, verify
from shardmill.errors import DamageError, OutputError, ShardmillError, SourceError, UsageError
from shardmill.output_formats import FORMATS
from shardmill.storage import CACHE_BLOCK
from tests.corpus import contents, documents
from tests.datasets import make_dataset, random_documents
from tests.documents.away import assert_no_secret, jsonl, point_at
from tests.hub import Fault, Hub
from tests.meter import metered, metered_command

KINDS = ("s3", "gs", "az", "web", "hf", "bucket")


@pytest.fixture
def hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    point_at(hub, monkeypatch)
    for name, value in hub.store_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return hub


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards, one of them of several blocks."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "a.jsonl").write_bytes(jsonl(documents(24000)))
    shardmill.prepare(
        folder / "a.jsonl", folder / "data", format="shards", shard_tokens=1_500_000, val=0.05, memory="8GB"
    )
    sizes = [path.stat().st_size for path in (folder / "data").glob("train_*.bin")]
    assert max(sizes) > CACHE_BLOCK and len(sizes) > 1
    return folder / "data"


def files_of(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def served(hub: Hub, kind: str, folder: Path) -> str:
    """Put a folder on the server; gives its URL."""
    files = files_of(folder)
    if kind in ("s3", "gs", "az"):
        hub.objects["bucket"] = {f"some/data/{name}": path for name, path in files.items()}
        return f"{kind}://bucket/some/data"
    if kind == "web":
        hub.web = {f"data/{name}": path for name, path in files.items()}
        return f"{hub.url}/web/data"
    if kind == "bucket":
        hub.buckets["me/store"] = {f"data/{name}": path for name, path in files.items()}
        return "hf://buckets/me/store/data"
    hub.add("me/data", {f"data/{name}": path for name, path in files.items()})
    return "hf://datasets/me/data/data"


def rows(data: Any, **more: Any) -> list[bytes]:
    batches = data["train"].batches(4, 512, seed=3, **more)
    return [x.tobytes() + y.tobytes() for x, y in batches]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_at_a_url_has_the_tokens_of_the_folder(hub: Hub, local: Path, tmp_path: Path, kind: str) -> None:
    here, there = shardmill.open(local), shardmill.open(served(hub, kind, local), cache=tmp_path / "cache")
    for split in here:
        assert np.array_equal(here[split][:], there[split][:])
        assert [d.tolist() for d in here[split].documents] == [d.tolist() for d in there[split].documents]
        assert there[split].documents.origin(5) == here[split].documents.origin(5)
    assert rows(here) == rows(there)
    assert list(show(here)) == list(show(there))
    assert trace(here, step=7, batch_size=2, block_size=128) == trace(there, step=7, batch_size=2, block_size=128)
    report = verify(served(hub, kind, local), sample=10, cache=tmp_path / "cache")
    assert (report.damage, report.tokens) == ([], verify(local, sample=0).tokens)
    assert report.sampled
    assert_no_secret(tmp_path / "cache")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_read_from_a_store(hub: Hub, tmp_path: Path, format: str) -> None:
    made = make_dataset(format, tmp_path / "made", random_documents(3))
    url = served(hub, "s3", made)
    here, there = shardmill.open(made), shardmill.open(url, cache=tmp_path / "cache")
    for split in here:
        assert [d.tolist() for d in here[split].documents] == [d.tolist() for d in there[split].documents]
    assert not verify(url, sample=0, cache=tmp_path / "cache").damage
    shardmill.convert(made, tmp_path / "one", format="shards")
    shardmill.convert(url, tmp_path / "two", format="shards", name="made", cache=tmp_path / "cache")
    assert tokens_in(tmp_path / "one") == tokens_in(tmp_path / "two")


def tokens_in(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name != "manifest.json"}


@pytest.mark.parametrize("kind", ["s3", "hf", "web"])
def test_convert_shuffle_mix_and_pack_read_a_url(hub: Hub, local: Path, tmp_path: Path, kind: str) -> None:
    url, cache = served(hub, kind, local), {"cache": tmp_path / "cache"}
    calls: dict[str, Callable[[Any, Path, dict[str, Any]], object]] = {
        "convert": lambda source, out, more: shardmill.convert(source, out, format="npy", name="x", **more),
        "shuffle": lambda source, out, more: shardmill.shuffle(source, out, seed=5, name="x", **more),
        "mix": lambda source, out, more: shardmill.mix({source: 1.0}, out, tokens=300_000, name="x", **more),
        "pack": lambda source, out, more: shardmill.pack(source, out, block_size=256, name="x", **more),
    }
    for name, call in calls.items():
        call(local, tmp_path / f"{name}-here", {"memory": "3GB"})
        call(url, tmp_path / f"{name}-there", {"memory": "3GB", **cache})
        assert tokens_in(tmp_path / f"{name}-here") == tokens_in(tmp_path / f"{name}-there"), name


def test_token_files_of_others_at_the_hub_are_converted(hub: Hub, local: Path, tmp_path: Path) -> None:
    for format in ("npy", "llmc", "nanogpt"):
        shardmill.convert(local, tmp_path / format, format=format, name="web", memory="8GB")
        for path in ("manifest.json", "documents", ".shardmill"):
            one = tmp_path / format / path
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(missing_ok=True)
        (tmp_path / format / "README.md").write_text("tokens of GPT-2")
        url = served(hub, "hf", tmp_path / format)
        shardmill.convert(tmp_path / format, tmp_path / f"{format}-here", name="x", memory="8GB")
        shardmill.convert(url, tmp_path / f"{format}-there", name="x", memory="8GB")
        assert tokens_in(tmp_path / f"{format}-here") == tokens_in(tmp_path / f"{format}-there")
    hub.web["train.bin"] = (tmp_path / "nanogpt" / "train.bin").read_bytes()
    shardmill.convert(f"{hub.url}/web/train.bin?Signature=secret", tmp_path / "one", name="x", memory="8GB")
    shardmill.convert(tmp_path / "nanogpt" / "train.bin", tmp_path / "two", name="x", memory="8GB")
    assert tokens_in(tmp_path / "one") == tokens_in(tmp_path / "two")
    assert b"Signature" not in b"".join(contents(tmp_path / "one").values())


FAULTS = {
    "503": {"status": 503, "times": 3},
    "cut": {"cut": 1000, "times": 3},
    "short": {"short": 100, "times": 3},
    "whole": {"whole": True, "times": 1},
    "stalls": {"stall": 3.0, "times": 1},
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["s3", "hf", "web"])
def test_a_fault_is_retried_and_gives_the_same_rows(
    hub: Hub, local: Path, tmp_path: Path, kind: str, fault: str
) -> None:
    url = served(hub, kind, local)
    there = shardmill.open(url, cache=tmp_path / "cache")
    where = "/cdn/" if kind == "hf" else "train_"
    hub.faults.append(Fault(where, method="GET", **FAULTS[fault]))  # type: ignore[arg-type]
    assert rows(there) == rows(shardmill.open(local))


@pytest.mark.parametrize("kind", ["s3", "hf", "web"])
def test_a_file_that_changes_is_an_error_and_never_other_tokens(
    hub: Hub, local: Path, tmp_path: Path, kind: str
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(local, copied)
    there = shardmill.open(served(hub, kind, copied), cache=tmp_path / "cache")
    assert int(there["train"][0]) == int(shardmill.open(local)["train"][0])
    changed = copied / "train_000001.bin"
    changed.write_bytes(bytes(changed.stat().st_size))
    with pytest.raises(SourceError):
        there["train"][:]


def test_a_dataset_that_does_not_fit_its_manifest_is_refused(hub: Hub, local: Path, tmp_path: Path) -> None:
    url = served(hub, "s3", local)
    hub.objects["bucket"]["some/data/train_000001.bin"] = b"short"
    with pytest.raises(DamageError, match="5 bytes"):
        shardmill.open(url)
    del hub.objects["bucket"]["some/data/train_000001.bin"]
    with pytest.raises(DamageError, match="missing"):
        shardmill.open(url)
    wrong = bytearray((local / "train_000001.bin").read_bytes())
    wrong[1000] ^= 1
    hub.objects["bucket"]["some/data/train_000001.bin"] = bytes(wrong)
    assert "sha256" in verify(url).damage[0]


def test_a_revision_is_resolved_once(hub: Hub, local: Path, tmp_path: Path) -> None:
    url = served(hub, "hf", local)
    there = shardmill.open(url, cache=tmp_path / "cache")
    hub.commit("me/data", {"data/manifest.json": b"another"})
    assert np.array_equal(there["train"][:], shardmill.open(local)["train"][:])
    assert "@" in str(there.folder)
    again = shardmill.open(str(there.folder), cache=tmp_path / "cache")
    assert rows(again) == rows(there)
    with pytest.raises(ShardmillError):
        shardmill.open(url)


def test_blocks_are_fetched_once_and_damaged_ones_again(hub: Hub, local: Path, tmp_path: Path) -> None:
    url, cache = served(hub, "s3", local), tmp_path / "cache"
    want = rows(shardmill.open(local))
    assert rows(shardmill.open(url, cache=cache)) == want
    sent = hub.sent("train_")
    assert sent == sum(path.stat().st_size for path in local.glob("train_*"))
    assert rows(shardmill.open(url, cache=cache)) == want
    assert hub.sent("train_") == sent
    blocks = sorted(path for path in (cache / "blocks").rglob("*") if path.is_file())
    data = bytearray(blocks[0].read_bytes())
    data[50] ^= 1
    blocks[0].write_bytes(data)
    blocks[1].write_bytes(bytes(blocks[1].stat().st_size))
    blocks[2].write_bytes(b"")
    assert rows(shardmill.open(url, cache=cache)) == want


def test_the_cache_stays_below_its_limit(hub: Hub, local: Path, tmp_path: Path) -> None:
    cache, limit = tmp_path / "cache", 4 * CACHE_BLOCK
    there = shardmill.open(served(hub, "s3", local), cache=cache, cache_size=limit)
    largest, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not ended.wait(0.01):
            with_sizes = [path for path in cache.rglob("*") if not path.is_dir()]
            largest = max(largest, sum(path.stat().st_size for path in with_sizes if path.exists()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert np.array_equal(there["train"][:], shardmill.open(local)["train"][:])
        assert rows(there) == rows(shardmill.open(local))
    finally:
        ended.set()
        watcher.join()
    assert CACHE_BLOCK < largest <= limit + 20 * CACHE_BLOCK


def test_without_a_disk_for_the_cache_there_is_an_error(hub: Hub, local: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    there = shardmill.open(served(hub, "s3", local), cache=tmp_path / "file")
    with pytest.raises(OutputError, match="cache"):
        there["train"][:]


def _train(url: str, cache: str, rank: int, out: Path) -> None:
    data = shardmill.open(url, cache=cache)
    found = rows(data, rank=rank, world_size=4, order="sequential") + rows(data, rank=rank, world_size=4)
    out.write_bytes(pickle.dumps(found))


def test_four_ranks_share_a_cache_over_a_faulty_store(hub: Hub, local: Path, tmp_path: Path) -> None:
    url, cache = served(hub, "s3", local), tmp_path / "cache"
    hub.faults += [Fault("train_", skip=i, status=503) for i in range(3)]
    hub.faults += [Fault("train_", skip=i, cut=100_000) for i in range(3)]
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=_train, args=(url, str(cache), rank, tmp_path / f"rank{rank}")) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(300)
    assert [rank.exitcode for rank in ranks] == [0] * 4
    data = shardmill.open(local)
    for n in range(4):
        want = rows(data, rank=n, world_size=4, order="sequential") + rows(data, rank=n, world_size=4)
        assert pickle.loads((tmp_path / f"rank{n}").read_bytes()) == want
    whole = sum(path.stat().st_size for path in local.glob("train_*"))
    assert hub.sent("train_") < 1.5 * whole  # a block is fetched once, but for those whose requests failed


@pytest.fixture
def torch_workers() -> Any:
    return pytest.importorskip("torch.utils.data")


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("kind", ["web", "s3"])
def test_workers_of_a_data_loader_read_remotely(
    hub: Hub, local: Path, tmp_path: Path, torch_workers: Any, kind: str, context: str
) -> None:
    there = shardmill.open(served(hub, kind, local), cache=tmp_path / "cache")
    batches = there["train"].batches(8, 4096, seed=1, tensors=True)
    loader = torch_workers.DataLoader(batches, batch_size=None, num_workers=2, multiprocessing_context=context)
    if (kind, context) == ("s3", "fork"):
        with pytest.raises(UsageError, match="spawn"):
            next(iter(loader))
        return
    found = [x.numpy().tobytes() for x, _ in loader]
    want = [x.numpy().tobytes() for x, _ in shardmill.open(local)["train"].batches(8, 4096, seed=1, tensors=True)]
    assert found == want


def test_a_dataset_larger_than_the_cache_is_read_row_by_row(hub: Hub, local: Path, tmp_path: Path) -> None:
    there = shardmill.open(served(hub, "s3", local), cache=tmp_path / "cache", cache_size=0)
    there["train"].tokens._cached = False
    few = there["train"].batches(2, 64, seed=9, order="random")
    want = shardmill.open(local)["train"].batches(2, 64, seed=9, order="random")
    for (x, y), (a, b), _ in zip(few, want, range(400), strict=False):
        assert np.array_equal(x, a)
        assert np.array_equal(y, b)


def test_addresses_that_name_no_dataset_say_so(hub: Hub, local: Path) -> None:
    url = served(hub, "s3", local)
    for named, error in (
        ("ftp://host/data", UsageError),
        ("s3://bucket/nothing", UsageError),
        ("s3://nobucket/data", SourceError),
        (f"{hub.url}/web/nothing", UsageError),
        ("hf://datasets/me/nothing", SourceError),
        ("hf://models/me/data", UsageError),
        ("hf://buckets/me/data@v1", UsageError),
        (url.replace("/data", ""), UsageError),
    ):
        with pytest.raises(error):
            shardmill.open(named)


def test_the_commands_read_urls(hub: Hub, local: Path, tmp_path: Path) -> None:
    url = served(hub, "s3", local)
    for command in (
        ["show", url, "-n", "1"],
        ["trace", url, "--token", "100", "--json"],
        ["verify", url, "-q", "--cache", str(tmp_path / "c"), "--cache-size", "1GB"],
        ["card", url],
        ["report", url, "-o", str(tmp_path / "page.html")],
    ):
        result = metered(*command)
        assert result.code == 0, result.err


@pytest.mark.thorough
def test_reading_remotely_takes_little_memory(hub: Hub, tmp_path: Path) -> None:
    """A dataset of 400 MB, in an order without locality: neither its size nor the connections show in the memory."""
    made = {"train": [np.arange(50_000, dtype=np.uint16)] * 4000, "val": [np.arange(1000, dtype=np.uint16)]}
    url = served(hub, "s3", make_dataset("shards", tmp_path / "made", made, shard_tokens=50_000_000))
    code = f"""
import shardmill
data = shardmill.open({url!r}, cache={str(tmp_path / "cache")!r})
for n, (x, y) in enumerate(data["train"].batches(8, 1024)):
    if n == 2000:
        break
"""
    result = metered_command([sys.executable, "-c", code])
    assert result.code == 0, result.err
    assert result.peak < 250_000_000
