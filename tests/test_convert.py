"""`convert`: from every format to every format, and from files that other tools have made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.arrange import arranging, inputs
from shardmill.errors import MismatchError, OutputError, UsageError
from shardmill.options import FORMATS
from shardmill.shards import ShardWriter, format_named
from shardmill.storage import PartialFile
from shardmill.write import checkpoints
from tests.datasets import TOGETHER, make_dataset, random_documents
from tests.meter import SHARDMILL, metered_command
from tests.shards.driving import contents

pytestmark = pytest.mark.thorough

DOCUMENTS = random_documents(1, count=80)
FEW = random_documents(1, count=40)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that documents straddle blocks in every way."""
    monkeypatch.setattr(arranging, "BLOCK_TOKENS", 61)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after every block."""
    monkeypatch.setattr(checkpoints, "_EVERY", 0.0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A dataset by format and EOT, made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("prepared"), {}

    def get(format: str, eot: str | None = None) -> Path:
        if (format, eot) not in made:
            made[format, eot] = make_dataset(format, folder / f"{format}-{eot}", FEW, eot=eot)
        return made[format, eot]

    return get


def files(folder: Path) -> dict[str, bytes]:
    """What the outputs have written: all but manifest, documents tables and working files."""
    others = ("manifest.json", "documents/", ".shardmill")
    return {name: data for name, data in contents(folder).items() if not name.startswith(others)}


PAIRS = list(
    dict.fromkeys(
        [
            *((start, "nanogpt") for start in FORMATS),
            *(("nanogpt", to) for to in FORMATS),
            ("megatron", "mds"),
            ("mds", "datatrove"),
            ("olmo", "llmc"),
            ("npy", "litdata"),
        ]
    )
)
"""Every format is read once and written once, since reading and writing know nothing of each other; and a few pairs."""
MOVED = [("megatron", to, eot) for to in FORMATS for eot in ("before", "none")]


@pytest.mark.parametrize(("start", "to", "eot"), [*((start, to, "after") for start, to in PAIRS), *MOVED])
def test_from_every_format_to_every_format_is_as_if_it_had_been_prepared_so(
    start: str, to: str, eot: str, prepared: Callable[..., Path], tmp_path: Path
) -> None:
    source, expected = prepared(start), prepared(to, eot)
    result = shardmill.convert(source, tmp_path / "out", format=to, eot=eot, shard_tokens=500, name="web")
    assert files(tmp_path / "out") == files(expected)
    wanted = json.loads((expected / "manifest.json").read_text())
    made: Any = result.manifest
    for key in ("format", "dtype", "eot", "documents", "tokenizer"):
        assert made[key] == wanted[key]
    for split in wanted["splits"]:
        for key in ("tokens", "documents"):
            assert made["splits"][split][key] == wanted["splits"][split][key]
    data = shardmill.open(tmp_path / "out")
    assert np.array_equal(data["train"][:], shardmill.open(expected)["train"][:])


@pytest.mark.parametrize(("start", "to"), PAIRS)
def test_without_end_of_text_tokens_documents_come_from_an_index_or_are_not_claimed(
    start: str, to: str, prepared: Callable[..., Path], tmp_path: Path
) -> None:
    call: dict[str, Any] = {"format": to, "eot": "none", "shard_tokens": 500, "name": "web"}
    if format_named(to).indexed and not format_named(start).indexed:
        for eot in ("after", "none"):  # the first error has to name what helps
            with pytest.raises(UsageError, match="nothing says where documents end") as error:
                shardmill.convert(prepared(start, "none"), tmp_path / "out", **{**call, "eot": eot})
            assert "with `prepare`" in str(error.value)
        return
    result = shardmill.convert(prepared(start, "none"), tmp_path / "out", **call)
    assert files(tmp_path / "out") == files(prepared(to, "none"))
    assert result.manifest["documents"] == sum(map(len, FEW.values()))


def test_several_formats_at_once_and_the_way_back(tmp_path: Path) -> None:
    source = make_dataset("nanogpt", tmp_path / "source", DOCUMENTS)
    shardmill.convert(source, tmp_path / "out", format=TOGETHER, shard_tokens=700, name="web")
    for format in TOGETHER:
        data = shardmill.open(tmp_path / "out", format)
        assert [d.tolist() for d in data["val"].documents] == [d.tolist() for d in DOCUMENTS["val"]]
    back = shardmill.convert(tmp_path / "out", tmp_path / "back", format="nanogpt")
    assert files(tmp_path / "back") == files(source)
    assert back.manifest["documents"] == sum(map(len, DOCUMENTS.values()))


def test_short_last_shards_are_dropped_and_counted(tmp_path: Path) -> None:
    source = make_dataset("nanogpt", tmp_path / "source", DOCUMENTS)
    manifest = shardmill.convert(source, tmp_path / "out", format="llmc", shard_tokens=500, tail="drop").manifest
    for name, split in manifest["splits"].items():
        before = len(shardmill.open(source)[name])
        assert split["tokens"] == sum(file["tokens"] for file in split["files"])
        assert split["tokens"] == before // 500 * 500
        assert split.get("dropped", 0) == before - split["tokens"]
    assert not list((tmp_path / "out").rglob("*.partial"))


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_conversion_that_ends_anywhere_goes_on_to_the_same_bytes(
    to: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: None
) -> None:
    source = make_dataset("npy", tmp_path / "source", DOCUMENTS)
    straight = shardmill.convert(source, tmp_path / "straight", format=to, shard_tokens=500, name="web")
    random, kills = np.random.default_rng(0), 0

    class Killed(BaseException):
        pass

    append = ShardWriter.append
    monkeypatch.setattr(arranging, "BLOCK_TOKENS", 200)
    if how == "killed":
        # Which leaves no time to record anything.
        monkeypatch.setattr(checkpoints.Checkpoints, "stop", lambda self, why, kept: None)

    def dying(self: Any, *args: Any) -> None:
        nonlocal kills
        append(self, *args)
        if random.random() < 0.08 and kills < 15:
            kills += 1
            raise Killed

    monkeypatch.setattr(ShardWriter, "append", dying)
    while True:
        try:
            result = shardmill.convert(source, tmp_path / "out", format=to, shard_tokens=500, name="web")
            break
        except Killed:
            assert not (tmp_path / "out" / "manifest.json").exists()
    assert kills > 3 and result.resumed
    assert files(tmp_path / "out") == files(tmp_path / "straight")
    assert {k: v for k, v in result.manifest.items() if k != "splits"} == {
        k: v for k, v in straight.manifest.items() if k != "splits"
    }


def test_after_a_disk_that_failed_once_nothing_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: None
) -> None:
    source = make_dataset("npy", tmp_path / "source", DOCUMENTS)
    shardmill.convert(source, tmp_path / "straight", format="shards", shard_tokens=500)
    finish, calls = PartialFile.finish, 0

    def failing(self: Any, *args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (3, 9):
            raise OutputError("cannot write: no space left on device")
        return finish(self, *args, **more)

    monkeypatch.setattr(PartialFile, "finish", failing)
    for _ in range(2):
        with pytest.raises(OutputError, match="no space") as error:
            shardmill.convert(source, tmp_path / "out", format="shards", shard_tokens=500)
        assert "resumes from the last checkpoint" in error.value.kept
    shardmill.convert(source, tmp_path / "out", format="shards", shard_tokens=500)
    assert files(tmp_path / "out") == files(tmp_path / "straight")


def test_a_conversion_that_another_release_began_is_refused_and_can_be_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: None
) -> None:
    source = make_dataset("npy", tmp_path / "source", DOCUMENTS)
    with monkeypatch.context() as patch:
        patch.setattr(inputs.Input, "narrowed", lambda self, split, start, tokens: 1 / (start < 200) and tokens)
        with pytest.raises(ZeroDivisionError):
            shardmill.convert(source, tmp_path / "out", format="shards")
    journal = tmp_path / "out" / ".shardmill" / "journal.jsonl"
    line = json.loads(journal.read_text().splitlines()[-1])
    # What a conversion recorded when it had a loop of its own.
    old = {"tokens": [{"train": 183, "val": 0}], "split": 0, "at": 183, "marks": {"train": 2, "val": 0}}
    journal.write_text(json.dumps({**line, "state": {**old, "outputs": line["state"]["outputs"]}}) + "\n")
    with pytest.raises(MismatchError, match="another release"):
        shardmill.convert(source, tmp_path / "out", format="shards")
    shardmill.convert(source, tmp_path / "out", format="shards", overwrite=True)
    shardmill.convert(source, tmp_path / "straight", format="shards")
    assert files(tmp_path / "out") == files(tmp_path / "straight")


def test_run_again_it_says_that_it_is_done_and_refuses_what_differs(tmp_path: Path) -> None:
    source = make_dataset("nanogpt", tmp_path / "source", DOCUMENTS)
    shardmill.convert(source, tmp_path / "out", format="npy")
    before = contents(tmp_path / "out")
    assert shardmill.convert(source, tmp_path / "out", format="npy").already
    assert contents(tmp_path / "out") == before
    with pytest.raises(MismatchError, match="format"):
        shardmill.convert(source, tmp_path / "out", format="llmc")
    shardmill.convert(source, tmp_path / "out", format="mds", overwrite=True)
    shardmill.convert(source, tmp_path / "out", format="llmc", overwrite=True)
    assert all(name.endswith(".bin") for name in files(tmp_path / "out"))


def test_files_in_the_way_and_its_own_folder_are_refused(tmp_path: Path) -> None:
    source = make_dataset("nanogpt", tmp_path / "source", DOCUMENTS)
    with pytest.raises(UsageError, match="own folder"):
        shardmill.convert(source, source, format="npy")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.bin").write_bytes(b"precious")
    with pytest.raises(OutputError, match="in the way"):
        shardmill.convert(source, tmp_path / "out")
    assert (tmp_path / "out" / "train.bin").read_bytes() == b"precious"


def test_a_disk_that_is_too_small_is_said_with_what_helps_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_dataset("nanogpt", tmp_path / "made", random_documents(1))
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 30, 0, 1000))
    with pytest.raises(OutputError, match="1 kB are free") as error:
        shardmill.convert(folder, tmp_path / "out", format="npy")
    assert error.value.hint == "free some space, or choose another folder"


def test_a_dataset_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".shardmill").mkdir()
    with pytest.raises(UsageError, match="not a dataset"):
        shardmill.convert(tmp_path, tmp_path / "out")


def test_what_convert_writes_is_what_prepare_would_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arranging, "BLOCK_TOKENS", 5000)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["grain", "mill", "flour", "water"], random.integers(1, 400))) for _ in range(300)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options: dict[str, Any] = {"format": TOGETHER, "shard_tokens": 3000, "name": "web"}
    shardmill.prepare(tmp_path / "web.jsonl", tmp_path / "all", val=0.2, **options)
    shardmill.prepare(tmp_path / "web.jsonl", tmp_path / "one", val=0.2)
    result = shardmill.convert(tmp_path / "one", tmp_path / "converted", **options)
    assert files(tmp_path / "converted") == files(tmp_path / "all")
    assert result.manifest["splits"] == json.loads((tmp_path / "all" / "manifest.json").read_text())["splits"]


@pytest.mark.parametrize("texts", [["a"] * 400_000, ["word " * 6_000_000]], ids=["tiny", "long"])
def test_the_whole_command_stays_within_its_memory(tmp_path: Path, texts: list[str]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "before", val="0")
    call = [*SHARDMILL, "convert", str(tmp_path / "before"), "-o", str(tmp_path / "after"), "-f", "npy", "-f", "mds"]
    refused = metered_command([*call, "--memory", "20MB"])
    assert refused.code == 1 and "the least that works is `--memory" in refused.err
    made = metered_command([*call, "--memory", "100MB"])
    assert made.code == 0 and made.peak <= 100_000_000, made.err
    one = shardmill.open(tmp_path / "before")["train"].documents
    for format in ("npy", "mds"):
        again = shardmill.open(tmp_path / "after", format)["train"].documents
        assert len(again) == len(texts) and np.array_equal(again[-1], one[-1])
