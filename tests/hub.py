"""A Hugging Face hub on this machine: datasets with commits, ranges, redirects, and the faults that a test asks for.

    with Hub() as hub:
        hub.add("someone/web", {"data/a.parquet": path_or_bytes})
        hub.faults.append(Fault("/cdn/", status=503, times=2, headers={"Retry-After": "1"}))
        run_the_client(env={**os.environ, **hub.environment})
        sum(request.sent for request in hub.requests)

Objects under `hub.objects` are served as S3, Google's and Azure's stores would, with lists in pages.
Files under `hub.web` are served below `{hub.url}/web/`, as any web server would.
`python -m tests.hub FOLDER [--latency SECONDS]` serves a folder as the dataset `local/files` in a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.hub_answers import TOKEN, Answers, Content, HubServer


@dataclass
class Request:
    """One request as it came, and how it was answered."""

    method: str
    path: str
    query: str
    range: tuple[int, int | None] | None
    headers: dict[str, str]
    status: int = 0
    sent: int = 0
    """Bytes of the body that went out."""
    time: float = field(default_factory=time.monotonic)


@dataclass
class Fault:
    """What goes wrong with requests whose method and path match, from the `skip`-th on, `times` times."""

    match: str | Callable[[Request], bool] = ""
    """A part of the path, or a function that chooses."""
    method: str = ""
    skip: int = 0
    times: int = 1
    status: int | None = None
    """Answered in place of the file, with `body`."""
    body: bytes = b"the server is in a bad mood"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    """The connection is closed after so many bytes of the body, though more were announced."""
    short: int | None = None
    """So many bytes less are announced and sent."""
    stall: float = 0.0
    """Seconds without a byte, before the head of the answer, or at `cut` in the middle of the body."""
    drip: float = 0.0
    """Seconds between the bytes of a head that never ends."""
    whole: bool = False
    """The range is ignored."""
    lost: bool = False
    """What is sent is taken, and the connection is closed before the answer."""
    then: Callable[[], None] | None = None
    """Called when it strikes: a branch that moves, a file that changes."""

    def strikes(self, request: Request) -> bool:
        chosen = self.match in request.path if isinstance(self.match, str) else self.match(request)
        if not chosen or (self.method and self.method != request.method) or self.times <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Repo:
    commits: dict[str, dict[str, Content]]
    branches: dict[str, str]
    gated: bool = False
    private: bool = False


class Hub:
    """A server in threads of this process; use it as a context."""

    def __init__(self, latency: float = 0.0, page: int = 1000, port: int = 0) -> None:
        self.latency, self.page = latency, page
        self.repos: dict[str, Repo] = {}
        self.web: dict[str, Content] = {}
        """Path below /web/ → content."""
        self.objects: dict[str, dict[str, Content]] = {}
        """Bucket → key → content, of an object store below /s3/, /gs/ and /az/."""
        self.buckets: dict[str, dict[str, Content]] = {}
        """Bucket of the hub → path → content."""
        self.stored: dict[str, bytes] = {}
        """Objects of LFS that were sent, by their sha256."""
        self.pieces: dict[str, dict[int, bytes]] = {}
        self.taken: dict[str, int] = {}
        """Bytes that were sent of each object."""
        self.stuck = ""
        """Pages of lists: `same`, the first without end; `empty`, empty ones; `later`, all but it are the first."""
        self.web_password: str | None = None
        """`user:password` that /web/ asks for."""
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._server = HubServer(("127.0.0.1", port), Answers)
        self._server.hub = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="hub", daemon=True)

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """For a client in a process of its own: huggingface_hub reads these when it is imported."""
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    @property
    def store_environment(self) -> dict[str, str]:
        """For clients of the object store, in its three dialects."""
        return {
            "AWS_ENDPOINT_URL": f"{self.url}/s3",
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "never-to-be-written",
            "AWS_DEFAULT_REGION": "us-east-1",
            "GOOGLE_BASE_URL": f"{self.url}/gs",
            "GOOGLE_SKIP_SIGNATURE": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": "testing",
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/az",
            "AZURE_SKIP_SIGNATURE": "true",
        }

    def add(self, repo: str, files: Mapping[str, Content] | Path, *, gated: bool = False, private: bool = False) -> str:
        """A dataset with one commit on its branch `main`; gives the commit."""
        self.repos[repo] = Repo({}, {}, gated, private)
        return self.commit(repo, files)

    def commit(self, repo: str, files: Mapping[str, Content] | Path, branch: str = "main") -> str:
        """Another commit with these files and no others, to which the branch moves."""
        made = self.repos[repo]
        content = _folder(files) if isinstance(files, Path) else dict(files)
        sha = hashlib.sha1(f"{repo} {branch} {len(made.commits)}".encode()).hexdigest()
        made.commits[sha] = content
        made.branches[branch] = sha
        return sha

    def answered(self, part: str = "", method: str = "GET") -> list[Request]:
        """The requests whose path holds this part."""
        with self._lock:
            return [request for request in self.requests if part in request.path and request.method == method]

    def sent(self, part: str = "/cdn/") -> int:
        """Bytes of bodies that went out below a path."""
        return sum(request.sent for request in self.answered(part))

    def received(self, method: str, path: str, query: str, headers: dict[str, str]) -> tuple[Request, Fault | None]:
        """Remember a request; gives it, and the fault that strikes it, if one does."""
        request = Request(method, path, query, _range(headers.get("range")), headers)
        with self._lock:
            self.requests.append(request)
            fault = next((fault for fault in self.faults if fault.strikes(request)), None)
        if fault is not None and fault.then is not None:
            fault.then()
        return request, fault


def _folder(folder: Path) -> dict[str, Content]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _range(value: str | None) -> tuple[int, int | None] | None:
    if value is None:
        return None
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", value.strip())
    if match is None:
        return None
    first, last = match.groups()
    return (-int(last), None) if not first else (int(first), int(last) if last else None)


def main() -> None:
    """Serve a folder until standard input ends, so that no server outlives whoever started it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.0)
    given = parser.parse_args()
    with Hub(given.latency) as hub:
        hub.add("local/files", given.folder)
        os.write(1, f"{hub.url}\n".encode())
        while os.read(0, 4096):
            pass


if __name__ == "__main__":
    main()
