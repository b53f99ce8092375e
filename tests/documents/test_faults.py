"""What goes wrong on the way: tried again, exact in the end, or an error that says what to do."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import SourceError
from shardmill.sources import find_sources
from shardmill.storage import Fetcher
from shardmill.storage.retrying import Retries, RetryPolicy, Transient, retry
from shardmill.write.progress import Lines
from tests.corpus import documents
from tests.documents.away import QUICK, REPO, lines, made_of, parquet, prepared
from tests.hub import Fault, Hub
from tests.hub_answers import etag_of
from tests.meter import SHARDMILL

pytestmark = pytest.mark.thorough

Expected = tuple[dict[str, bytes], dict[str, Any]]
"""Files, and what is made of each."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What a run makes of each file on disk."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "x.jsonl").write_bytes(lines())
    data = parquet(folder / "x.parquet", documents(8000, seed=3), rows=1000)
    made = {name: prepared(folder / name, folder / f"out-{name}") for name in ("x.jsonl", "x.parquet")}
    return {"x.jsonl": lines(), "x.parquet": data}, made


FAULTS = {
    "503": [Fault("/cdn/", skip=1, times=3, status=503)],
    "429 with Retry-After": [Fault("/cdn/", skip=1, times=2, status=429, headers={"Retry-After": "0.3"})],
    "500 from the hub itself": [Fault("/resolve/", times=2, status=500)],
    "cut in mid-body": [Fault("/cdn/", skip=1, times=3, cut=10_000)],
    "cut before the body": [Fault("/cdn/", skip=2, times=2, cut=0)],
    "short": [Fault("/cdn/", skip=1, times=3, short=5)],
    "200 in place of 206": [Fault("/cdn/", skip=1, times=2, whole=True)],
    "silence before the answer": [Fault("/cdn/", skip=1, times=1, stall=3.2)],
    "silence in mid-body": [Fault("/cdn/", skip=1, times=1, cut=10_000, stall=3.2)],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_what_passes_is_tried_again_and_the_data_is_exact(
    fault: str, name: str, expected: Expected, hub: Hub, tmp_path: Path
) -> None:
    files, made = expected
    hub.add(REPO, files)
    hub.faults += [Fault(**vars(one)) for one in FAULTS[fault]]
    assert prepared(f"hf://datasets/{REPO}/{name}", tmp_path / "out") == made[name]
    assert all(one.times == 0 for one in hub.faults), "the fault was never met"


def test_retry_after_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/cdn/", times=1, status=429, headers={"Retry-After": "2"}))
    result = shardmill.prepare(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    first, second = [request.time for request in hub.answered("/cdn/")][:2]
    assert second - first >= 2
    assert result.retries == 1


def test_a_hub_that_fails_while_it_lists_is_asked_again_and_the_log_says_so(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/api/", times=2, status=502))
    assert len(find_sources([f"hf://datasets/{REPO}/x.jsonl"])) == 1
    assert [record.getMessage() for record in caplog.records if record.name == "shardmill"]
    assert all(message.startswith("retrying: 502") for message in caplog.messages if "retrying" in message)


def test_after_the_last_try_the_run_stops_with_its_place_and_goes_on_later(
    expected: Expected, hub: Hub, tmp_path: Path
) -> None:
    files, made = expected
    hub.add(REPO, files)
    hub.faults.append(Fault("/cdn/", skip=2, times=1000, status=503))
    with pytest.raises(SourceError) as caught:
        prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    assert "503 from the hub (4 attempts)" in caught.value.message
    assert caught.value.place.startswith(f"hf://datasets/{REPO}@") and "x.jsonl, byte " in caught.value.place
    assert "run the same command again when the server is reachable; SHARDMILL_TRIES sets" in caught.value.hint
    hub.faults.clear()
    assert prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out") == made["x.jsonl"]


def test_a_pause_longer_than_our_patience_is_not_waited_for(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/cdn/", times=1, status=429, headers={"Retry-After": "3600"}))
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"asks to wait 3,600 s"):
        prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    assert time.monotonic() - started < 150


def test_tries_and_time_are_bounded() -> None:
    calls = []

    def fails() -> None:
        calls.append(1)
        raise Transient("no luck")

    policy = RetryPolicy(tries=5, pause=0.001, longest_pause=0.002)
    with pytest.raises(SourceError, match=r"no luck \(5 attempts\)"):
        retry(fails, "here", policy, Retries(), threading.Event())
    assert len(calls) == 5
    policy = RetryPolicy(tries=10**6, retry_seconds=0.2, pause=0.05)
    started = time.monotonic()
    with pytest.raises(SourceError):
        retry(fails, "here", policy, Retries(), threading.Event())
    assert time.monotonic() - started < 100  # all tries would take half a day


def test_the_progress_line_says_what_is_tried_again(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.write.progress._EVERY", 0.1)
    monkeypatch.setenv("SHARDMILL_PAUSE", "0.6")
    monkeypatch.setenv("SHARDMILL_LONGEST_PAUSE", "1")
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/cdn/", skip=1, times=1, status=503))
    told = io.StringIO()
    shardmill.prepare(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out", progress=Lines(told))
    assert "retrying: 503 from the hub, attempt 2 of 4" in told.getvalue()


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        (Fault("/resolve/", status=403, headers={"X-Error-Code": "GatedRepo"}), "gated", f"datasets/{REPO}, then"),
        (Fault("/resolve/", status=401, headers={"X-Error-Code": "RepoNotFound"}), "no such dataset", "hf auth login"),
        (Fault("/resolve/", status=404, headers={"X-Error-Code": "EntryNotFound"}), "no such file", "/tree/main"),
        (Fault("/resolve/", status=403), "does not allow it (403)", f"to read {REPO}"),
        (Fault("/resolve/", status=404), "the hub answers 404", "HF_ENDPOINT"),
        (Fault("/cdn/", status=403), "to which the hub sends for its files answers 403", "not the dataset's owner"),
        (Fault("/cdn/", status=401), "to which the hub sends for its files answers 401", "not the dataset's owner"),
        (Fault("/cdn/", status=404), "to which the hub sends for its files answers 404", "not the dataset's owner"),
        (Fault("/api/", status=403), "does not allow it (403)", f"to read {REPO}"),
        (
            Fault("/api/", status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}),
            "does not accept the token",
            "HF_TOKEN",
        ),
        (Fault("/api/", status=403, headers={"X-Error-Code": "GatedRepo"}), "gated", "hf auth login"),
        (Fault("/api/", status=401, headers={"X-Error-Code": "RepoNotFound"}), "no such dataset", "HF_TOKEN"),
        (Fault("/api/", status=404, headers={"X-Error-Code": "RevisionNotFound"}), "no such revision", "@"),
    ],
)
def test_a_refusal_of_the_hub_stops_at_once_with_what_to_do(
    fault: Fault, message: str, hint: str, hub: Hub, tmp_path: Path
) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    fault = Fault(**{**vars(fault), "times": 1000})
    hub.faults.append(fault)
    with pytest.raises(SourceError) as caught:
        prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    assert message in caught.value.message and hint in caught.value.hint
    # Where the hub sends for its files the address is asked for once more: it may have expired.
    assert 1000 - fault.times <= (4 if fault.match == "/cdn/" else 2), "a refusal was tried again"


@pytest.mark.parametrize(("status", "message"), [(401, "refuses"), (403, "refuses"), (404, "not there")])
def test_a_refusal_of_a_web_server_stops_at_once(status: int, message: str, hub: Hub) -> None:
    hub.web["x.jsonl"] = lines()
    hub.faults.append(Fault("/web/", times=1000, status=status))
    with pytest.raises(SourceError, match=message):
        find_sources([f"{hub.url}/web/x.jsonl"])
    assert len(hub.answered("/web/")) == 1


@pytest.mark.parametrize("place", ["hub", "web"])
def test_a_file_that_changes_while_it_is_read_is_an_error(place: str, hub: Hub, tmp_path: Path) -> None:
    other = lines().replace(b"the", b"THE")
    commit = hub.add(REPO, {"x.jsonl": lines()})
    hub.web["x.jsonl"] = lines()

    def change() -> None:
        hub.web["x.jsonl"] = other
        hub.repos[REPO].commits[commit]["x.jsonl"] = other

    part = {"hub": "/cdn/", "web": "/web/"}[place]
    hub.faults.append(Fault(part, skip=2, times=1, status=503, then=change))
    with pytest.raises(SourceError, match="changed while it was read"):
        prepared({"hub": f"hf://datasets/{REPO}/x.jsonl", "web": f"{hub.url}/web/x.jsonl"}[place], tmp_path / "out")


def test_a_server_without_ranges_is_an_error_that_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    hub.faults.append(Fault("/web/", times=1000, whole=True))
    with pytest.raises(SourceError) as caught:
        prepared(f"{hub.url}/web/x.jsonl", tmp_path / "out")
    assert "--cache" in caught.value.hint


def test_a_server_without_ranges_is_read_through_the_cache(expected: Expected, hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    hub.faults.append(Fault("/web/", times=1000, whole=True))
    found = prepared(f"{hub.url}/web/x.jsonl", tmp_path / "out", cache=str(tmp_path / "cache"))
    assert found == expected[1]["x.jsonl"]


@pytest.mark.parametrize("told", ["bytes 1-2/3", "bytes 7-9/*", "bytes banana", "bytes */*", "nonsense"])
def test_a_range_that_was_not_asked_for_is_retried(told: str, expected: Expected, hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    hub.faults.append(Fault("/web/", skip=2, times=2, headers={"Content-Range": told}))
    assert prepared(f"{hub.url}/web/x.jsonl", tmp_path / "out") == expected[1]["x.jsonl"]
    assert hub.faults[0].times < 2, "the fault was never met"


def test_a_range_of_another_size_again_and_again_is_another_file(hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    hub.faults.append(Fault("/web/", skip=2, times=1000, headers={"Content-Range": "bytes 1-2/3"}))
    with pytest.raises(SourceError, match="changed while it was read"):
        prepared(f"{hub.url}/web/x.jsonl", tmp_path / "out")


def test_a_proxy_that_calls_a_version_weak_does_not_end_a_run(expected: Expected, hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    weak = f'W/"{etag_of(lines())}"'
    hub.faults.append(Fault("/web/", skip=2, times=1000, headers={"ETag": weak}))
    assert prepared(f"{hub.url}/web/x.jsonl", tmp_path / "out") == expected[1]["x.jsonl"]


def test_a_server_that_compresses_what_it_sends_is_an_error_that_says_so(hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    hub.faults.append(Fault("/web/", skip=1, times=1000, short=1000, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(SourceError, match="compresses what it sends"):
        prepared(f"{hub.url}/web/x.jsonl", tmp_path / "out")


def test_the_beginning_of_a_file_is_taken_from_a_server_that_ignored_the_range(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_TRIES", "1")
    hub.web["x.jsonl"] = lines()
    (source,) = find_sources([f"{hub.url}/web/x.jsonl"])
    hub.faults.append(Fault("/web/", times=1000, whole=True))
    with Fetcher([source]) as fetcher:
        assert bytes(fetcher.read(source, 0, 70_000)) == lines()[:70_000]
        with pytest.raises(SourceError, match="no parts of the file"):
            fetcher.read(source, 70_000, 80_000)


def test_offline_mode_is_said_at_once_and_nothing_is_asked(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    done = subprocess.run(
        [*SHARDMILL, "prepare", f"hf://datasets/{REPO}/x.jsonl", "-o", str(tmp_path / "out"), "-q"],
        env={**os.environ, **hub.environment, "HF_HUB_OFFLINE": "1", "SHARDMILL_PAUSE": "100"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 1
    assert "HF_HUB_OFFLINE is set" in done.stderr and "retrying" not in done.stderr and "Traceback" not in done.stderr
    assert hub.requests == []


def test_no_server_at_all_is_an_error_in_bounded_time(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("SHARDMILL_TRIES", "2")
    with pytest.raises(SourceError, match="no connection"):
        find_sources([f"hf://datasets/{REPO}/x.jsonl"])
    with pytest.raises(SourceError, match="no connection"):
        find_sources(["http://127.0.0.1:9/x.jsonl"])


def test_patience_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    assert RetryPolicy.from_environment() == RetryPolicy(4, 30.0, 0.02, 0.1, 2.5)


def test_the_summary_counts_what_was_tried_again(hub: Hub, tmp_path: Path) -> None:
    from shardmill.write.summary import as_data, as_text

    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/cdn/", times=2, status=503))
    result = shardmill.prepare(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    assert json.loads(json.dumps(as_data(result)))["retries"] == 2
    assert "2 requests were retried" in as_text(result)


@pytest.mark.parametrize("place", ["hub", "web", "store"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_head_that_comes_byte_by_byte_is_not_waited_for_longer_than_any_other(
    name: str, place: str, expected: Expected, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {**hub.store_environment, "SHARDMILL_RETRY_SECONDS": "2", "SHARDMILL_TIMEOUT": "1"}.items():
        monkeypatch.setenv(key, value)
    files, made = expected
    hub.add(REPO, files)
    hub.web.update(files)
    hub.objects["bucket"] = dict(files)
    url = {"hub": f"hf://datasets/{REPO}/", "web": f"{hub.url}/web/", "store": "s3://bucket/"}[place] + name
    part = {"hub": "/cdn/", "web": "/web/", "store": "/s3/"}[place]
    hub.faults.append(Fault(part, skip=2, times=1000, drip=0.2))
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"no (complete )?answer|no connection"):
        prepared(url, tmp_path / "out")
    assert time.monotonic() - started < 60
    hub.faults.clear()
    assert prepared(url, tmp_path / "out") == made[name]


def test_the_hub_may_say_by_its_window_of_requests_how_long_to_wait(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/cdn/", times=1, status=429, headers={"RateLimit": '"resolvers";r=0;t=2'}))
    shardmill.prepare(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    first, second = [request.time for request in hub.answered("/cdn/")][:2]
    assert second - first >= 2


@pytest.mark.parametrize("told", ["nan", "inf", "-3", "1e400", "Wed, 99 Foo", "soon", "Sun, 06 Nov 1994 08:49:37 GMT"])
def test_a_pause_that_is_none_is_left_to_our_own(told: str, expected: Expected, hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/cdn/", times=2, status=503, headers={"Retry-After": told}))
    assert prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out") == expected[1]["x.jsonl"]


SHAPES = [
    b"{}",
    b"null",
    b'"x"',
    b"[1]",
    b'{"error":"x"}',
    b'{"sha":null}',
    b'[{"type":"file"}]',
    b"[[]]",
    b"[" * 100_000,
]


ENTRIES = [
    b'[{"type":"file","path":%s,"size":%d,"oid":"a"}]' % one for one in ((b"7", 1), (b'"../x"', 1), (b'"x"', -1))
]


@pytest.mark.parametrize("shape", [*SHAPES, *ENTRIES, b"<html>Log in</html>"])
@pytest.mark.parametrize("part", ["/revision/", "/tree/", "/paths-info/"])
def test_an_answer_of_the_hub_in_another_form_is_an_error_that_says_so(
    part: str, shape: bytes, hub: Hub, tmp_path: Path
) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault(part, times=1000, status=200, body=shape))
    source = f"hf://datasets/{REPO}/x.jsonl" if part == "/paths-info/" else f"hf://datasets/{REPO}"
    with pytest.raises(SourceError, match=r"expected form|is a web page|is not whole"):
        find_sources([source])
    hub.faults[:] = [Fault(part, status=200, body=shape)]
    assert len(find_sources([source])) == 1


def test_a_list_that_a_proxy_has_compressed_is_read(hub: Hub) -> None:
    commit = hub.add(REPO, {"a.jsonl": lines(), "b.jsonl": lines()})
    size, etag = len(lines()), etag_of(lines())
    listed = [{"type": "file", "path": name, "size": size, "oid": etag} for name in ("a.jsonl", "b.jsonl")]
    for part, said in {"/revision/": json.dumps({"sha": commit}), "/tree/": json.dumps(listed)}.items():
        headers = {"Content-Encoding": "gzip"}
        hub.faults.append(Fault(part, times=1, status=200, body=gzip.compress(said.encode()), headers=headers))
    found = find_sources([f"hf://datasets/{REPO}"])
    assert [source.name.rpartition("/")[2] for source in found] == ["a.jsonl", "b.jsonl"]


def test_where_a_redirect_leads_to_a_server_that_is_down_the_hub_is_asked_again(
    expected: Expected, hub: Hub, tmp_path: Path
) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    away = {"Location": "http://127.0.0.1:9/nobody", "X-Linked-Etag": f'"{etag_of(lines())}"'}
    hub.faults.append(Fault("/resolve/", times=3, status=302, headers=away))
    assert prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out") == expected[1]["x.jsonl"]
    assert hub.faults[0].times == 0, "the fault was never met"


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt", "x.csv", "x"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_page_in_place_of_a_file_is_an_error_where_the_name_promises_another(
    cached: bool, name: str, hub: Hub, tmp_path: Path
) -> None:
    hub.web[name] = b"a line"
    page = b"\n<!DOCTYPE html>\n<html><body>Please log in</body></html>"
    hub.faults.append(Fault("/web/", times=1000, status=200, body=page, headers={"Content-Type": "text/html"}))
    options: dict[str, Any] = {"cache": str(tmp_path / "cache")} if cached else {}
    if name == "x":  # it may well be a page that is wanted
        shardmill.prepare(f"{hub.url}/web/{name}", tmp_path / "out", **options)
        return
    with pytest.raises(SourceError, match="a web page in place of the file"):
        shardmill.prepare(f"{hub.url}/web/{name}", tmp_path / "out", **options)
    shardmill.prepare(f"{hub.url}/web/{name}", tmp_path / "asked", input_format="text", **options)


@pytest.mark.parametrize("place", ["hub", "web"])
def test_a_page_that_one_server_of_several_sends_is_not_taken_for_the_file(
    place: str, expected: Expected, hub: Hub, tmp_path: Path
) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.web["x.jsonl"] = lines()
    page = b"<html>We are back soon" + b" " * 200_000
    part = {"hub": "/cdn/", "web": "/web/"}[place]
    first = Fault(lambda request: part in request.path and request.range == (0, 65535), status=200, body=page)
    hub.faults.append(first)
    url = {"hub": f"hf://datasets/{REPO}/x.jsonl", "web": f"{hub.url}/web/x.jsonl"}[place]
    assert prepared(url, tmp_path / "out") == expected[1]["x.jsonl"]
    assert hub.faults[0].times == 0, "the fault was never met"


TURNS: list[dict[str, Any]] = [
    {"headers": {"ETag": '"of another version"'}},
    {"headers": {"Content-Range": "bytes 0-9/10"}},
    {"short": -7},
    {"status": 412},
    {"status": 416},
    {"status": 200, "body": b"x", "headers": {"Content-Encoding": "br"}},
    *(
        {"status": 302, "body": b"", "headers": {"Location": place}}
        for place in ("http://[half", f"http://{'a' * 70}.invalid/", "http://127.0.0.1:99999/", "//", "http://a b/")
    ),
]


@pytest.mark.parametrize("turn", TURNS, ids=str)
@pytest.mark.parametrize("place", ["web", "hub"])
def test_one_answer_about_another_file_is_not_taken_for_a_change(
    place: str, turn: dict[str, Any], expected: Expected, hub: Hub, tmp_path: Path
) -> None:
    hub.web["x.jsonl"] = lines()
    hub.add(REPO, {"x.jsonl": lines()})
    source = f"{hub.url}/web/x.jsonl" if place == "web" else f"hf://datasets/{REPO}/x.jsonl"
    hub.faults.append(Fault("/web/x.jsonl" if place == "web" else "/cdn/", skip=1, **turn))
    assert prepared(source, tmp_path / "out") == expected[1]["x.jsonl"]
    assert hub.faults[0].times == 0
    if place == "web":  # at the hub it is the commit that says which version it is
        hub.faults[:] = [Fault("/web/x.jsonl", skip=1, times=1000, **turn)]
        with pytest.raises(SourceError):
            prepared(source, tmp_path / "again")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, br", "compress", "gzip", "zstd"])
def test_what_was_compressed_for_the_transfer_is_never_taken_for_text(encoding: str, hub: Hub, tmp_path: Path) -> None:
    """From the first request on, so that the size is that of the compressed bytes."""
    body = zlib.compress(b"some words\n" * 1000)
    hub.faults.append(Fault("x.txt", times=1000, status=200, body=body, headers={"Content-Encoding": encoding}))
    with pytest.raises(SourceError, match="compresses"):
        prepared(f"{hub.url}/web/x.txt", tmp_path / "out")


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
def test_a_server_may_call_the_compression_of_a_file_that_of_the_transfer(
    encoding: str, expected: Expected, hub: Hub, tmp_path: Path
) -> None:
    hub.web["x.jsonl.gz"] = compressed = gzip.compress(lines(), 1)
    hub.faults.append(Fault("/web/", times=1000, headers={"Content-Encoding": encoding}))
    prepared(f"{hub.url}/web/x.jsonl.gz", tmp_path / "out")
    (tmp_path / "x.jsonl.gz").write_bytes(compressed)
    prepared(tmp_path / "x.jsonl.gz", tmp_path / "local")
    assert made_of(tmp_path / "out") == made_of(tmp_path / "local")
