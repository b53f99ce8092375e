"""What the README says of options is what the program says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from shardmill.options import FORMATS, Options

README = (Path(__file__).parents[1] / "README.md").read_text()


def options_table() -> str:
    """Every option, as the README shows it."""
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


def test_the_readme_lists_every_option_as_the_program_knows_it():
    assert options_table() in README, "put this into the README:\n" + options_table()


def test_the_readme_names_every_output_format():
    for name in FORMATS:
        assert f"| `{name}` |" in README
