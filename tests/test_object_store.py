"""Output to object stores: the same bytes as on a disk, whole or not at all, from whatever machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.arrange import convert
from shardmill.dataset import verify
from shardmill.errors import MismatchError, OutputError, UsageError
from shardmill.options import FORMATS
from shardmill.storage import ObjectStore
from shardmill.write.writer import Writer
from tests.corpus import contents, documents, random_words, write_jsonl
from tests.crashing import DIFFERENT, crash_everywhere_in_store
from tests.datasets import TOGETHER
from tests.meter import SHARDMILL, metered
from tests.object_store import MB, WORDS, Bucket, FaultyWay, bucket, often, s3_server, words
from tests.watching import interrupt_after, paused_run, watch_reads

pytestmark = pytest.mark.thorough

__all__ = ["bucket", "often", "s3_server", "words"]


@pytest.mark.parametrize("form", [*FORMATS, TOGETHER])
def test_every_format_gives_the_objects_that_a_disk_would_have_as_files(
    tmp_path: Path, bucket: Bucket, form: str | tuple[str, ...]
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    with source.open("a") as file:
        file.write("not json\n")
    options: dict[str, Any] = {"format": form, "val": 0.2, "shard_tokens": 9_000}
    shardmill.prepare(source, tmp_path / "out", **options)
    result = shardmill.prepare(source, bucket.url(), **options)
    assert result.out == bucket.url()
    assert bucket.contents() == contents(tmp_path / "out")
    assert "rejects.jsonl" in bucket.contents()
    assert bucket.working() == [".shardmill/plan.json"]
    assert bucket.uploads() == []
    assert _staged() == []


@pytest.mark.parametrize("form", DIFFERENT)
def test_killed_between_requests_a_run_is_resumed_by_other_machines_with_the_same_bytes(
    tmp_path: Path, bucket: Bucket, form: str
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(120))
    with source.open("a") as file:
        file.write("not json\n")
    kills = crash_everywhere_in_store(source, bucket, tmp_path, every=31, format=form, shard_tokens=5_000, val=0.3)
    assert kills > 1


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_killed_between_any_two_requests_every_format_is_resumed_by_other_machines(
    tmp_path: Path, bucket: Bucket, form: str
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(120))
    crash_everywhere_in_store(source, bucket, tmp_path, format=form, shard_tokens=5_000, val=0.3, tail="drop")


def test_killed_within_an_upload_of_several_requests_nothing_of_it_remains(tmp_path: Path, bucket: Bucket) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(15 * MB))
    options = {"separator": "\n", "val": 0, "format": "shards", "shard_tokens": 6 * MB}
    assert crash_everywhere_in_store(source, bucket, tmp_path, every=29, chunk=4 << 20, **options) > 1


def test_an_upload_that_is_left_open_is_ended_by_the_next_run_and_those_of_others_are_not(
    bucket: Bucket, words: Path
) -> None:
    client = bucket.server.client
    for key in ("out/train_000000.bin", "out/.shardmill/1/x/0", "out/other.bin", "out2/train_000000.bin"):
        client.create_multipart_upload(Bucket=bucket.name, Key=key)
    shardmill.prepare(words, bucket.url(), **WORDS)
    assert sorted(bucket.uploads()) == ["out/other.bin", "out2/train_000000.bin"]


def test_nothing_bears_its_name_before_it_is_whole_and_the_manifest_comes_last(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    whole = {name: len(data) for name, data in contents(tmp_path / "out").items()}
    looks = []

    def looking(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: Any, *arguments: Any) -> Any:
            answer = change(self, *arguments)
            found = bucket.server.client.list_objects_v2(Bucket=bucket.name, Prefix="out/").get("Contents", ())
            looks.append({entry["Key"].removeprefix("out/"): entry["Size"] for entry in found})
            return answer

        return changed

    for name in ("put", "compare_and_swap", "upload", "delete"):
        monkeypatch.setattr(ObjectStore, name, looking(getattr(ObjectStore, name)))
    shardmill.prepare(words, bucket.url(), **WORDS)
    seen = [{name: size for name, size in found.items() if name[0] != "."} for found in looks]
    assert any(0 < len(found) < len(whole) for found in seen)
    assert all(found.items() <= whole.items() for found in seen)
    assert all(found == whole for found in seen if "manifest.json" in found)
    assert any(name.endswith("/0000000000000000") for found in looks for name in found), "no parts were seen"


def test_a_run_that_is_killed_goes_on_where_another_machine_pushed_last(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(8, words, bucket.url(), **WORDS)
    journal = json.loads(bucket.read(".shardmill/journal.json"))
    recorded = journal["state"]["position"]["offset"]
    assert recorded > 4 << 18
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    read = watch_reads(monkeypatch)
    assert shardmill.prepare(words, bucket.url(), **WORDS).resumed
    assert min(read) == recorded
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


def test_the_journal_names_the_plan_and_does_not_grow_with_the_sources(
    tmp_path: Path, bucket: Bucket, often: None
) -> None:
    sizes: list[int] = []
    options: dict[str, Any] = {"format": "shards", "shard_tokens": 1000}
    for count in (30, 300):
        for i in range(count):
            (tmp_path / f"{count}").mkdir(exist_ok=True)
            (tmp_path / f"{count}" / f"{i:04}.txt").write_text(f"Words of file {i}. " * 200)
        interrupt_after(0, tmp_path / f"{count}", bucket.url(f"of{count}"), **options)
        journal = bucket.read(".shardmill/journal.json", f"of{count}/")
        sizes.append(len(journal))
        plan = bucket.read(json.loads(journal)["plan"], f"of{count}/")
        assert len(json.loads(plan)["sources"]) == count
    assert sizes[1] < sizes[0] + 500
    assert shardmill.prepare(tmp_path / "300", bucket.url("of300"), **options).resumed
    shardmill.prepare(tmp_path / "300", tmp_path / "out", **options)
    assert bucket.contents("of300/") == contents(tmp_path / "out")
    assert [name for name in bucket.names("of300/") if name[0] == "."] == [".shardmill/plan.json"]


def test_a_plan_that_is_missing_is_named(bucket: Bucket, words: Path, often: None) -> None:
    interrupt_after(8, words, bucket.url(), **WORDS)
    name = json.loads(bucket.read(".shardmill/journal.json"))["plan"]
    bucket.delete(name)
    with pytest.raises(OutputError, match=name):
        shardmill.prepare(words, bucket.url(), **WORDS)
    shardmill.prepare(words, bucket.url(), overwrite=True, **WORDS)
    assert bucket.working() == [".shardmill/plan.json"]


def test_an_interrupt_pushes_what_is_done_and_ends_with_130(tmp_path: Path, bucket: Bucket) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(20 * MB))
    command = ["prepare", source, "-o", bucket.url(), "--separator", r"\n", "--memory", "500MB"]
    with paused_run(tmp_path / "mark", *command, env=_machine(tmp_path)) as run:
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=100)
    assert run.returncode == 130, said
    assert "the same command resumes from the last checkpoint" in said
    assert json.loads(bucket.read(".shardmill/journal.json"))["state"]["position"]["offset"] > 0
    assert "manifest.json" not in bucket.names()
    assert [path for path in (tmp_path / "machine").rglob("*") if path.is_file()] == []


def test_a_run_that_was_taken_for_dead_stops_when_it_wakes(tmp_path: Path, bucket: Bucket) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(15 * MB))
    options = ["--separator", r"\n", "-f", "shards", "--shard-tokens", "1M", "-q"]
    command = [*SHARDMILL, "prepare", str(source), *options]
    mark, sleeper = tmp_path / "mark", ["prepare", source, *options, "-o", bucket.url(), "--memory", "500MB"]
    with paused_run(mark, *sleeper, env=_machine(tmp_path, "one")) as first:
        subprocess.run([*command, "-o", bucket.url()], check=True, env=_machine(tmp_path, "two"))
        mark.unlink()
        _, said = first.communicate(timeout=100)
    assert first.returncode == 1
    assert "another run has taken over" in said
    assert "Traceback" not in said
    subprocess.run([*command, "-o", str(tmp_path / "out")], check=True)
    assert bucket.contents() == contents(tmp_path / "out")
    assert bucket.uploads() == []


def test_two_runs_of_one_machine_keep_out_of_each_others_way(
    bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = Writer.write, list[Any]()

    def twice(self: Writer, batch: Any) -> None:
        if not refused:
            with pytest.raises(OutputError, match="another run is using") as error:
                shardmill.prepare(words, bucket.url(), **WORDS)
            refused.append(error)
        write(self, batch)

    monkeypatch.setattr(Writer, "write", twice)
    shardmill.prepare(words, bucket.url(), **WORDS)
    assert refused


def test_a_complete_dataset_is_left_alone(
    tmp_path: Path, bucket: Bucket, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shardmill.prepare(words, bucket.url(), **WORDS)
    with FaultyWay(bucket.server, lambda method, path: None) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        again = shardmill.prepare(words, bucket.url(), **{**WORDS, "workers": 1})
    assert again.already and again.out == bucket.url()
    assert {method for method, path in way.requests} <= {"GET", "HEAD"}


@pytest.mark.parametrize("finished", [True, False])
def test_sources_may_be_written_in_another_way_when_a_run_goes_on(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    if finished:
        shardmill.prepare(words, bucket.url(), **WORDS)
    else:
        interrupt_after(4, words, bucket.url(), **WORDS)
    monkeypatch.chdir(tmp_path)
    again = shardmill.prepare(words.name, bucket.url(), **WORDS)
    assert again.already if finished else again.resumed
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


@pytest.mark.parametrize("finished", [True, False])
def test_another_plan_is_refused_and_what_differs_is_named(
    bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    if finished:
        shardmill.prepare(words, bucket.url(), **WORDS)
    else:
        interrupt_after(4, words, bucket.url(), **WORDS)
    before = bucket.contents()
    with pytest.raises(MismatchError, match=r"seed was `0` and is now `1`"):
        shardmill.prepare(words, bucket.url(), **WORDS, seed=1)
    assert bucket.contents() == before


@pytest.mark.parametrize("finished", [True, False])
def test_overwrite_replaces_whatever_was_there(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    if finished:
        shardmill.prepare(words, bucket.url(), **{**WORDS, "format": "npy"})
    else:
        interrupt_after(4, words, bucket.url(), **WORDS)
    bucket.put("mine.txt", b"not the dataset's")
    bucket.put("train_000099.bin", b"an older one")
    options: dict[str, Any] = {**WORDS, "seed": 1, "overwrite": True}
    shardmill.prepare(words, bucket.url(), **options)
    shardmill.prepare(words, tmp_path / "out", **options)
    assert bucket.contents() == {**contents(tmp_path / "out"), "mine.txt": b"not the dataset's"}


def test_files_of_another_making_are_not_touched(bucket: Bucket, words: Path) -> None:
    bucket.put("train_000001.bin", b"somebody's")
    with pytest.raises(OutputError, match=r"files of another making are in the way: train_000001\.bin"):
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert bucket.contents() == {"train_000001.bin": b"somebody's"}
    assert bucket.working() == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_documents_table_that_no_dataset_lists_is_never_replaced(
    bucket: Bucket, words: Path, overwrite: bool
) -> None:
    bucket.put("documents/train.npy", b"somebody's")
    with pytest.raises(OutputError, match=r"in the way: documents/train\.npy") as error:
        shardmill.prepare(words, bucket.url(), overwrite=overwrite, **WORDS)
    assert error.value.hint == "choose another folder"
    assert bucket.contents() == {"documents/train.npy": b"somebody's"}


def test_what_a_run_left_that_was_killed_after_its_manifest_goes_with_the_next_call(
    bucket: Bucket, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.write.store_destination.StoreDestination.tidy", lambda self, facts=None: None)
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert ".shardmill/journal.json" in bucket.working()
    assert shardmill.prepare(words, bucket.url(), **WORDS).already
    assert bucket.working() == [".shardmill/plan.json"]


def test_memory_stays_within_the_limit(tmp_path: Path, bucket: Bucket) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(60 * MB))
    done = metered(
        "prepare", source, "-o", bucket.url(), "-f", "shards", "--shard-tokens", "8M", "--separator", r"\n",
        "--memory", "500MB",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.peak < 500 * MB


def test_verify_reads_a_dataset_in_a_store_and_finds_damage(tmp_path: Path, bucket: Bucket) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    with source.open("a") as file:
        file.write("not json\n")
    shardmill.prepare(source, bucket.url(), format=TOGETHER, val=0.2, shard_tokens=5_000)
    report = verify(bucket.url())
    assert report.damage == []
    assert report.files == len(bucket.contents()) - 1
    data = bucket.read("train.bin")
    bucket.put("train.bin", data[:100] + bytes([data[100] ^ 1]) + data[101:])
    bucket.put("val.bin", b"")
    bucket.delete("rejects.jsonl")
    damage = " ".join(verify(bucket.url()).damage)
    assert "train.bin: its sha256" in damage
    assert "val.bin: 0 bytes" in damage
    assert "rejects.jsonl: the file is not there" in damage


def test_verify_of_what_is_no_dataset_says_so(bucket: Bucket) -> None:
    with pytest.raises(UsageError, match="there is nothing at this address"):
        verify(bucket.url())
    bucket.put("train.bin", b"1234")
    with pytest.raises(UsageError):
        verify(bucket.url())


def test_a_conversion_into_a_store_is_resumed_and_gives_the_objects_that_a_disk_would_have_as_files(
    tmp_path: Path, bucket: Bucket, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    shardmill.prepare(source, tmp_path / "source", val=0.2)
    monkeypatch.setattr("shardmill.arrange.arranging.BLOCK_TOKENS", 5_000)
    options: dict[str, Any] = {"format": TOGETHER, "shard_tokens": 9_000, "name": "web"}
    convert(tmp_path / "source", tmp_path / "out", **options)
    write, written = Writer.write, []

    def interrupted(self: Any, batch: Any) -> None:
        written.append(batch)
        if len(written) == 4:
            raise KeyboardInterrupt
        write(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path / "source", bucket.url(), **options)
    assert "manifest.json" not in bucket.names()
    assert convert(tmp_path / "source", bucket.url(), **options).resumed
    assert bucket.contents() == contents(tmp_path / "out")
    assert bucket.working() == [".shardmill/plan.json"]
    assert convert(tmp_path / "source", bucket.url(), **options).already


def _staged() -> list[str]:
    folder = os.environ["XDG_CACHE_HOME"]
    return os.listdir(os.path.join(folder, "shardmill", "staging"))


def _machine(tmp_path: Path, name: str = "machine") -> dict[str, str]:
    """The environment of another machine: its cache is empty."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / name)}
