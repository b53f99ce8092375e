"""Sources in S3, through the real client, from a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.session
import pytest
from moto.server import ThreadedMotoServer

import shardmill
from shardmill.errors import SourceError, UsageError
from shardmill.sources import find_sources
from shardmill.storage.fetching import Fetcher
from shardmill.write import dataset_files
from tests.documents.away import QUICK, every_format, prepared
from tests.object_store import FaultyWay, Server
from tests.watching import interrupt_after

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One for all tests: what is stored in it stays in memory."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "never-to-be-written",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in {**settings, **QUICK, "SHARDMILL_TIMEOUT": "10"}.items():
        monkeypatch.setenv(name, value)
    return botocore.session.get_session().create_client("s3", endpoint_url=server)


def fill(s3: Any, bucket: str, files: dict[str, bytes]) -> None:
    s3.create_bucket(Bucket=bucket)
    for name, data in files.items():
        s3.put_object(Bucket=bucket, Key=name, Body=data)


def test_a_folder_in_s3_gives_the_same_bytes_as_the_folder_on_disk(s3: Any, tmp_path: Path) -> None:
    files = every_format(tmp_path / "data", count=2000)
    fill(s3, "corpus", {f"web/{name}": data for name, data in files.items()})
    expected = prepared(tmp_path / "data", tmp_path / "local")
    assert prepared("s3://corpus/web", tmp_path / "out") == expected
    names = [source.name for source in find_sources(["s3://corpus/web/*.parquet", "s3://corpus/web/a.jsonl"])]
    assert names == ["s3://corpus/web/g.parquet", "s3://corpus/web/a.jsonl"]
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or b"never-to-be-written" not in path.read_bytes()


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(s3: Any) -> None:
    fill(s3, "moving", {"x.txt": b"a" * 100_000})
    (source,) = find_sources(["s3://moving/x.txt"])
    with Fetcher([source]) as fetcher:
        assert bytes(fetcher.read(source, 10, 20)) == b"a" * 10
        s3.put_object(Bucket="moving", Key="x.txt", Body=b"b" * 100_000)
        with pytest.raises(SourceError, match="changed while it was read"):
            fetcher.read(source, 20, 30)


@pytest.mark.parametrize("name", ["s3://no-such-bucket/x.txt", "s3://plain/none.txt", "s3://plain/*.parquet"])
def test_what_is_not_in_s3_is_an_error_at_once(name: str, s3: Any) -> None:
    if "plain" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        fill(s3, "plain", {"x.txt": b"text"})
    with pytest.raises((SourceError, UsageError), match=r"no bucket|not there|nothing matches"):
        find_sources([name])


def test_missing_credentials_are_an_error_that_says_where_they_are_looked_for(
    s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceError) as caught:
        find_sources(["s3://plain/x.txt"])
    assert "AWS_PROFILE" in caught.value.hint


NAMES = [*"ü.txt 100%.txt %41.txt a+b#c.txt q?.txt [x].txt st*r.txt a@b:c.txt ~^{}|.txt".split(), "a b.txt"]


@pytest.mark.parametrize("name", NAMES)
def test_an_object_with_an_odd_name_is_found_and_read(name: str, s3: Any, request: pytest.FixtureRequest) -> None:
    bucket = f"odd-{NAMES.index(name)}"
    fill(s3, bucket, {f"d/{name}": b"its text", "d/other.txt": b"another"})
    source = next(one for one in find_sources([f"s3://{bucket}/d"]) if one.name.endswith(f"/{name}"))
    with Fetcher([source]) as fetcher:
        assert bytes(fetcher.read(source, 0, 8)) == b"its text"
    if not set(name) & set("*?["):
        assert list(find_sources([f"s3://{bucket}/d/{name}"])) == [source]


def test_objects_that_only_stand_for_folders_are_no_sources(s3: Any) -> None:
    files = {"d/": b"", "d/e/": b"", "d/e/x.txt": b"text", "d/empty/": b"", "d/nothing": b"", "d/y.txt": b"text"}
    fill(s3, "marked", files)
    found = {source.name for source in find_sources(["s3://marked/d"])}
    assert found == {f"s3://marked/d/{name}" for name in ("e/x.txt", "y.txt")}


def test_a_name_that_no_file_can_have_is_an_error_and_nothing_is_left_out(s3: Any) -> None:
    fill(s3, "slashes", {"d/a.txt": b"text", "d//b.txt": b"text"})
    with pytest.raises(SourceError, match="not one of a file"):
        find_sources(["s3://slashes/d"])


@pytest.mark.parametrize("status", [500, 503, 403])
def test_a_folder_whose_list_fails_is_never_left_out(
    status: int, s3: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever requests a client lists with: the same one fails again and again."""
    bucket = f"lost-{status}"
    names = [f"d/{folder}/{i}.txt" for folder in "abc" for i in range(3)]
    fill(s3, bucket, dict.fromkeys(names, b"text"))
    with FaultyWay(Server(urlsplit(server).port or 0), lambda method, path: None) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        assert len(find_sources([f"s3://{bucket}/d/*/*.txt"])) == 9
        for request in list(dict.fromkeys(way.requests)):
            way.rule = lambda method, path: status if (method, path) == request else None  # noqa: B023 - called within this turn
            with pytest.raises((SourceError, UsageError)):
                find_sources([f"s3://{bucket}/d/*/*.txt"])


@pytest.mark.parametrize("number", range(3))
def test_an_output_below_the_sources_is_not_read_by_the_next_call(number: int, s3: Any) -> None:
    names = ("in/a.jsonl", "in/out/mine.jsonl", "in/out-1/d.jsonl")
    fill(s3, f"nested-{number}", dict.fromkeys(names, b'{"text": "some words"}\n'))
    url = f"s3://nested-{number}/in"
    spec = url + ("", "/**", "/**/*.jsonl")[number]
    first = shardmill.prepare(spec, f"{url}/out", val=0)
    assert [source["name"] for source in first.manifest["sources"]] == [f"{url}/a.jsonl", f"{url}/out-1/d.jsonl"]
    assert shardmill.prepare(spec, f"{url}/out", val=0).already
    # Where it is named itself it is meant.
    assert len(find_sources([f"{url}/out", f"{url}/out/mine.jsonl"], out=f"{url}/out")) >= 2


@pytest.mark.parametrize("pattern", ["", "/*", "/**", "/*.json*"])
@pytest.mark.parametrize("folder", ["in/deep", ""])
def test_a_dataset_in_the_folder_of_its_sources_is_not_read_by_the_next_call(
    folder: str, pattern: str, s3: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"same-{abs(hash(request.node.name))}"
    url = f"s3://{bucket}/{folder}".rstrip("/")
    below = f"{folder}/" if folder else ""
    lines = b'{"text": "some words"}\n' * 6000 + b"{\n"
    fill(s3, bucket, {f"{below}{name}": lines for name in ("a.jsonl", "b.json")})
    wanted = [f"{url}/a.jsonl", f"{url}/b.json"]
    options: dict[str, Any] = {"val": 0.5, "format": ("shards", "mds"), "shard_tokens": 3000, "max_bad": "any"}
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.run.budget.LARGEST", 1 << 16)  # the result of the first file makes several shards
        interrupt_after(1, url + pattern, url, **options)
    assert any(name.endswith(".bin") for name in (one.name for one in find_sources([f"{url}/*"])))
    first = shardmill.prepare(url + pattern, url, **options)
    assert first.resumed
    assert [source["name"] for source in first.manifest["sources"]] == wanted
    assert shardmill.prepare(url + pattern, url, **options).already
    # Nor where the output is another one.
    assert [source.name for source in find_sources([url + pattern], owned=dataset_files)] == wanted
    # A manifest that is not ours is a file like any other.
    fill(s3, f"{bucket}-2", {f"{below}{name}": lines for name in ("a.jsonl", "manifest.json")})
    assert len(find_sources([url.replace(bucket, f"{bucket}-2") + pattern], owned=dataset_files)) == 2
