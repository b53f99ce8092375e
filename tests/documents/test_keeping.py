"""What remains of a remote run on disk: no secret, nothing fetched unless a cache is asked for; and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.errors import SourceError
from tests.corpus import documents
from tests.documents.away import QUICK, REPO, assert_no_secret, jsonl, lines, made_of, parquet, prepared
from tests.hub import Fault, Hub
from tests.hub_answers import TOKEN
from tests.meter import SHARDMILL, metered
from tests.watching import wait_until

pytestmark = pytest.mark.thorough


def command(*arguments: object, hub: Hub, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **hub.environment, **QUICK, **more}
    return subprocess.run(
        [*SHARDMILL, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=100
    )


def test_no_secret_is_ever_written_or_said(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": lines()}, gated=True)
    hub.web["x.jsonl"] = lines()
    hub.web_password = "anna:geheim123"
    with_password = hub.url.replace("http://", "http://anna:geheim123@") + "/web/x.jsonl?token=s3cr3tT0ken"
    hub.faults.append(Fault("/web/", skip=3, times=1000, status=503))
    hub.faults.append(Fault("/cdn/", skip=3, times=2, status=503))
    out = tmp_path / "out"
    stopped = command("prepare", with_password, f"hf://datasets/{REPO}/x.jsonl", "-o", out, hub=hub)
    assert stopped.returncode == 1 and "503" in stopped.stderr and "/web/x.jsonl, byte" in stopped.stderr
    assert (out / ".shardmill" / "plan.json").exists()
    secrets = ("geheim123", "s3cr3tT0ken", TOKEN, "X-Amz")
    assert_no_secret(tmp_path, *secrets)
    hub.faults.clear()
    done = command("prepare", with_password, f"hf://datasets/{REPO}/x.jsonl", "-o", out, "--json", hub=hub)
    assert done.returncode == 0, done.stderr
    assert_no_secret(tmp_path, *secrets)
    refused = command("prepare", with_password.replace("geheim", "falsch"), "-o", tmp_path / "no", hub=hub)
    said = "".join(done.stdout + done.stderr for done in (stopped, done, refused))
    assert refused.returncode == 1 and not any(secret in said for secret in (*secrets, "falsch123"))


def test_nothing_is_kept_on_disk_without_a_cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(home))
    home.mkdir()
    hub.add(REPO, {"x.jsonl": lines()})
    done = command("prepare", f"hf://datasets/{REPO}/x.jsonl", "-o", tmp_path / "out", hub=hub)
    assert done.returncode == 0, done.stderr
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_a_cache_is_filled_once_and_read_from_then_on(hub: Hub, tmp_path: Path) -> None:
    data = parquet(tmp_path / "y.parquet", documents(3000, seed=7))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.jsonl").write_bytes(lines())
    (tmp_path / "data" / "y.parquet").write_bytes(data)
    expected = prepared(tmp_path / "data", tmp_path / "local")
    hub.add(REPO, {"x.jsonl": lines(), "y.parquet": data})
    source, cache = f"hf://datasets/{REPO}", str(tmp_path / "cache")
    assert prepared(source, tmp_path / "one", cache=cache) == expected
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["x.jsonl", "y.parquet"]
    fetched = hub.sent()
    assert fetched >= len(lines()) + len(data)
    assert prepared(source, tmp_path / "two", cache=cache) == expected
    assert hub.sent() == fetched
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


def test_a_full_cache_does_not_hide_that_a_branch_has_moved(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPO, {"x.jsonl": lines()[:5000]})
    cache = str(tmp_path / "cache")
    prepared(f"hf://datasets/{REPO}", tmp_path / "first", cache=cache)
    commit = hub.commit(REPO, {"y.jsonl": lines()[:9000]})
    prepared(f"hf://datasets/{REPO}", tmp_path / "second", cache=cache)
    assert commit in (tmp_path / "second" / "manifest.json").read_text()


def test_a_run_without_a_cache_is_gone_on_with_one(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines())
    expected = prepared(tmp_path / "x.jsonl", tmp_path / "local")
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults += [Fault("/cdn/", skip=2, times=1000, status=503)]
    with pytest.raises(SourceError):
        prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out")
    hub.faults.clear()
    cache = str(tmp_path / "cache")
    assert prepared(f"hf://datasets/{REPO}/x.jsonl", tmp_path / "out", cache=cache) == expected


def test_a_file_in_the_cache_that_is_not_whole_is_fetched_again(hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    source, cache = f"{hub.url}/web/x.jsonl", tmp_path / "cache"
    expected = prepared(source, tmp_path / "one", cache=str(cache))
    (kept,) = (path for path in cache.rglob("*") if path.is_file())
    kept.write_bytes(lines()[:1000])
    assert prepared(source, tmp_path / "two", cache=str(cache)) == expected
    assert kept.read_bytes() == lines()


def test_another_version_of_a_file_is_not_taken_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    hub.web["x.jsonl"] = lines()
    source, cache = f"{hub.url}/web/x.jsonl", str(tmp_path / "cache")
    before = prepared(source, tmp_path / "one", cache=cache)
    hub.web["x.jsonl"] = lines().replace(b"the", b"THE")
    assert prepared(source, tmp_path / "two", cache=cache) != before


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_a_killed_remote_run_ends_with_the_same_bytes(name: str, hub: Hub, tmp_path: Path) -> None:
    texts = documents(30000, seed=9)
    data = jsonl(texts) if name == "x.jsonl" else parquet(tmp_path / "p", texts, rows=2000)
    (tmp_path / name).write_bytes(data)
    expected = prepared(tmp_path / name, tmp_path / "local")
    hub.add(REPO, {name: data})
    source, out = f"hf://datasets/{REPO}/{name}", tmp_path / "out"
    environment = {**os.environ, **hub.environment, **QUICK, "SHARDMILL_TIMEOUT": "20"}
    arguments = ["prepare", source, "-o", str(out), "--name", "web", "-q", "--memory", "500MB", "--workers"]
    for workers, before in ((1, 4), (2, 10)):
        # The server falls silent after some requests, so that the run is killed in its middle, wherever that is.
        hub.faults[:] = [Fault("/cdn/", skip=before, times=1000, stall=170)]
        seen = len(hub.requests)
        process = subprocess.Popen([*SHARDMILL, *arguments, str(workers)], env=environment)
        until = time.monotonic() + 150
        while hub.faults[0].times == 1000 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        assert process.wait(100) == -signal.SIGKILL and len(hub.requests) > seen
        hub.commit(REPO, {name: b"main has moved " * 100})
    hub.faults.clear()
    done = command(*arguments, 2, hub=hub)
    assert done.returncode == 0, done.stderr
    assert made_of(out) == expected


def test_a_row_group_larger_than_the_memory_stays_within_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = 360_000_000
    # Words that engines know already: what is measured here is reading.
    few = documents(4000, seed=11)
    texts = few * (memory // sum(map(len, few)) + 1)
    path = tmp_path / "large.parquet"
    schema = pa.schema([("junk", pa.string()), ("text", pa.string())])
    table = pa.table({"junk": [str(i) for i in range(len(texts))], "text": texts}, schema=schema)
    pq.write_table(table, path, row_group_size=len(table), compression="none", use_dictionary=["junk"])
    del table, texts
    assert pq.ParquetFile(path).metadata.row_group(0).column(1).total_compressed_size > memory
    hub.add(REPO, {"large.parquet": path})
    hub.latency = 0.02
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    source = f"hf://datasets/{REPO}/large.parquet"
    done = metered("prepare", source, "-o", tmp_path / "out", "--memory", memory, "-q", "--workers", 1)
    assert done.code == 0, done.err
    assert done.peak < memory, f"{done.peak:,} of {memory:,} bytes"


def test_what_a_killed_run_has_left_in_the_cache_goes_with_a_fetch_of_the_file_a_day_later(
    hub: Hub, tmp_path: Path
) -> None:
    hub.add(REPO, {"x.jsonl": lines()})
    hub.faults.append(Fault("/cdn/", skip=3, times=1000, stall=60.0, cut=1000))
    cache, url = tmp_path / "cache", f"hf://datasets/{REPO}/x.jsonl"
    call = [*SHARDMILL, "prepare", url, "-q", "--cache", str(cache), "-o"]
    for count in (1, 2):
        run = subprocess.Popen([*call, str(tmp_path / f"out{count}")], env={**os.environ, **hub.environment})
        wait_until(lambda count=count: len(list(cache.glob("*/x.jsonl*.partial"))) == count)  # type: ignore[misc]
        run.kill()
        run.wait()
    hub.faults.clear()
    old, new = cache.glob("*/x.jsonl*.partial")
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    shardmill.prepare(url, tmp_path / "out1", cache=str(cache))
    assert list(cache.glob("*/x.jsonl*.partial")) == [new]  # another run may be writing it
    assert len(list(cache.glob("*/x.jsonl"))) == 1
