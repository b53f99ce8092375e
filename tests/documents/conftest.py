"""In tests of remote sources, the hub is the one that this process's client speaks to."""

from __future__ import annotations

import pytest

from tests.documents.away import point_at
from tests.documents.json_ways import WAYS, take_way
from tests.hub import Hub


@pytest.fixture
def hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    point_at(hub, monkeypatch)
    return hub


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take_way(request.param, monkeypatch)
    return str(request.param)
