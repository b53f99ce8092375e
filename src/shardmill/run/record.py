"""`.shardmill/run.json`: how a run went over time, for the report. No part of the dataset, and always small."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.run.progress import Done

if TYPE_CHECKING:
    from shardmill.run.budget import Budget

NAME = "run.json"
POINT = ("seconds", "bytes", "documents", "tokens", "rejected", "memory", "retries")
"""What a point holds, in this order: amounts since the run was begun, `memory` and `seconds` apart."""
_POINTS = 240  # of one attempt; every second one goes when there are more
_STALLS = 50  # of one attempt that are kept
_ATTEMPTS = 12  # the oldest goes when a run was resumed more often
_STALL = 10.0  # seconds without a result
_SAVED = 5.0  # seconds between two writes of the file, which a kill may cost


class RunRecord:
    """Points over the time of one attempt, written now and then beside those of the attempts before it.

    A run never waits for it and never fails because of it: `in_background` runs a function in another thread.
    """

    def __init__(
        self,
        folder: Path,
        in_background: Callable[[Callable[[], None]], object],
        budget: Budget,
        engine: str,
        done: Done,
        *,
        resumed: bool,
    ) -> None:
        """The attempts of a run that is resumed stay in the file."""
        self._path, self._in_background, self._budget, self._engine = folder / NAME, in_background, budget, engine
        self._earlier = read_record(folder.parent)[-_ATTEMPTS + 1 :] if resumed else []
        self._points: list[list[float]] = []
        self._stalls: list[list[float]] = []
        self._every, self._failed, self._saved = 0.25, False, 0.0
        self._started = self._seen = time.monotonic()
        self._clock = time.time()
        self._point(0.0, done)

    def update(self, done: Done) -> None:
        """Add a point, if the last one is old enough."""
        now = time.monotonic()
        if now - self._seen > _STALL and len(self._stalls) < _STALLS:
            self._stalls.append([round(self._seen - self._started, 2), round(now - self._started, 2)])
        self._seen = now
        if now - self._started - self._points[-1][0] < self._every:
            return
        self._point(now - self._started, done)
        if len(self._points) > _POINTS:
            del self._points[1::2]
            self._every *= 2
        if now - self._saved > _SAVED:
            self._saved = now
            self._write("running")

    def end(self, done: Done, *, complete: bool) -> None:
        """Write the last point."""
        self._point(time.monotonic() - self._started, done)
        self._write("complete" if complete else "ended early")

    def _point(self, seconds: float, done: Done) -> None:
        amounts = (done.bytes, done.documents, done.tokens, done.rejected, self._budget.sample())
        self._points.append([round(seconds, 2), *amounts, done.retries])

    def _write(self, state: str) -> None:
        attempt = {
            "began": round(self._clock, 1),
            "state": state,
            "memory": self._budget.memory,
            "workers": self._budget.workers,
            "engine": self._engine,
            "points": list(self._points),
            "stalls": list(self._stalls),
        }
        text = json.dumps({"point": POINT, "attempts": [*self._earlier, attempt]}, separators=(",", ":"))
        if not self._failed:
            self._in_background(lambda: self._replace(text))

    def _replace(self, text: str) -> None:
        temporary = self._path.with_name(NAME + ".new")
        try:
            temporary.write_text(text)
            os.replace(temporary, self._path)
        except OSError:  # a full disk is reported where the data is written; the record is not worth an error
            self._failed = True


def read_record(out: Path) -> list[dict[str, Any]]:
    """The attempts of the run that made the dataset in a folder; empty when the record is missing or damaged."""
    try:
        found = json.loads((out / ".shardmill" / NAME).read_text())
    except (OSError, ValueError):
        return []
    attempts = found.get("attempts", []) if isinstance(found, dict) else []
    return [one for one in attempts if _is_valid(one)] if isinstance(attempts, list) else []


def _is_valid(attempt: Any) -> bool:
    """Whether it is what `RunRecord` writes: the folder may come from an untrusted place."""
    if not isinstance(attempt, dict) or not isinstance(attempt.get("memory"), int):
        return False
    points, stalls = attempt.get("points"), attempt.get("stalls")
    if not (isinstance(points, list) and isinstance(stalls, list) and points):
        return False
    rows = [(points, len(POINT)), (stalls, 2)]
    return all(
        isinstance(row, list) and len(row) == width and all(isinstance(value, (int, float)) for value in row)
        for some, width in rows
        for row in some
    )
