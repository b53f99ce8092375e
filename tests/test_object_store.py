"""Output to object stores: the same bytes as on a disk, whole or not at all, from whatever machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading

import pytest

import shardmill
from shardmill.conversion import convert
from shardmill.errors import MismatchError, OutputError, UsageError
from shardmill.options import FORMATS
from shardmill.verify import verify
from shardmill.writing.object_store import refusal
from tests.corpus import contents, documents, random_words, write_jsonl
from tests.crashing import crash_everywhere_in_store
from tests.meter import SHARDMILL, metered
from tests.object_store import KEY, LOSE, SECRET, Fault, FaultyWay, bucket, s3_server
from tests.watching import wait_until, watch_reads

__all__ = ["bucket", "s3_server"]

MB = 1_000_000
WORDS = {"separator": "\n", "val": 0.1, "format": "shards", "shard_tokens": 400_000}


@pytest.fixture
def words(tmp_path):
    source = tmp_path / "words.txt"
    source.write_bytes(random_words(4 * MB, seed=5))
    return source


@pytest.fixture
def often(monkeypatch):
    """Checkpoints and pushes after every small chunk."""
    monkeypatch.setattr("shardmill.checkpoints._EVERY", 0.0)
    monkeypatch.setattr("shardmill.mirror._EVERY", 0.0)
    monkeypatch.setattr("shardmill.budget.LARGEST", 1 << 18)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("shardmill.writing.object_store._RETRIES", 2)


@pytest.mark.parametrize("form", [*FORMATS, FORMATS])
def test_every_format_gives_the_objects_that_a_disk_would_have_as_files(tmp_path, bucket, form):
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    with source.open("a") as file:
        file.write("not json\n")
    options = {"format": form, "val": 0.2, "shard_tokens": 9_000}
    shardmill.prepare(source, tmp_path / "out", **options)
    result = shardmill.prepare(source, bucket.url(), **options)
    assert result.out == bucket.url()
    assert bucket.contents() == contents(tmp_path / "out")
    assert "rejects.jsonl" in bucket.contents()
    assert _working(bucket) == [".shardmill/plan.json"]
    assert bucket.uploads() == []
    assert _staged() == []


@pytest.mark.parametrize("form", FORMATS)
def test_killed_between_requests_every_format_is_resumed_by_other_machines_with_the_same_bytes(tmp_path, bucket, form):
    source = write_jsonl(tmp_path / "a.jsonl", documents(120))
    with source.open("a") as file:
        file.write("not json\n")
    kills = crash_everywhere_in_store(source, bucket, tmp_path, every=31, format=form, shard_tokens=5_000, val=0.3)
    assert kills > 1


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_killed_between_any_two_requests_every_format_is_resumed_by_other_machines(tmp_path, bucket, form):
    source = write_jsonl(tmp_path / "a.jsonl", documents(120))
    crash_everywhere_in_store(source, bucket, tmp_path, format=form, shard_tokens=5_000, val=0.3, tail="merge")


def test_killed_within_an_upload_of_several_requests_nothing_of_it_remains(tmp_path, bucket):
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(15 * MB))
    options = {"separator": "\n", "val": 0, "format": "shards", "shard_tokens": 6 * MB}
    assert crash_everywhere_in_store(source, bucket, tmp_path, every=17, chunk=4 << 20, **options) > 1


def test_an_upload_that_is_left_open_is_ended_by_the_next_run_and_those_of_others_are_not(bucket, words):
    client = bucket.server.client
    for key in ("out/train_000000.bin", "out/.shardmill/1/x/0", "out/other.bin", "out2/train_000000.bin"):
        client.create_multipart_upload(Bucket=bucket.name, Key=key)
    shardmill.prepare(words, bucket.url(), **WORDS)
    assert sorted(bucket.uploads()) == ["out/other.bin", "out2/train_000000.bin"]


def test_nothing_bears_its_name_before_it_is_whole_and_the_manifest_comes_last(tmp_path, bucket, words, often):
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    whole = {name: len(data) for name, data in contents(tmp_path / "out").items()}
    done = threading.Event()
    looks = []

    def look():
        while not done.is_set():
            found = bucket.server.client.list_objects_v2(Bucket=bucket.name, Prefix="out/").get("Contents", ())
            looks.append({entry["Key"].removeprefix("out/"): entry["Size"] for entry in found})

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        shardmill.prepare(words, bucket.url(), **WORDS)
    finally:
        done.set()
        watcher.join()
    seen = [{name: size for name, size in found.items() if name[0] != "."} for found in looks]
    assert any(seen) and any(0 < len(found) < len(whole) for found in seen), "nobody looked in time"
    assert all(found.items() <= whole.items() for found in seen)
    assert all(found == whole for found in seen if "manifest.json" in found)
    assert any(name.endswith("/0000000000000000") for found in looks for name in found), "no parts were seen"


def test_a_run_that_is_killed_goes_on_where_another_machine_pushed_last(tmp_path, bucket, words, often, monkeypatch):
    _interrupt_after(monkeypatch, words, bucket.url(), chunks=8)
    journal = json.loads(bucket.read(".shardmill/journal.json"))
    recorded = journal["state"]["position"][0]
    assert recorded > 4 << 18
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    read = watch_reads(monkeypatch)
    assert shardmill.prepare(words, bucket.url(), **WORDS).resumed
    assert min(read) == recorded
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


def test_an_interrupt_pushes_what_is_done_and_ends_with_130(tmp_path, bucket):
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(60 * MB))
    command = ["prepare", str(source), "-o", bucket.url(), "--separator", r"\n", "--memory", "500MB"]
    with subprocess.Popen([*SHARDMILL, *command], stderr=subprocess.PIPE, text=True, env=_machine(tmp_path)) as run:
        wait_until(lambda: any(path.stat().st_size for path in (tmp_path / "machine").rglob("train*.partial")))
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "the same command goes on from there" in said
    assert json.loads(bucket.read(".shardmill/journal.json"))["state"]["position"][0] > 0
    assert "manifest.json" not in bucket.names()
    assert [path for path in (tmp_path / "machine").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("fault", [500, 503, "cut"])
def test_faults_of_the_store_are_tried_again_and_cost_nothing(tmp_path, bucket, words, often, monkeypatch, fault):
    count = iter(range(100_000))

    def every_third(method, path):
        if next(count) % 3 == 1:
            if fault == "cut":
                raise Fault
            return fault
        return None

    shardmill.prepare(words, tmp_path / "out", **WORDS)
    with FaultyWay(bucket.server, every_third) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        shardmill.prepare(words, bucket.url(), **WORDS)
        assert len(way.requests) > 30
    assert bucket.contents() == contents(tmp_path / "out")
    assert _working(bucket) == [".shardmill/plan.json"]


def test_an_answer_that_is_lost_is_not_taken_for_another_run(tmp_path, bucket, words, often, monkeypatch):
    """The journal is replaced, and the line is cut before the store can say so."""
    lost = []

    def lose(method, path):
        if method == "PUT" and path.endswith("journal.json") and len(lost) < 8:
            lost.append(path)
            return LOSE
        return None

    with FaultyWay(bucket.server, lose) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert len(lost) == 8
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


@pytest.mark.parametrize("what", ["train_000003.bin", "journal.json", "manifest.json", ".partial/"])
def test_a_store_that_stops_to_answer_ends_the_run_and_the_same_command_goes_on(
    tmp_path, bucket, words, often, impatient, monkeypatch, what
):
    wanted = iter(range(3 if what in ("journal.json", ".partial/") else 0))

    def broken(method, path):
        return 503 if method in ("PUT", "POST") and what in path and next(wanted, None) is None else None

    with FaultyWay(bucket.server, broken) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        with pytest.raises(OutputError, match="the store did not do it: 503") as error:
            shardmill.prepare(words, bucket.url(), **WORDS)
    assert bucket.url() in error.value.place
    assert "the same command goes on" in error.value.kept
    assert "run the same command again" in error.value.hint
    assert "manifest.json" not in bucket.names()
    assert bucket.uploads() == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
    shardmill.prepare(words, bucket.url(), **WORDS)
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


def test_a_run_that_was_taken_for_dead_stops_when_it_wakes(tmp_path, bucket):
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(15 * MB))
    options = ["--separator", r"\n", "-f", "shards", "--shard-tokens", "1M", "-q"]
    command = [*SHARDMILL, "prepare", str(source), *options]
    with subprocess.Popen(
        [*command, "-o", bucket.url()], stderr=subprocess.PIPE, text=True, env=_machine(tmp_path, "one")
    ) as first:
        wait_until(lambda: "train_000000.bin" in bucket.names())
        first.send_signal(signal.SIGSTOP)
        try:
            subprocess.run([*command, "-o", bucket.url()], check=True, env=_machine(tmp_path, "two"))
        finally:
            first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "another run has taken over" in said
    assert "Traceback" not in said
    subprocess.run([*command, "-o", str(tmp_path / "out")], check=True)
    assert bucket.contents() == contents(tmp_path / "out")
    assert bucket.uploads() == []


def test_two_runs_of_one_machine_keep_out_of_each_others_way(bucket, words, often, monkeypatch):
    from shardmill.writer import Writer

    take, refused = Writer.take, []

    def twice(self, milled):
        if not refused:
            with pytest.raises(OutputError, match="another run is at work") as error:
                shardmill.prepare(words, bucket.url(), **WORDS)
            refused.append(error)
        take(self, milled)

    monkeypatch.setattr(Writer, "take", twice)
    shardmill.prepare(words, bucket.url(), **WORDS)
    assert refused


def test_a_complete_dataset_is_left_alone(tmp_path, bucket, words, monkeypatch):
    shardmill.prepare(words, bucket.url(), **WORDS)
    with FaultyWay(bucket.server, lambda method, path: None) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        again = shardmill.prepare(words, bucket.url(), **{**WORDS, "workers": 1})
    assert again.already and again.out == bucket.url()
    assert {method for method, path in way.requests} <= {"GET", "HEAD"}


@pytest.mark.parametrize("finished", [True, False])
def test_another_plan_is_refused_and_what_differs_is_named(bucket, words, often, monkeypatch, finished):
    if finished:
        shardmill.prepare(words, bucket.url(), **WORDS)
    else:
        _interrupt_after(monkeypatch, words, bucket.url(), chunks=4)
    before = bucket.contents()
    with pytest.raises(MismatchError, match=r"--seed was `0` and is now `1`"):
        shardmill.prepare(words, bucket.url(), **WORDS, seed=1)
    assert bucket.contents() == before


@pytest.mark.parametrize("finished", [True, False])
def test_overwrite_replaces_whatever_was_there(tmp_path, bucket, words, often, monkeypatch, finished):
    if finished:
        shardmill.prepare(words, bucket.url(), **{**WORDS, "format": "npy"})
    else:
        _interrupt_after(monkeypatch, words, bucket.url(), chunks=4)
    bucket.put("mine.txt", b"not the dataset's")
    bucket.put("train_000099.bin", b"an older one")
    options = {**WORDS, "seed": 1, "overwrite": True}
    shardmill.prepare(words, bucket.url(), **options)
    shardmill.prepare(words, tmp_path / "out", **options)
    assert bucket.contents() == {**contents(tmp_path / "out"), "mine.txt": b"not the dataset's"}


def test_files_of_another_making_are_not_touched(bucket, words):
    bucket.put("train_000001.bin", b"somebody's")
    with pytest.raises(OutputError, match=r"files of another making are in the way: train_000001\.bin"):
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert bucket.contents() == {"train_000001.bin": b"somebody's"}
    assert _working(bucket) == []


@pytest.mark.parametrize("lost", ["train_000000.bin", ".shardmill/"])
def test_what_is_missing_in_the_store_is_noticed(bucket, words, often, monkeypatch, lost):
    _interrupt_after(monkeypatch, words, bucket.url(), chunks=8)
    for name in bucket.names():
        if name.startswith(lost) and not name.endswith("journal.json"):
            bucket.delete(name)
    with pytest.raises(OutputError, match="not there as the journal says"):
        shardmill.prepare(words, bucket.url(), **WORDS)


def test_rejects_so_far_can_be_read_when_there_are_too_many(tmp_path, bucket):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "good"}\n' * 50 + "bad\n" * 30)
    with pytest.raises(shardmill.ShardmillError, match="documents are bad") as error:
        shardmill.prepare(source, bucket.url(), max_bad=20)
    assert f"{bucket.url()}/rejects.jsonl.partial" in error.value.hint
    shardmill.prepare(source, bucket.url(), max_bad="any")
    assert len(bucket.read("rejects.jsonl").splitlines()) == 30
    assert "rejects.jsonl.partial" not in bucket.names()


def test_a_bucket_that_is_not_there_is_named_at_once(s3_server, words):
    with pytest.raises(OutputError, match="there is no bucket `no-such-bucket`") as error:
        shardmill.prepare(words, "s3://no-such-bucket/out")
    assert "create it" in error.value.hint


@pytest.mark.parametrize("name", ["s3://", "s3:///a", "s3://bucket//a", "s3://bucket/a?b=c", "ftp://host/a"])
def test_a_url_that_is_none_is_refused(words, name):
    with pytest.raises(UsageError):
        shardmill.prepare(words, name)


def test_a_refusal_is_told_with_what_to_do_and_tried_once(bucket, words, monkeypatch):
    with FaultyWay(bucket.server, lambda method, path: 403 if method == "PUT" else None) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        with pytest.raises(OutputError, match="does not allow it") as error:
            shardmill.prepare(words, bucket.url(), **WORDS)
    assert "list, read, write and delete" in error.value.hint
    assert [method for method, path in way.requests].count("PUT") == 1


def test_without_credentials_it_says_where_they_are_looked_for(bucket, words, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(OutputError, match="no credentials") as error:
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert "AWS_PROFILE" in error.value.hint


def test_credentials_and_endpoint_of_a_profile_are_used(tmp_path, bucket, words, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(f"[mill]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    (folder / "config").write_text(f"[profile mill]\nregion = eu-west-1\nendpoint_url = {bucket.server.endpoint}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mill")
    shardmill.prepare(words, bucket.url(), **WORDS)
    assert "manifest.json" in bucket.names()


def test_no_key_is_written_anywhere(tmp_path, bucket, words, often, impatient, monkeypatch):
    said = []
    for status in (403, 500):
        with FaultyWay(bucket.server, lambda method, path, status=status: status) as way:
            monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
            with pytest.raises(OutputError) as error:
                shardmill.prepare(words, bucket.url(), **WORDS)
            said.append(str(error.value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
    staged = []
    monkeypatch.setattr("shardmill.mirror.Mirror.clean", lambda self: staged.append(_all_of(self.staging)))
    _interrupt_after(monkeypatch, words, bucket.url(), chunks=6)
    everything = b"".join([*staged, *(bucket.read(name) for name in bucket.names()), *map(str.encode, said)])
    assert len(everything) > MB
    assert SECRET.encode() not in everything and KEY.encode() not in everything
    assert b"Signature" not in everything and b"X-Amz" not in everything


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        ("403 Forbidden", "InvalidAccessKeyId", "does not accept the credentials (InvalidAccessKeyId)"),
        ("403 Forbidden", "SignatureDoesNotMatch", "does not accept the credentials (SignatureDoesNotMatch)"),
        ("403 Forbidden", "AccessDenied", "does not allow it (AccessDenied)"),
        ("404 Not Found", "NoSuchBucket", "there is no bucket `b`"),
        ("301 Moved Permanently", "PermanentRedirect", "is in another region"),
        ("503 Service Unavailable", "SlowDown", "did not do it: SlowDown, tried 9 times"),
    ],
)
def test_the_words_of_the_store_are_not_repeated_but_for_their_code(status, code, told):
    said = (
        f"Generic S3 error: Error performing PUT https://b.s3/x?X-Amz-Signature=abc in 3ms, after 8 retries "
        f"- Server returned non-2xx status code: {status}: <Error><Code>{code}</Code><Message>no</Message>"
        f"<AWSAccessKeyId>{KEY}</AWSAccessKeyId><StringToSign>AWS4</StringToSign></Error>"
    )
    error = str(refusal(said, "b", "s3://b/x"))
    assert told in error
    assert KEY not in error and "Amz" not in error and "AWS4" not in error


def test_what_a_run_left_that_was_killed_after_its_manifest_goes_with_the_next_call(bucket, words, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.mirror.Mirror.tidy", lambda self, facts=None: None)
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert ".shardmill/journal.json" in _working(bucket)
    assert shardmill.prepare(words, bucket.url(), **WORDS).already
    assert _working(bucket) == [".shardmill/plan.json"]


def test_memory_stays_within_the_limit(tmp_path, bucket):
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(60 * MB))
    done = metered(
        "prepare", source, "-o", bucket.url(), "-f", "shards", "--shard-tokens", "8M", "--separator", r"\n",
        "--memory", "500MB",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.peak < 500 * MB


def test_too_little_memory_for_the_uploads_is_said_beforehand(bucket, words):
    with pytest.raises(shardmill.ShardmillError, match="does not suffice") as local:
        shardmill.prepare(words, "unused", memory="100MB")
    with pytest.raises(shardmill.ShardmillError, match="does not suffice") as remote:
        shardmill.prepare(words, bucket.url(), memory="100MB")
    least = [int(error.value.hint.split("--memory ")[1].split("MB")[0]) for error in (local, remote)]
    assert least[1] - least[0] > 50


def test_a_file_too_large_for_one_object_is_refused_before_anything_is_written(bucket, words, monkeypatch):
    monkeypatch.setattr("shardmill.writing.object_store.LARGEST", 100_000)
    monkeypatch.setattr("shardmill.preflight.LARGEST", 100_000)
    with pytest.raises(OutputError, match="one object may have") as error:
        shardmill.prepare(words, bucket.url(), val=0)
    assert "-f shards" in error.value.hint
    assert bucket.names() == []


def test_without_the_library_the_extra_is_named(words, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    for url, extra in (("s3://b/x", "s3"), ("gs://b/x", "gcs"), ("az://b/x", "azure")):
        with pytest.raises(UsageError, match="obstore") as error:
            shardmill.prepare(words, url)
        assert f"shardmill[{extra}]" in error.value.hint


def test_verify_reads_a_dataset_in_a_store_and_finds_damage(tmp_path, bucket):
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    with source.open("a") as file:
        file.write("not json\n")
    shardmill.prepare(source, bucket.url(), format=FORMATS, val=0.2, shard_tokens=5_000)
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
    assert "rejects.jsonl: no such file" in damage


def test_verify_of_what_is_no_dataset_says_so(bucket):
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        verify(bucket.url())


def test_what_reads_folders_only_says_so_of_a_url(tmp_path, bucket):
    for call in (shardmill.open, lambda url: convert(url, tmp_path / "x"), lambda url: convert(tmp_path, url)):
        with pytest.raises(UsageError) as error:
            call(bucket.url())
        assert "copy the dataset down" in error.value.hint


def _interrupt_after(monkeypatch, source, out, chunks):
    from shardmill.writer import Writer

    take, taken = Writer.take, []

    def counted(self, milled):
        if len(taken) >= chunks:
            raise KeyboardInterrupt
        taken.append(1)
        take(self, milled)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "take", counted)
        with pytest.raises(KeyboardInterrupt):
            shardmill.prepare(source, out, **WORDS)


def _working(bucket):
    return [name for name in bucket.names() if name.startswith(".shardmill/")]


def _staged():
    folder = os.environ["XDG_CACHE_HOME"]
    return os.listdir(os.path.join(folder, "shardmill", "staging"))


def _machine(tmp_path, name="machine"):
    """The environment of another machine: its cache is empty."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / name)}


def _all_of(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
