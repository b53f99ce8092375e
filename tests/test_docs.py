"""What the documents say of options and formats is what the program says, and their links lead somewhere."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from shardmill.options import FORMATS, Options

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def options_table() -> str:
    """Every option, as docs/options.md shows it."""
    rows = [
        "| option | default | |",
        "|---|---|---|",
        "| `-o, --out DIR` | | folder of the dataset, or a URL: s3://, gs://, az:// |",
    ]
    for option in dataclasses.fields(Options):
        meta, default = option.metadata, option.default
        flags = ", ".join(meta["flags"]) + (f" {meta['metavar']}" if meta["metavar"] else "")
        shown = "" if default in (None, False) else f"`{','.join(default) if isinstance(default, tuple) else default}`"
        choices = f": {', '.join(f'`{choice}`' for choice in meta['choices'])}" if meta["choices"] else ""
        rows.append(f"| `{flags}` | {shown} | {meta['help']}{choices} |")
    rows.append("| `--json`, `-q` | | the summary as JSON on standard output; no progress and no summary |")
    return "\n".join(rows)


def test_every_option_is_documented_as_the_program_knows_it():
    page = (ROOT / "docs" / "options.md").read_text()
    assert options_table() in page, "put this into docs/options.md:\n" + options_table()


def test_every_output_format_is_documented():
    outputs, readme = (ROOT / "docs" / "outputs.md").read_text(), (ROOT / "README.md").read_text()
    for name in FORMATS:
        assert f"| `{name}` |" in outputs
        assert f"`{name}`" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page):
    """Lines of more than 100 columns are tables, or hold something that cannot be wrapped."""
    code, long = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        code ^= line.lstrip().startswith("```")
        if len(line) > 100 and not (code or line.startswith("|") or " " not in line.strip()[:80]):
            long.append(line)
    assert long == []
