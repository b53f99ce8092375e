"""A Ray cluster of real processes, alone in a network and a process namespace: nobody else sees it or is seen by it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.trouble import below

PORT = 6379
ADDRESS = f"127.0.0.1:{PORT}"


def why_not() -> str:
    """Why there can be no cluster here; empty if there can."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed"
    if not shutil.which("unshare") or not shutil.which("nsenter") or not shutil.which("ip"):
        return "unshare, nsenter or ip is not installed, and Ray without a namespace would listen to the network"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


# --kill-child: when the first process ends, the system ends every other one of the namespace.
_UNSHARE = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]


class Cluster:
    """Nodes, and a way to run commands beside them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        # For Ray's sockets, whose names have at most 107 bytes, whatever a test's own folder is called.
        self._sockets = tempfile.mkdtemp(prefix="ray")
        self._environment = {
            **environment,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def __enter__(self) -> Cluster:
        first = "ip link set lo up && echo ready && read -r end"
        self._namespace = subprocess.Popen(
            [*_UNSHARE, "bash", "-c", first], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._namespace.stdout is not None and self._namespace.stdout.readline() == b"ready\n"
        (inside,) = psutil.Process(self._namespace.pid).children()
        self._enter = ["nsenter", f"--target={inside.pid}", "--net", "--pid", "--mount", "--"]
        return self

    def __exit__(self, *_: object) -> None:
        self._namespace.kill()
        self._namespace.communicate()
        shutil.rmtree(self._sockets, ignore_errors=True)  # the last processes may still write their logs

    def start(self, *command: object, **settings: Any) -> subprocess.Popen[str]:
        """A command in the cluster's network; its process is the only child of the one that is returned."""
        return subprocess.Popen(
            [*self._enter, *map(str, command)], env=self._environment, text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self._folder, **settings},
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """All processes of the cluster are below this one."""
        return self._namespace.pid

    def node(self, number: int, cpus: int = 1, hidden: Path | None = None, resources: str = "{}") -> None:
        """Start the head (0), or a node with an address of its own; one from whom a folder is hidden."""
        where = ["--head", f"--port={PORT}", "--include-dashboard=false"] if number == 0 else [f"--address={ADDRESS}"]
        ray = [
            sys.executable, "-m", "ray.scripts.scripts", "start", *where, f"--node-ip-address=127.0.0.{number + 1}",
            f"--num-cpus={cpus}", f"--resources={resources}", "--memory=4000000000", "--object-store-memory=80000000",
            *([f"--temp-dir={self._sockets}"] if number == 0 else []),
        ]  # fmt: skip
        if hidden is not None:
            ray = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {hidden} && exec "$@"', "sh", *ray]
        started = self.start(*ray)
        said = "".join(started.communicate(timeout=120))
        assert started.returncode == 0, said

    def kill_node(self, number: int) -> None:
        """All processes of a node at once, as when its power fails."""
        for process in self.node_processes(number):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def freeze_node(self, number: int) -> None:
        """All processes of a node stand still, and nobody is told."""
        for process in self.node_processes(number):
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def node_processes(self, number: int) -> list[psutil.Process]:
        (raylet,) = below(self.pid, f"--node_ip_address=127.0.0.{number + 1}")
        return [raylet, *raylet.children(recursive=True)]

    def tasks(self) -> list[psutil.Process]:
        """Ray's own processes in which the tasks of parts run."""
        return below(self.pid, "ray::make_on_node")
