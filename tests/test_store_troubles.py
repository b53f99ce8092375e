"""What goes wrong with an object store: tried again, told in words, and no reason for wrong data."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import OutputError, UsageError
from shardmill.storage import ObjectStore
from shardmill.storage.retrying import Transient
from shardmill.storage.store_errors import error_for
from tests.corpus import contents
from tests.meter import SHARDMILL
from tests.object_store import (
    KEY,
    LOSE,
    MB,
    SECRET,
    WORDS,
    Answer,
    Bucket,
    Fault,
    FaultyWay,
    Server,
    bucket,
    impatient,
    often,
    s3_server,
    words,
)
from tests.watching import interrupt_after

pytestmark = pytest.mark.thorough

__all__ = ["bucket", "impatient", "often", "s3_server", "words"]


@pytest.mark.parametrize("fault", [500, 503, "cut"])
def test_faults_of_the_store_are_tried_again_and_cost_nothing(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch, fault: int | str
) -> None:
    count = iter(range(100_000))

    def every_third(method: str, path: str) -> Any:
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
    assert bucket.working() == [".shardmill/plan.json"]


def test_an_answer_that_is_lost_is_not_taken_for_another_run(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is replaced, and the line is cut before the store can say so."""
    lost: list[str] = []

    def lose(method: str, path: str) -> Any:
        if method == "PUT" and path.endswith("journal.json") and len(lost) < 8:
            lost.append(path)
            return LOSE
        return None

    with FaultyWay(bucket.server, lose) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert len(lost) > 2
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


def test_an_error_with_the_status_of_success_to_the_end_of_an_upload_is_retried(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    error = b"<Error><Code>InternalError</Code><Message>Please try again.</Message></Error>"

    def refuse(method: str, path: str) -> Answer | None:
        if method != "POST" or "uploadId" not in path or path in refused:
            return None
        refused.append(path)
        return Answer(error, "")

    with FaultyWay(bucket.server, refuse) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        large = bytes(range(256)) * (34 << 10)
        ObjectStore(bucket.url()).upload("a", lambda: [large], len(large))
    assert refused
    assert bucket.read("a") == large


@pytest.mark.parametrize("what", ["train_000003.bin", "journal.json", "manifest.json", ".partial/"])
def test_a_store_that_stops_to_answer_ends_the_run_and_the_same_command_goes_on(
    tmp_path: Path,
    bucket: Bucket,
    words: Path,
    often: None,
    impatient: None,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    wanted = iter(range(3 if what in ("journal.json", ".partial/") else 0))

    def broken(method: str, path: str) -> int | None:
        return 503 if method in ("PUT", "POST") and what in path and next(wanted, None) is None else None

    with FaultyWay(bucket.server, broken) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        with pytest.raises(OutputError, match="the request to the store failed: 503") as error:
            shardmill.prepare(words, bucket.url(), **WORDS)
    assert bucket.url() in error.value.place
    assert "the same command resumes" in error.value.kept
    assert "run the same command again" in error.value.hint
    assert "manifest.json" not in bucket.names()
    assert bucket.uploads() == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
    shardmill.prepare(words, bucket.url(), **WORDS)
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


@pytest.mark.parametrize("lost", ["train_000000.bin", ".shardmill/"])
def test_what_is_missing_in_the_store_is_noticed(
    bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    interrupt_after(8, words, bucket.url(), **WORDS)
    for name in bucket.names():
        if name.startswith(lost) and not name.endswith("journal.json"):
            bucket.delete(name)
    with pytest.raises(OutputError, match="not there as the journal says"):
        shardmill.prepare(words, bucket.url(), **WORDS)


def test_rejects_so_far_can_be_read_when_there_are_too_many(tmp_path: Path, bucket: Bucket) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "good"}\n' * 50 + "bad\n" * 30)
    with pytest.raises(shardmill.ShardmillError, match="documents are bad") as error:
        shardmill.prepare(source, bucket.url(), max_bad=20)
    assert f"{bucket.url()}/rejects.jsonl.partial" in error.value.hint
    shardmill.prepare(source, bucket.url(), max_bad="any")
    assert len(bucket.read("rejects.jsonl").splitlines()) == 30
    assert "rejects.jsonl.partial" not in bucket.names()


def test_a_bucket_that_is_not_there_is_named_at_once(s3_server: Server, words: Path) -> None:
    with pytest.raises(OutputError, match="there is no bucket `no-such-bucket`") as error:
        shardmill.prepare(words, "s3://no-such-bucket/out")
    assert "create it" in error.value.hint


@pytest.mark.parametrize("name", ["s3://", "s3:///a", "s3://bucket//a", "s3://bucket/a?b=c", "ftp://host/a"])
def test_a_url_that_is_none_is_refused(words: Path, name: str) -> None:
    with pytest.raises(UsageError):
        shardmill.prepare(words, name)


def test_a_refusal_is_told_with_what_to_do_and_tried_once(
    bucket: Bucket, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyWay(bucket.server, lambda method, path: 403 if method == "PUT" else None) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        with pytest.raises(OutputError, match="does not allow it") as error:
            shardmill.prepare(words, bucket.url(), **WORDS)
    assert "list, read, write and delete" in error.value.hint
    assert [method for method, path in way.requests].count("PUT") == 1


def test_a_store_that_does_not_allow_to_delete_gets_its_dataset_with_a_warning(
    tmp_path: Path,
    bucket: Bucket,
    words: Path,
    often: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def forbidden(method: str, path: str) -> int | None:
        return 403 if method == "DELETE" or (method == "POST" and "delete" in path) else None

    shardmill.prepare(words, tmp_path / "out", **WORDS)
    with FaultyWay(bucket.server, forbidden) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        interrupt_after(6, words, bucket.url(), **WORDS)
        assert shardmill.prepare(words, bucket.url(), **WORDS).resumed
        assert caplog.text.count("cannot be deleted") == 2  # once for each run
        assert shardmill.prepare(words, bucket.url(), **WORDS).already
    assert bucket.contents() == contents(tmp_path / "out")


def test_without_credentials_it_says_where_they_are_looked_for(
    bucket: Bucket, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(OutputError, match="no credentials") as error:
        shardmill.prepare(words, bucket.url(), **WORDS)
    assert "AWS_PROFILE" in error.value.hint


def test_credentials_and_endpoint_of_a_profile_are_used(
    tmp_path: Path, bucket: Bucket, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_no_key_is_written_anywhere(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # the workplace stays, and is nobody else's business
    said = []
    for status in (403, 500):
        with FaultyWay(bucket.server, lambda method, path: status) as way:  # noqa: B023 - called within this turn
            monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
            with pytest.raises(OutputError) as error:
                shardmill.prepare(words, bucket.url(), **WORDS)
            said.append(str(error.value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
    staged = []
    monkeypatch.setattr(
        "shardmill.write.store_destination.StoreDestination._empty_workplace",
        lambda self: staged.append(_all_of(self.folder)),
    )
    interrupt_after(6, words, bucket.url(), **WORDS)
    everything = b"".join([*staged, *(bucket.read(name) for name in bucket.names()), *map(str.encode, said)])
    assert len(everything) > MB
    assert SECRET.encode() not in everything and KEY.encode() not in everything
    assert b"Signature" not in everything and b"X-Amz" not in everything


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        ("403 Forbidden", "InvalidAccessKeyId", "does not accept the credentials (InvalidAccessKeyId)"),
        ("403 Forbidden", "SignatureDoesNotMatch", "does not accept the credentials (SignatureDoesNotMatch)"),
        ("403 Forbidden", "AccessDenied", "does not allow it (AccessDenied)"),
        ("404 Not Found", "NoSuchBucket", "there is no bucket `b`"),
        ("301 Moved Permanently", "PermanentRedirect", "is in another region"),
        ("400 Bad Request", "InvalidRequest", "the store answers 400 (InvalidRequest)"),
        ("501 Not Implemented", "NotImplemented", "does not know this kind of request (NotImplemented)"),
        ("503 Service Unavailable", "SlowDown", "503 SlowDown"),
    ],
)
def test_the_words_of_the_store_are_not_repeated_but_for_their_code(status: str, code: str, words: str) -> None:
    said = (
        f"Generic S3 error: Error performing PUT https://b.s3/x?X-Amz-Signature=abc in 3ms, after 8 retries "
        f"- Server returned non-2xx status code: {status}: <Error><Code>{code}</Code><Message>no</Message>"
        f"<AWSAccessKeyId>{KEY}</AWSAccessKeyId><StringToSign>AWS4</StringToSign></Error>"
    )
    error = error_for(said, "s3://b/x", OutputError, 20)
    assert words in str(error)
    assert isinstance(error, Transient) == (status[:3] == "503")
    everything = f"{error} {vars(error)}"
    assert KEY not in everything and "Amz" not in everything and "AWS4" not in everything


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDenied", "does not allow it (AccessDenied)"),
        ("ExpiredToken", "does not accept the credentials (ExpiredToken)"),
        ("ObjectLocked", "the store answers (ObjectLocked)"),
        ("InternalError", "InternalError"),
    ],
)
def test_the_code_for_one_object_of_several_that_are_deleted_is_told(code: str, words: str) -> None:
    said = f"Generic S3 error: DeleteObjects request failed for key out/x: Denied (code: {code})"
    error = error_for(said, "s3://b/x", OutputError, 20)
    assert words in str(error)
    assert isinstance(error, Transient) == (code == "InternalError")


def test_lists_that_are_older_than_their_objects_do_not_end_a_resumed_run(
    tmp_path: Path, bucket: Bucket, words: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(12, words, bucket.url(), **WORDS)
    assert "train_000000.bin" in bucket.names()
    empty = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"

    def stale(method: str, path: str) -> bytes | None:
        return empty if method == "GET" and "list-type=2" in path else None

    with FaultyWay(bucket.server, stale) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        result = shardmill.prepare(words, bucket.url(), **WORDS)
    assert result.resumed
    shardmill.prepare(words, tmp_path / "out", **WORDS)
    assert bucket.contents() == contents(tmp_path / "out")


SECRETS = [f"{KEY}:{SECRET}@", f"{KEY}:wJal/XUtn+FEMI/K7MD@", f"{KEY}@", f"{KEY}:{SECRET}/"]


@pytest.mark.parametrize("written", SECRETS)
@pytest.mark.parametrize("side", ["source", "output"])
def test_keys_in_a_url_are_refused_at_once_and_not_repeated(tmp_path: Path, written: str, side: str) -> None:
    (tmp_path / "a.txt").write_text("some text")
    for scheme in ("s3", "gs", "az", *(["abfss", "hf", "ftp"] if side == "source" else [])):
        url = f"{scheme}://{written}bucket/x"
        if scheme == "abfss" and ":" not in written:
            continue
        call = (url, str(tmp_path / "out")) if side == "source" else (str(tmp_path / "a.txt"), url)
        done = run(*SHARDMILL, "prepare", call[0], "-o", call[1], "-q")
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr and "retrying" not in done.stderr
        for secret in (KEY, SECRET, "wJal", "FEMI"):
            assert secret not in done.stderr + done.stdout, url
        assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_too_little_memory_for_the_uploads_is_said_beforehand(tmp_path: Path, bucket: Bucket, words: Path) -> None:
    least = []
    for output in (str(tmp_path / "unused"), bucket.url()):
        # In processes of their own: what this one holds counts too, and changes from one call to the next.
        done = run(*SHARDMILL, "prepare", str(words), "-o", output, "--memory", "100MB")
        assert done.returncode == 1 and "does not suffice" in done.stderr, done.stderr
        least.append(int(done.stderr.split("--memory ")[1].split("MB")[0]))
    assert least[1] - least[0] > 50


def test_a_file_too_large_for_one_object_is_refused_before_anything_is_written(
    bucket: Bucket, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.storage.object_store.LARGEST_OBJECT", 100_000)
    monkeypatch.setattr("shardmill.write.store_destination.StoreDestination.largest_file", 100_000)
    with pytest.raises(OutputError, match="one object may have") as error:
        shardmill.prepare(words, bucket.url(), val=0)
    assert "-f shards" in error.value.hint
    assert bucket.names() == []


def _all_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
