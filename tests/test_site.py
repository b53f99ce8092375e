"""The built documentation in a real browser: no page asks a server, none complains, none is too wide for a phone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.reporting.test_browser import browser  # noqa: F401 - a fixture, and what skips without a browser
from tests.test_docs import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run([sys.executable, ROOT / "docs" / "site.py", out], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture
def page(browser):  # noqa: F811 - a fixture
    context = browser.new_context(viewport={"width": 390, "height": 800})
    opened = context.new_page()
    opened.troubles = []
    opened.on("console", lambda said: opened.troubles.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: opened.troubles.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith("file:") else opened.troubles.append(asked.url))
    yield opened
    assert opened.troubles == []
    context.close()


def test_every_page_opens_from_disk_without_a_complaint_and_fits_a_phone(site, page):
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(path.name)
    assert wide == []


def test_the_search_works_on_a_page_that_was_opened_from_disk(site, page):
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.wait_for_function("document.activeElement.shadowRoot?.activeElement?.tagName === 'INPUT'")
    page.keyboard.type("fingerprint")
    page.wait_for_function("document.activeElement.shadowRoot.innerHTML.includes('The manifest')")
    assert page.evaluate("document.activeElement.shadowRoot.activeElement.value") == "fingerprint"
