"""The interface of an executor: it runs parts somewhere, and reports on them.

An executor never sees tokens, so it cannot change them. It may take a part for dead by mistake: a part is published
only if it is not there yet, so a second copy changes nothing.
"""

from __future__ import annotations

import importlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from shardmill import errors
from shardmill.errors import ShardmillError, SourceError, UsageError
from shardmill.write import Done


@dataclass(frozen=True)
class PartReport:
    """What is known of a part that is being made."""

    kind: str
    """`started`, `running` where it has come further, then `done`, `failed` (with an error) or `lost`."""
    node: str = ""
    done: Done = Done()
    sent: int = 0
    """Bytes that were uploaded, of a part in a store that is published."""
    memory: int = 0
    """Bytes that its process holds; in the last report, the most that it ever held."""
    limit: int = 0
    """Bytes that its process may hold; 0 if unknown."""
    error: ShardmillError | None = None
    """Why it failed."""
    why: str = ""
    """Why it is lost, as a message for the user."""

    @property
    def last(self) -> bool:
        return self.kind in ("done", "failed", "lost")

    def line(self) -> str:
        """Return the report as a line of JSON, without the newline."""
        error = self.error and {"kind": type(self.error).__name__, **_fields_of(self.error)}
        return json.dumps({**self.__dict__, "done": asdict(self.done), "error": error})

    @classmethod
    def read(cls, line: str | bytes) -> PartReport:
        """Parse what `line` has returned."""
        data: dict[str, Any] = json.loads(line)
        error = data["error"]
        if error is not None:
            kind = getattr(errors, error.pop("kind"), ShardmillError)
            error = kind(error.pop("message"), **error)
        return cls(**{**data, "done": Done(**data["done"]), "error": error})


def _fields_of(error: ShardmillError) -> dict[str, str | None]:
    return {name: getattr(error, name) for name in ("message", "place", "kept", "hint")}


class Executor(ABC):
    """Makes parts. One thread calls it, and no call waits for a part."""

    memory_limit = 0
    """Bytes that all processes may hold together, with the driver; 0: each node has a limit of its own."""
    final_errors: tuple[type[ShardmillError], ...] = (UsageError, SourceError)
    """Errors of a part that making it again cannot mend."""

    def __init__(self, out: str, memory: int | None, workers: int | None) -> None:
        """`memory` and `workers`: as the user has given them."""
        self._out, self._memory, self._workers = out, memory, workers

    @abstractmethod
    def open(self) -> None:
        """Get ready, once, before the first part. Raise UsageError if that is impossible."""

    @abstractmethod
    def submit(self, number: int) -> None:
        """Have a part made as soon as there is room for it."""

    @abstractmethod
    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        """Yield new reports with the numbers of their parts, after waiting at most `seconds`.

        Each part that was submitted and not stopped gives a last report.
        """

    @abstractmethod
    def stop(self, number: int) -> None:
        """Give up a part, without waiting: its process may be frozen, or its node unreachable."""

    def waiting(self) -> str:
        """Return what parts wait for that nobody makes yet, as a phrase for the user; empty if that is clear."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """End all parts and processes in less than a second. What they have recorded is kept."""


EXECUTORS = {
    "local": ("local_executor", "LocalExecutor"),
    "ray": ("ray_executor", "RayExecutor"),
}


def make_executor(name: str, out: str, **settings: Any) -> Executor:
    """Return the executor of that name. Raise UsageError if there is none, or if it has no such setting."""
    if name not in EXECUTORS:
        raise UsageError(f"there is no executor `{name}`", hint=f"choose one of: {', '.join(EXECUTORS)}")
    module, kind = EXECUTORS[name]
    executor = getattr(importlib.import_module(f"shardmill.cluster.{module}"), kind)
    for setting in settings.keys() - inspect.signature(executor).parameters.keys():
        raise UsageError(f"`--{setting.replace('_', '-')}` means nothing to the executor `{name}`")
    made: Executor = executor(out, **settings)
    return made
