"""In tests of remote sources, the hub is the one that this process's client speaks to."""

from __future__ import annotations

import pytest

from tests.documents.away import point_at


@pytest.fixture
def hub(hub, monkeypatch):
    point_at(hub, monkeypatch)
    return hub
