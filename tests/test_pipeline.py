"""The threads of a run: how results are waited for, and how all of it ends."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from shardmill.run.pipeline import Pipeline

BATCH: Any = object()


class _Racing(Future[Any]):
    """Ends just when the time of whoever waits for it is up."""

    def result(self, timeout: float | None = None) -> Any:
        if timeout is not None and not self.done():
            self.set_result(BATCH)
            raise TimeoutError
        return super().result(timeout)


def test_a_result_that_comes_just_when_the_time_is_up_is_a_result() -> None:
    future = _Racing()
    threading.Timer(0.1, lambda: future.done() or future.set_result(BATCH)).start()
    assert Pipeline._result(future) is BATCH


def test_a_timeout_of_the_work_itself_is_raised() -> None:
    future: Future[Any] = Future()
    future.set_exception(TimeoutError("of the work"))
    with pytest.raises(TimeoutError, match="of the work"):
        Pipeline._result(future)
