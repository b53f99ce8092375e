"""A dataset is published at the hub whole or not at all, each byte is sent once, and a killed call goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.errors import DamageError, MismatchError, OutputError, UsageError
from shardmill.reporting import publishing
from tests.corpus import documents
from tests.documents.away import QUICK, jsonl, point_at
from tests.hub import Fault, Hub
from tests.hub_answers import TOKEN
from tests.hub_uploads import LFS_FROM, PART
from tests.meter import SHARDMILL
from tests.watching import wait_until

# The hub's library calls its own one in a way that will change.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

URL = "hf://datasets/me/web"


@pytest.fixture
def hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    point_at(hub, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its server is not one that can be run here
    # The library's own pauses between attempts are seconds.

    if hasattr(_http, "time"):
        monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
    return hub


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with files that are sent in parts, at once, and within a commit."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "a.jsonl").write_bytes(jsonl(documents(12000)) + b"not JSON\n")
    shardmill.prepare(
        folder / "a.jsonl", folder / "data", format="shards", shard_tokens=900_000, val=0.05, memory="2GB"
    )
    sizes = [path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file()]
    assert max(sizes) > PART
    assert min(sizes) < LFS_FROM
    return folder / "data"


def published(hub: Hub, repo: str = "me/web", branch: str = "main") -> dict[str, bytes]:
    made = hub.repos[repo]
    return {name: data for name, data in made.commits[made.branches[branch]].items() if isinstance(data, bytes)}


def files_in(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".shardmill/")}


def test_a_published_dataset_has_the_files_and_a_card_and_is_opened_from_there(hub: Hub, local: Path) -> None:
    result = shardmill.publish(local, URL)
    there = published(hub)
    assert {name: data for name, data in there.items() if name not in (".gitattributes", "README.md")} == files_in(
        local
    )
    assert f"shardmill.open('{URL}')" in there["README.md"].decode()
    data = shardmill.open(URL)
    assert np.array_equal(data["train"][:], shardmill.open(local)["train"][:])
    assert result.url == str(data.folder)
    assert result.sent == result.files


def test_the_manifest_is_in_the_last_commit(hub: Hub, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FILES_IN_A_COMMIT", 2)
    shardmill.publish(local, URL)
    commits = list(hub.repos["me/web"].commits.values())
    assert len(commits) > 3
    assert ["manifest.json" in files for files in commits] == [False] * (len(commits) - 1) + [True]


def test_each_byte_is_sent_once_and_nothing_again(hub: Hub, local: Path) -> None:
    shardmill.publish(local, URL)
    large = [data for name, data in files_in(local).items() if len(data) >= LFS_FROM]
    assert sum(hub.taken.values()) <= sum(map(len, large)) + 4096  # and the card
    before, commits = dict(hub.taken), len(hub.repos["me/web"].commits)
    again = shardmill.publish(local, URL)
    assert again.sent == 0
    assert (hub.taken, len(hub.repos["me/web"].commits)) == (before, commits)


STEPS = {
    "create": "/api/repos/create",
    "list": "/tree/",
    "preupload": "/preupload/",
    "batch": "/objects/batch",
    "part": "/lfs/",
    "complete": "/complete",
    "verify": "/verify",
    "commit": "/commit/",
    "yaml": "/validate-yaml",
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", ["status", "lost"])
def test_a_fault_at_any_step_is_retried(hub: Hub, local: Path, step: str, fault: str) -> None:
    what: dict[str, Any] = {"status": 503, "times": 2} if fault == "status" else {"lost": True, "times": 1}
    for skip in (0, 1):
        hub.faults.append(Fault(STEPS[step], skip=skip, **what))
    shardmill.publish(local, URL)
    there = published(hub)
    assert {name: there.get(name) for name in files_in(local)} == files_in(local)
    assert shardmill.verify(URL, sample=0).damage == []


@pytest.mark.parametrize(
    "step", sorted(STEPS.keys() - {"verify"})
)  # of an object that is there when it is asked for again
def test_a_hub_that_stays_down_is_an_error_and_the_next_call_goes_on(hub: Hub, local: Path, step: str) -> None:
    hub.faults.append(Fault(STEPS[step], skip=int(step == "part"), status=503, times=1000))
    with pytest.raises(shardmill.ShardmillError) as error:
        shardmill.publish(local, URL)
    assert TOKEN not in str(error.value)
    hub.faults.clear()
    shardmill.publish(local, URL)
    there = published(hub)
    assert {name: there.get(name) for name in files_in(local)} == files_in(local)


@pytest.mark.parametrize("step", STEPS)
def test_a_call_that_is_killed_at_any_step_goes_on(hub: Hub, local: Path, tmp_path: Path, step: str) -> None:
    """Killed when a request of the step comes; what was stored by then is not sent again."""
    environment = {**os.environ, **hub.environment, **QUICK, "XDG_CACHE_HOME": str(tmp_path)}
    struck, killed = threading.Event(), threading.Event()

    def strike() -> None:
        struck.set()
        killed.wait(60)  # the answer waits until nobody reads it

    hub.faults.append(Fault(STEPS[step], skip=1 if step in ("part", "verify") else 0, then=strike))
    with subprocess.Popen(
        [*SHARDMILL, "publish", str(local), URL], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: struck.is_set() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        said = process.stderr.read() if process.stderr else b""
    killed.set()
    assert TOKEN.encode() not in said
    stored, taken = set(hub.stored), dict(hub.taken)
    assert "manifest.json" not in (published(hub) if "me/web" in hub.repos else {}) or step == "commit"
    result = subprocess.run(
        [*SHARDMILL, "publish", str(local), URL, "--json"], env=environment, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["url"].startswith(URL)
    assert {oid: hub.taken[oid] for oid in stored} == {oid: taken[oid] for oid in stored}
    there = published(hub)
    assert {name: there.get(name) for name in files_in(local)} == files_in(local)


def test_another_dataset_is_replaced_only_on_request(hub: Hub, local: Path, tmp_path: Path) -> None:
    shardmill.convert(local, tmp_path / "other", format="npy", name="x", memory="3GB")
    shardmill.publish(tmp_path / "other", URL)
    with pytest.raises(MismatchError, match="another dataset"):
        shardmill.publish(local, URL)
    shardmill.publish(local, URL, overwrite=True)
    assert not [name for name in published(hub) if name.startswith("x_")]
    assert shardmill.verify(URL, sample=0).damage == []


def test_a_branch_and_a_private_repository_are_made(hub: Hub, local: Path) -> None:
    shardmill.publish(local, f"{URL}@v1", private=True)
    assert hub.repos["me/web"].private
    assert "manifest.json" in published(hub, branch="v1")
    assert "manifest.json" not in published(hub)
    assert len(shardmill.open(f"{URL}@v1")["train"])


def test_a_card_of_ones_own_is_published_and_one_that_is_there_is_kept(hub: Hub, local: Path, tmp_path: Path) -> None:
    hub.add("me/web", {"README.md": b"# Mine"})
    shardmill.publish(local, URL)
    assert published(hub)["README.md"] == b"# Mine"


def test_what_the_hub_would_not_take_is_said_before_anything_is_sent(
    hub: Hub, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "LARGEST_FILE", 1000)
    with pytest.raises(UsageError, match="takes files up to"):
        shardmill.publish(local, URL)
    assert hub.requests == []


def test_without_a_token_nothing_is_sent(
    hub: Hub, local: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="HF_TOKEN"):
        shardmill.publish(local, URL)
    assert hub.requests == []


def test_a_damaged_file_is_not_published(hub: Hub, local: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(local, tmp_path / "copy")
    data = bytearray((tmp_path / "copy" / "train_000001.bin").read_bytes())
    data[7] ^= 1
    (tmp_path / "copy" / "train_000001.bin").write_bytes(data)
    with pytest.raises(DamageError):
        shardmill.publish(tmp_path / "copy", URL)
    assert "manifest.json" not in published(hub)


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_may_not_write_is_an_error_that_does_not_show_it(hub: Hub, local: Path, status: int) -> None:
    hub.faults.append(Fault("/api/repos/create", status=status, times=100))
    with pytest.raises(OutputError, match=str(status)) as error:
        shardmill.publish(local, URL)
    assert TOKEN not in str(error.value)


def test_a_bucket_gets_the_manifest_last(hub: Hub, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets take files by Xet alone, for which there is no server here: the two calls of the library are replaced."""
    from huggingface_hub import HfApi

    if not hasattr(HfApi, "batch_bucket_files"):
        pytest.skip("this release of huggingface_hub knows no buckets")
    calls: list[list[str]] = []

    def create(self: Any, bucket_id: str, **more: Any) -> None:
        hub.buckets.setdefault(bucket_id, {})

    def batch(self: Any, bucket_id: str, *, add: Any = (), delete: Any = ()) -> None:
        calls.append([name for _, name in add])
        for source, name in add:
            hub.buckets[bucket_id][name] = source if isinstance(source, bytes) else Path(source).read_bytes()

    monkeypatch.setattr(HfApi, "create_bucket", create)
    monkeypatch.setattr(HfApi, "batch_bucket_files", batch)
    result = shardmill.publish(local, "hf://buckets/me/web")
    assert calls[-1] == ["manifest.json"]
    assert result.url == "hf://buckets/me/web"
    assert np.array_equal(shardmill.open(result.url)["train"][:], shardmill.open(local)["train"][:])
