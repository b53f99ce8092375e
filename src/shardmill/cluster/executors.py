"""What an executor is: it runs parts somewhere, and says what becomes of them.

An executor never sees tokens, so it cannot change them. It need not be right about what it believes dead: a part is
published under its name only if nothing stands there yet, so a second copy of one changes nothing.
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
from shardmill.errors import ShardmillError, UsageError
from shardmill.run import Done


@dataclass(frozen=True)
class PartReport:
    """What is known of a copy of a part."""

    kind: str
    """`running` as soon as it does, and every second or two; then `done`, `failed` (with an error) or `lost`."""
    node: str = ""
    done: Done = Done()
    memory: int = 0
    """Bytes that its process holds; at the end, the most that it ever held."""
    limit: int = 0
    """Bytes that its process may hold; 0 while that is not known."""
    error: ShardmillError | None = None
    """Why it failed."""
    why: str = ""
    """Why it is lost, for people."""

    @property
    def last(self) -> bool:
        return self.kind != "running"

    def line(self) -> str:
        """One line of JSON, without its newline."""
        error = self.error and {"kind": type(self.error).__name__, **_said(self.error)}
        return json.dumps({**self.__dict__, "done": asdict(self.done), "error": error})

    @classmethod
    def read(cls, line: str | bytes) -> PartReport:
        """The report that `line` gave."""
        data: dict[str, Any] = json.loads(line)
        error = data["error"]
        if error is not None:
            kind = getattr(errors, error.pop("kind"), ShardmillError)
            error = kind(error.pop("message"), **error)
        return cls(**{**data, "done": Done(**data["done"]), "error": error})


def _said(error: ShardmillError) -> dict[str, str | None]:
    return {name: getattr(error, name) for name in ("message", "place", "kept", "hint")}


class Executor(ABC):
    """Runs copies of parts, each in a process of its own. One thread calls, and no call waits for a copy."""

    kind: str = "part"
    """What is made: parts, or pieces of the final files."""

    def __init__(self, out: str, memory: int | None, workers: int | None) -> None:
        """`memory` and `workers` are those of one part; None: what its node gives."""
        self._out, self._memory, self._workers = out, memory, workers

    @abstractmethod
    def open(self) -> None:
        """Make ready, if it is not; UsageError where that cannot be."""

    @abstractmethod
    def room(self) -> int:
        """How many more copies can run just now; it may change at any time, and may be negative."""

    @abstractmethod
    def start(self, copy: int, number: int) -> None:
        """Begin to make the part or piece `number`, under a name for this copy that is used once."""

    @abstractmethod
    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        """What copies have said, after a wait of at most so many seconds; of each a last one, unless it was stopped."""

    @abstractmethod
    def stop(self, copy: int) -> None:
        """This copy is not needed any more. It may be frozen, or its node out of reach: that must not hold us up."""

    @abstractmethod
    def close(self) -> None:
        """End all copies and processes, in less than a second. What they have recorded stays."""


EXECUTORS = {
    "local": ("local_executor", "LocalExecutor"),
    "ray": ("ray_executor", "RayExecutor"),
}


def make_executor(name: str, out: str, **settings: Any) -> Executor:
    """The executor of that name; UsageError if there is none, or if it has no such setting."""
    if name not in EXECUTORS:
        raise UsageError(f"there is no executor `{name}`", hint=f"there are: {', '.join(EXECUTORS)}")
    module, kind = EXECUTORS[name]
    executor = getattr(importlib.import_module(f"shardmill.cluster.{module}"), kind)
    for setting in settings.keys() - inspect.signature(executor).parameters.keys():
        raise UsageError(f"`--{setting.replace('_', '-')}` means nothing to the executor `{name}`")
    made: Executor = executor(out, **settings)
    return made
