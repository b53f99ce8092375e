"""Parts on a real Ray cluster of two nodes: the bytes of one run, whatever is killed or frozen."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import shardmill
from tests.cluster.ray_cluster import ADDRESS, Cluster, why_not
from tests.cluster.trouble import gone, part_processes, slow_parts
from tests.corpus import contents, documents, write_jsonl
from tests.watching import interruptible, wait_until

REASON = why_not()
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(bool(REASON), reason=REASON)]

OPTIONS: dict[str, Any] = {"val": 0.05, "shard_tokens": 30_000}
FLAGS = ["--val", "0.05", "--shard-tokens", "30000"]
# A copy is soon taken for lost, and an interrupt has all the time it needs, however busy the machine is.
_IMPATIENT = """
from shardmill import interrupts
from shardmill.cluster import driver
driver._PATIENCE = 15.0
interrupts.GRACE_SECONDS = 100.0
from shardmill.__main__ import main
main()
"""


# A store in the cluster's own network.
STORE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:5555", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "SECRET",
    "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip
_CREATE = """
import sys, time, botocore.session
from botocore.exceptions import EndpointConnectionError
client = botocore.session.Session().create_client("s3")
for attempt in range(300):
    try:
        client.create_bucket(Bucket="bucket")
        break
    except EndpointConnectionError:
        time.sleep(0.2)
"""
_HASHES = """
import hashlib, json, botocore.session
client = botocore.session.Session().create_client("s3")
names = [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket", Prefix="out/")["Contents"]]
read = lambda name: client.get_object(Bucket="bucket", Key=name)["Body"].read()
print(json.dumps({name[4:]: hashlib.sha256(read(name)).hexdigest() for name in names}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and a second node, each with room for one part; chunks take their time."""
    folder = tmp_path_factory.mktemp("ray")
    with Cluster(folder, {**slow_parts(folder / "slow", 0.1), **STORE}) as made:
        made.node(0)
        made.node(1)
        yield made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("source") / "web.jsonl", documents(2000, seed=4))


def alone(source: Path, out: Path, format: str = "shards") -> dict[str, bytes]:
    shardmill.prepare(source, out, format=format, **OPTIONS)
    return contents(out)


def start(
    cluster: Cluster, source: Path, out: Path | str, *more: object, parts: int = 8, format: str = "shards"
) -> subprocess.Popen[str]:
    words: list[object] = [sys.executable, "-c", _IMPATIENT, "prepare", source, "-o", out, *FLAGS, "-f", format]
    words += ["--executor", "ray", "--ray-address", ADDRESS, "--parts", parts, "--memory", "500MB", "--workers", "1"]
    return cluster.start(*words, *more, preexec_fn=interruptible)


def succeeded(run: subprocess.Popen[str], seconds: float = 150) -> str:
    _, said = run.communicate(timeout=seconds)
    assert run.returncode == 0, said
    return said


def wait_for_parts(cluster: Cluster, run: subprocess.Popen[str]) -> None:
    """Wait until two parts are being made, each by its task, or the run has ended."""
    wait_until(lambda: len(part_processes(cluster.pid)) == len(cluster.tasks()) == 2 or run.poll() is not None)


def test_parts_on_two_nodes_give_the_bytes_of_one_run_also_when_processes_are_killed(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    expected = alone(source, tmp_path / "alone")
    run = start(cluster, source, tmp_path / "out")
    wait_for_parts(cluster, run)
    one = min(part_processes(cluster.pid).values(), key=lambda process: process.pid)
    one.kill()
    wait_for_parts(cluster, run)
    left = part_processes(cluster.pid).values()
    cluster.tasks()[0].kill()
    wait_until(lambda: any(map(gone, left)))  # a part ends with its task
    succeeded(run)
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
def test_an_interrupt_ends_the_parts_and_the_same_command_goes_on(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    expected = alone(source, tmp_path / "alone")
    run = start(cluster, source, tmp_path / "out")
    wait_for_parts(cluster, run)
    parts = part_processes(cluster.pid).values()
    (driver,) = psutil.Process(run.pid).children()
    driver.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=100)
    assert run.returncode == 130 and "of 8 parts are done; the same command resumes the run" in said, said
    wait_until(lambda: all(map(gone, parts)))
    succeeded(start(cluster, source, tmp_path / "out"))
    assert contents(tmp_path / "out") == expected


def test_a_node_that_does_not_see_the_folder_is_not_used_and_does_not_end_the_run(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    expected = alone(source, tmp_path / "alone")
    (tmp_path / "hidden").mkdir()
    cluster.node(2, hidden=tmp_path / "hidden")
    try:
        said = succeeded(start(cluster, source, tmp_path / "hidden" / "out"))
        assert "127.0.0.3 cannot make parts" in said and "hidden/out" in said and "it is not used" in said, said
        assert "Traceback" not in said and contents(tmp_path / "hidden" / "out") == expected
    finally:
        cluster.kill_node(2)


def test_parts_wait_for_a_node_that_has_what_they_need(cluster: Cluster, source: Path, tmp_path: Path) -> None:
    """Ray knows of all of them meanwhile, as an autoscaler must."""
    expected = alone(source, tmp_path / "alone")
    run = start(cluster, source, tmp_path / "out", "--ray-resources", '{"late": 1}')
    assert run.stderr is not None
    said = ""
    while "waiting for one" not in said:
        line = run.stderr.readline()
        assert line, said
        said += line
    assert "1 CPUs" in said and "1 late" in said and part_processes(cluster.pid) == {}
    cluster.node(3, resources='{"late": 1}')
    try:
        succeeded(run)
        assert contents(tmp_path / "out") == expected
    finally:
        cluster.kill_node(3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_that_begins_with_a_head_without_cpus_is_waited_for(source: Path, tmp_path: Path) -> None:
    expected = alone(source, tmp_path / "alone")
    with Cluster(tmp_path, {}) as empty:
        empty.node(0, cpus=0)
        words: list[object] = [sys.executable, "-m", "shardmill", "prepare", source, "-o", tmp_path / "out", *FLAGS]
        words += ["-f", "shards", "--executor", "ray", "--ray-address", ADDRESS, "--parts", 3, "--memory", "500MB"]
        run = empty.start(*words)
        assert run.stderr is not None
        while "waiting for one" not in (line := run.stderr.readline()):
            assert line, "it has ended"
        empty.node(1, cpus=2)
        succeeded(run, 300)
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
def test_no_cluster_is_said_at_once(cluster: Cluster, source: Path, tmp_path: Path) -> None:
    run = start(cluster, source, tmp_path / "out", "--ray-address", "127.0.0.1:1")
    _, said = run.communicate(timeout=150)
    assert run.returncode == 2 and "no Ray cluster answers at 127.0.0.1:1" in said and "Traceback" not in said, said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_parts_in_an_object_store_give_the_bytes_of_one_run(cluster: Cluster, source: Path, tmp_path: Path) -> None:
    expected = {name: hashlib.sha256(data).hexdigest() for name, data in alone(source, tmp_path / "alone").items()}
    with open(tmp_path / "log", "wb") as log:
        moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "5555"]
        server = cluster.start(*moto, stdout=log, stderr=log)
        try:
            succeeded(cluster.start(sys.executable, "-c", _CREATE))
            run = start(cluster, source, "s3://bucket/out")
            wait_for_parts(cluster, run)
            cluster.tasks()[0].kill()
            succeeded(run, 400)
            hashes = cluster.start(sys.executable, "-c", _HASHES)
            found = json.loads(hashes.communicate(timeout=100)[0])
        finally:
            for process in psutil.Process(server.pid).children():
                process.kill()
            server.communicate()
    assert {name: value for name, value in found.items() if not name.startswith(".")} == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_frozen_tasks_and_parts_that_wake_up_late_change_nothing(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    expected = alone(source, tmp_path / "alone")
    run = start(cluster, source, tmp_path / "out", parts=12)
    wait_for_parts(cluster, run)
    frozen = [cluster.tasks()[0], *part_processes(cluster.pid).values()]
    for process in frozen:
        process.suspend()
    # Both are given up and made again; whoever still sleeps wakes up when its part stands there already.
    wait_until(lambda: run.poll() is not None, 600)
    for process in frozen:
        with suppress(psutil.NoSuchProcess):
            process.resume()
    succeeded(run)
    wait_until(lambda: all(map(gone, frozen[1:])))
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_freezes_does_not_hang_the_run(cluster: Cluster, source: Path, tmp_path: Path) -> None:
    expected = alone(source, tmp_path / "alone")
    run = start(cluster, source, tmp_path / "out", parts=12)
    wait_for_parts(cluster, run)
    cluster.freeze_node(1)
    try:
        said = succeeded(run, 600)
        assert "worker died" not in said
        assert contents(tmp_path / "out") == expected
    finally:
        cluster.kill_node(1)
        cluster.node(1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", ["nanogpt", "shards", "npy", "llmc", "megatron", "datatrove", "mds"])
def test_a_node_the_driver_and_workers_are_killed_again_and_again(
    cluster: Cluster, source: Path, tmp_path: Path, format: str
) -> None:
    expected = alone(source, tmp_path / "alone", format)
    chance = random.Random(format)
    run = start(cluster, source, tmp_path / "out", parts=30, format=format)
    kills: list[Any] = []
    end = time.monotonic() + 900
    while run.poll() is None or run.returncode != 0:
        assert time.monotonic() < end, f"no end after {kills}"
        if run.poll() is not None:
            run.communicate()
            run = start(cluster, source, tmp_path / "out", parts=30, format=format)
        time.sleep(chance.uniform(1, 6))
        what = chance.choice(["part", "part", "task", "task", "freeze", "node", "driver"])
        with suppress(psutil.NoSuchProcess, IndexError):
            if len(kills) >= 12 or run.poll() is not None:
                continue
            if what == "part":
                chance.choice(list(part_processes(cluster.pid).values())).kill()
            elif what == "task":
                chance.choice(cluster.tasks()).kill()
            elif what == "freeze":
                chance.choice(list(part_processes(cluster.pid).values())).suspend()
            elif what == "node":
                cluster.kill_node(1)
                cluster.node(1)
            else:
                os.kill(psutil.Process(run.pid).children()[0].pid, signal.SIGKILL)
            kills.append(what)
    run.communicate()
    assert contents(tmp_path / "out") == expected, kills
