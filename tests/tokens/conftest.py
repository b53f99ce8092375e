"""These tests are of the libraries that encode where the compiled core is not; `test_core_engine.py` is of the core."""

from __future__ import annotations

import pytest

from shardmill.tokens import backends


@pytest.fixture(autouse=True)
def engine_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "core_knows", lambda scheme: False)
