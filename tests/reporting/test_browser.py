"""The report in a real browser: nothing runs that should not, and everything can be reached and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import shardmill
from tests.corpus import documents, write_jsonl
from tests.reporting.test_page import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

pytestmark = pytest.mark.thorough

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
AXE = Path(os.environ.get("SHARDMILL_AXE", "node_modules/axe-core/axe.min.js"))
"""axe-core's file, where it is installed (`npm install axe-core`)."""
if not BROWSER:
    pytest.skip("no Chromium is installed", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a hostile dataset."""
    folder = tmp_path_factory.mktemp("pages")
    source = write_jsonl(folder / "a.jsonl", [*HOSTILE, "Hello world, 你好.", *documents(60), "and so on " * 8_000])
    with open(source, "a", encoding="utf-8") as file:
        file.write("not <script>document.title='owned'</script>\n")
    shardmill.prepare(source, folder / "one", val=0.3, max_bad="any")
    return shardmill.report(folder / "one", out=folder / "page.html", documents=50)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as started:
        # Chromium refuses its sandbox to the superuser, which is who tests in a container.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = started.chromium.launch(executable_path=BROWSER, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser, report: Path) -> Iterator[Callable[..., Page]]:
    """Opens a page, and fails on whatever it complains of or asks a server for."""
    contexts, troubles = [], []

    def refuse(dialog: Dialog) -> None:
        troubles.append(dialog.message)
        dialog.dismiss()

    def go(width: int = 1280, scheme: Literal["light", "dark"] = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", refuse)
        page.on("request", lambda asked: troubles.append(asked.url) if not _local(asked.url) else None)
        page.goto(report.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert troubles == []


def _local(url: str) -> bool:
    return url.startswith(("file:", "data:"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_drawn_and_fits_in_both_themes_on_a_phone_and_a_desk(
    visit: Callable[..., Page], width: int, scheme: str
) -> None:
    page = visit(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground[4:-1].split(",")) > 384) == (scheme == "light")
    drawn = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width,"
        " s.querySelectorAll('path.line, rect.bar').length])"
    )
    assert len(drawn) >= 5 and all(wide > 200 and shapes > 0 for wide, shapes in drawn)
    texts = page.evaluate(
        "[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect().height)"
    )
    assert min(texts) > 8
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


def test_a_hostile_document_is_text_and_does_not_run(visit: Callable[..., Page]) -> None:
    page = visit()
    assert page.title() == "one · shardmill report"
    assert page.evaluate("document.querySelectorAll('img, iframe, svg[onload]').length") == 0
    assert HOSTILE[0] in page.inner_text("body")


def test_a_script_that_slipped_through_would_be_refused(browser: Browser, report: Path, tmp_path: Path) -> None:
    """By the page's own policy: the same page with a script put into a document."""
    broken = tmp_path / "broken.html"
    text = report.read_text(encoding="utf-8")
    broken.write_text(text.replace("<h1>", "<script>document.title = 'owned'</script><h1>", 1), encoding="utf-8")
    context = browser.new_context()
    try:
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.goto(broken.as_uri())
        assert page.title() == "one · shardmill report" and "Content Security Policy" in said[0]
    finally:
        context.close()


def test_pointing_at_a_token_and_arrow_keys_show_its_id_and_bytes(visit: Callable[..., Page]) -> None:
    page = visit()
    hello = page.locator(".doc span", has_text="Hello").first
    hello.scroll_into_view_if_needed()
    hello.hover()
    tip = page.locator("#tip")
    assert tip.inner_text() == "id 15496 · bytes 48 65 6c 6c 6f"
    page.mouse.move(1, 1)
    assert tip.is_hidden()
    document = page.locator(".doc", has=page.locator("span", has_text="Hello")).first
    document.focus()
    page.keyboard.press("Home")
    assert tip.inner_text().startswith("id 15496")
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() == "id 995 · bytes 20 77 6f 72 6c 64"
    page.keyboard.press("End")
    assert tip.inner_text() == "id 13 · bytes 2e"
    page.keyboard.press("ArrowLeft")
    assert tip.inner_text() == "id 121 · bytes bd"
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_everything_that_can_be_done_can_be_reached_by_the_tab_key(visit: Callable[..., Page]) -> None:
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
    assert {"A.", "BUTTON.", "SUMMARY.", "DIV.scroll"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_keeps_people_out(
    browser: Browser, report: Path, scheme: Literal["light", "dark"]
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; SHARDMILL_AXE says where its axe.min.js is")
    # Past the page's policy: what is looked at is the page, and axe is a script that it would refuse.
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    try:
        page = context.new_page()
        page.goto(report.as_uri())
        page.add_script_tag(path=str(AXE))
        found = page.evaluate("axe.run().then(result => result.violations.map(v => [v.id, v.nodes[0].html]))")
        assert found == []
    finally:
        context.close()
