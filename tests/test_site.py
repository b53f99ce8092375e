"""The built documentation in a real browser: no page asks a server, none complains, none is too wide for a phone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.reporting.test_browser import browser  # noqa: F401 - a fixture, and what skips without a browser
from tests.test_docs import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run([sys.executable, ROOT / "docs" / "site.py", out], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:  # noqa: F811 - a fixture
    context = browser.new_context(viewport={"width": 390, "height": 800})
    opened = context.new_page()
    troubles: list[str] = []
    opened.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith("file:") else troubles.append(asked.url))
    yield opened
    assert troubles == []
    context.close()


def test_every_page_opens_from_disk_without_a_complaint_and_fits_a_phone(site: Path, page: Page) -> None:
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(path.name)
    assert wide == []


def test_the_search_works_on_a_page_that_was_opened_from_disk(site: Path, page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.wait_for_function("document.activeElement.shadowRoot?.activeElement?.tagName === 'INPUT'")
    page.keyboard.type("fingerprint")
    page.wait_for_function("document.activeElement.shadowRoot.innerHTML.includes('The manifest')")
    assert page.evaluate("document.activeElement.shadowRoot.activeElement.value") == "fingerprint"
