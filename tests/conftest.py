"""What every test gets: a home of its own, and no way to the network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shardmill.run.machine import usable_cpus, usable_memory
from shardmill.tokens import rank_files
from tests.hub import Hub

# Two shared cores make any deadline a coin toss; what is slow is marked slow.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
# Else huggingface_hub may make a request of its own in each process, which tests that count requests do not expect.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two for each CPU, since tests wait for disks, servers and processes as long as they compute.

    A worker and what it starts take up to 3 GB.
    """
    return max(1, min(2 * usable_cpus(), usable_memory() // 3_000_000_000))


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A connection to anywhere but this machine fails at once, so that no test comes to depend on one."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if self.family == socket.AF_UNIX or str(address[0]) in ("127.0.0.1", "::1", "localhost"):
            return connect(self, address)
        raise OSError(f"tests may not connect to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_only)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from or left in the caches of whoever runs the tests."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "TIKTOKEN_CACHE_DIR"):
            patch.setenv(name, str(home))
        yield


@pytest.fixture(autouse=True, scope="session")
def rank_files_parsed_once() -> Iterator[None]:
    """A command parses its vocabulary once; hundreds of commands in one process need not do it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_files, "parse", lru_cache(8)(rank_files.parse))
        yield


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hugging Face hub on this machine, without any dataset."""
    with Hub() as made:
        yield made


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 64 KiB, so that a small source has many."""
    monkeypatch.setattr("shardmill.run.budget.LARGEST", 1 << 16)
    monkeypatch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
