"""Sources in S3, through the real client, from a server on this machine."""

from __future__ import annotations

import pytest
import s3fs
from moto.server import ThreadedMotoServer

from shardmill.errors import SourceError, UsageError
from shardmill.sources import find_sources
from shardmill.storage.fetching import Fetcher
from tests.documents.away import QUICK, every_format, prepared


@pytest.fixture(scope="module")
def server():
    """One for all tests: what is stored in it stays in memory."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(server, monkeypatch):
    settings = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "never-to-be-written",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in {**settings, **QUICK, "SHARDMILL_TIMEOUT": "10"}.items():
        monkeypatch.setenv(name, value)
    return s3fs.S3FileSystem(skip_instance_cache=True)


def fill(s3, bucket, files):
    s3.mkdir(bucket)
    for name, data in files.items():
        s3.pipe_file(f"{bucket}/{name}", data)


def test_a_folder_in_s3_gives_the_same_bytes_as_the_folder_on_disk(s3, tmp_path):
    files = every_format(tmp_path / "data", count=2000)
    fill(s3, "corpus", {f"web/{name}": data for name, data in files.items()})
    expected = prepared(tmp_path / "data", tmp_path / "local")
    assert prepared("s3://corpus/web", tmp_path / "out") == expected
    names = [source.name for source in find_sources(["s3://corpus/web/*.parquet", "s3://corpus/web/a.jsonl"])]
    assert names == ["s3://corpus/web/g.parquet", "s3://corpus/web/a.jsonl"]
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or b"never-to-be-written" not in path.read_bytes()


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(s3):
    fill(s3, "moving", {"x.txt": b"a" * 100_000})
    (source,) = find_sources(["s3://moving/x.txt"])
    with Fetcher([source]) as fetcher:
        assert bytes(fetcher.read(source, 10, 20)) == b"a" * 10
        s3.pipe_file("moving/x.txt", b"b" * 100_000)
        with pytest.raises(SourceError, match="changed while it was read"):
            fetcher.read(source, 20, 30)


@pytest.mark.parametrize("name", ["s3://no-such-bucket/x.txt", "s3://plain/none.txt", "s3://plain/*.parquet"])
def test_what_is_not_in_s3_is_an_error_at_once(name, s3):
    if not s3.exists("plain"):
        fill(s3, "plain", {"x.txt": b"text"})
    with pytest.raises((SourceError, UsageError), match=r"not there|nothing matches"):
        find_sources([name])


def test_missing_credentials_are_an_error_that_says_where_they_are_looked_for(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceError) as caught:
        find_sources(["s3://plain/x.txt"])
    assert "AWS_PROFILE" in caught.value.hint
