"""What the documents say of options, formats and tests is true, their links lead somewhere, and the site is whole."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import publish
from docs.reference import MANIFEST_KEYS, example_manifest, manifest_keys, options_table
from docs.site import SECTIONS, as_python_markdown, page_name, sources
from shardmill.options import FORMATS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"])


def test_every_option_is_documented_as_the_program_knows_it() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    assert options_table() in page, "put this into docs/options.md:\n" + options_table()


def test_the_install_section_shows_both_commands_for_a_fresh_clone_with_the_time_that_they_take() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    [section] = re.findall(r"^## Install\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    [commands] = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    for command in ("demo", "test"):
        assert re.search(rf"^make {command} +# .*\d+ minutes|^make {command} +# .*one minute", commands, re.MULTILINE)
        assert re.search(rf"^{command}: ", makefile, re.MULTILINE)


def test_figures_are_those_of_the_newest_comparison() -> None:
    for page, text in publish.pages(publish.newest()).items():
        assert page.read_text(encoding="utf-8") == text, "`python -m benchmarks publish` writes them"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_output_format_is_documented() -> None:
    outputs, readme = (ROOT / "docs" / "outputs.md").read_text(), (ROOT / "README.md").read_text()
    for name in FORMATS:
        assert f"| `{name}` |" in outputs
        assert f"`{name}`" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_extra_that_a_page_names_can_be_installed() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    named = {(page.name, extra) for page in PAGES for extra in re.findall(r"'\S*\[(\w+)\]'", page.read_text("utf-8"))}
    assert named and {(page, extra) for page, extra in named if extra not in known} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    """Lines of more than 100 columns are tables, or hold something that cannot be wrapped."""
    code, long = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        code ^= line.lstrip().startswith("```")
        if len(line) > 100 and not (code or line.startswith("|") or " " not in line.strip()[:80]):
            long.append(line)
    assert long == []


def test_the_tests_that_prove_the_promises_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "promises.md").read_text())
    assert len(named) > 20
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def test_the_promises_are_those_of_the_readme() -> None:
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs" / "promises.md").read_text()
    promises = re.findall(r"^\d\. \*\*(\w+)\*\*: (.*?)(?=^\d\. |^$)", readme, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in promises] == re.findall("^## (.+)$", page, re.MULTILINE)
    for _, promise in promises:
        assert f"{' '.join(promise.split())[1:]}*" in " ".join(page.split())


def test_every_key_of_a_manifest_is_described() -> None:
    assert set(manifest_keys(json.loads(example_manifest()))) == set(MANIFEST_KEYS)


def test_every_page_is_in_the_menu() -> None:
    listed = {source for section in SECTIONS.values() for source in section}
    assert {page.relative_to(ROOT).as_posix() for page in PAGES} - listed == set()
    names = [page_name(source) for source in listed]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("text\n- a\n- b", "text\n\n- a\n- b"),
        ("1. a\n   - b\n     c\n2. d", "1. a\n    - b\n        c\n2. d"),
        ("- a\n  ```\n  - x\n  ```\n- b\n\nc", "- a\n    ```\n    - x\n    ```\n- b\n\nc"),
        ("text\n| a |\n|---|", "text\n\n| a |\n|---|"),
        ("```\na\n- b\n```", "```\na\n- b\n```"),
    ],
)
def test_lists_and_tables_are_the_same_for_both_readers_of_markdown(written: str, read: str) -> None:
    assert "\n".join(as_python_markdown(written)) == read


def test_the_site_is_built_and_no_page_of_it_needs_the_network(tmp_path: Path) -> None:
    out = tmp_path / "site"
    done = subprocess.run([sys.executable, ROOT / "docs" / "site.py", out], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    for source in sources():
        page = (out / page_name(source)).with_suffix(".html")
        text = page.read_text(encoding="utf-8")
        assert "<h1" in text
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"?([^\" >]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|icon|preload)[^>]*href=\"?([^\" >]+)", text)
        assert loaded
        for address in loaded:
            assert (page.parent / address).exists(), f"{page.name} asks for {address}"
    for style in [*out.rglob("*.css"), *out.rglob("*.svg")]:
        assert not re.search(r"url\([\"']?https?:|@import", style.read_text(encoding="utf-8")), style.name
