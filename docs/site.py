"""Build the site of the documentation, which needs no network:    python docs/site.py [FOLDER]

The pages are the Markdown files of the project as they are, and a reference made from the code. `make docs` calls this.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.reference import reference_pages  # noqa: E402 - found by the line before

SECTIONS = {
    "Start": ["README.md", "docs/choosing.md", "docs/tutorial.md"],
    "How to": [
        "docs/howto/fineweb.md",
        "docs/howto/parquet.md",
        "docs/howto/huge_file.md",
        "docs/howto/little_memory.md",
        "docs/python.md",
        "docs/howto/object_stores.md",
        "docs/howto/remote.md",
        "docs/howto/publish.md",
        "docs/clusters.md",
        "docs/howto/shuffle.md",
        "docs/howto/mix.md",
        "docs/howto/pack.md",
        "docs/howto/trace.md",
        "docs/howto/trainers.md",
        "docs/howto/loader.md",
        "docs/inspect.md",
        "docs/report.md",
        "examples/README.md",
    ],
    "Reference": [
        "docs/reference/commands.md",
        "docs/options.md",
        "docs/sources.md",
        "docs/tokenizers.md",
        "docs/outputs.md",
        "docs/reference/formats.md",
        "docs/reference/manifest.md",
        "docs/reference/api.md",
    ],
    "Promises": ["docs/promises.md", "docs/failures.md"],
    "About": ["docs/speed.md", "CHANGELOG.md", "SECURITY.md"],
    "For engineers": [
        "DESIGN.md",
        "CONTRIBUTING.md",
        "docs/dev/core.md",
        "docs/dev/dependencies.md",
        "docs/log.md",
        "AGENTS.md",
    ],
}
"""Every page, in the order of the menu."""
UNSEARCHED = SECTIONS["For engineers"]
"""Pages that the site's search leaves out: users look for other things by the same words."""
_LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
_ITEM = re.compile(r"( *)(?:[-*]|\d+\.) +")
_CODE_WITH_BAR = re.compile(r"`([^`|]*\\\|[^`]*)`")
_SHIM = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"[^>]*></script>')


def page_name(source: str) -> str:
    """Where a file of the project stands among the pages. What a browser would only offer to save becomes text."""
    if source == "README.md":
        return "index.md"
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.endswith("/README.md"):
        return source.removesuffix("README.md") + "index.md"
    return source if source.endswith((".md", ".json", ".svg", ".png")) else f"{source}.txt"


def sources() -> dict[str, str]:
    """The Markdown of every page of the menu, by its path in the project."""
    pages = dict(reference_pages())
    named = [source for section in SECTIONS.values() for source in section]
    pages |= {source: (ROOT / source).read_text(encoding="utf-8") for source in named if source not in pages}
    return {source: pages[source] for source in named}


def write_pages(folder: Path) -> list[str]:
    """All pages, and what they link to, as the builder of the site takes them; gives links that lead nowhere."""
    pages, linked, broken = sources(), set(), []
    for source, text in pages.items():

        def led(match: re.Match[str], source: str = source) -> str:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
            target += "/README.md" if (ROOT / target).is_dir() else ""
            if target not in pages:
                linked.add(target)
            here = posixpath.dirname(page_name(source))
            return f"]({posixpath.relpath(page_name(target), here or '.')}{match[2] or ''})"

        whole = "\n".join(as_python_markdown(_LINK.sub(led, text)))
        if source in UNSEARCHED:
            whole = f"---\nsearch:\n  exclude: true\n---\n{whole}"
        to = folder / page_name(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(whole + "\n", encoding="utf-8")
    for target in sorted(linked):
        if not (ROOT / target).is_file():
            broken.append(target)
            continue
        to = folder / page_name(target)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / target, to)
    return broken


def as_python_markdown(text: str) -> Iterator[str]:
    """Markdown as GitHub reads it → as Python's library does: lists and tables after an empty line, nested by four."""
    indents: list[tuple[int, int]] = []  # of the text of the list items around, here and there
    fence, before = "", ""
    for line in text.splitlines():
        if line.lstrip().startswith("|"):  # Python's library shows the backslash of an escaped bar in code
            line = _CODE_WITH_BAR.sub(lambda code: f"<code>{escape(code[1])}</code>".replace("\\|", "&#124;"), line)
        bare = line.lstrip()
        column = len(line) - len(bare)
        if not fence:
            if bare and not before:  # a paragraph that is not indented ends the list
                while indents and column < indents[-1][0] and not _ITEM.match(line):
                    indents.pop()
            item = _ITEM.match(line)
            if item:
                while indents and column < indents[-1][0]:
                    indents.pop()
                begins_list = before and not _ITEM.match(before) and not before.startswith(" ")
            else:
                begins_list = bare.startswith("|") and before and not before.lstrip().startswith("|")
            if begins_list:
                yield ""
        there = indents[-1][1] if indents else 0
        deeper = max(0, column - indents[-1][0]) if indents else column
        yield " " * (there + deeper) + bare if bare else ""
        if bare.startswith("```"):
            fence = "" if fence else "```"
        elif not fence and (item := _ITEM.match(line)):
            indents.append((len(item[0]), there + 4))
        before = line


def menu(pages: dict[str, str]) -> Iterator[str]:
    """The `nav` of the site's configuration. A page is called by its first heading."""
    for section, named in SECTIONS.items():
        yield f'  - "{section}":'
        for source in named:
            title = re.search(r"^# (.+)$", pages[source], re.MULTILINE)
            assert title, f"{source} has no heading"
            called = title[1].replace("`", "").replace('"', "'")
            yield f'      - "{called}": {page_name(source)}'


def build(out: Path) -> None:
    """The whole site. Anything that the builder warns of, or a link that leads nowhere, ends this."""
    work = out.parent / "pages"
    shutil.rmtree(work, ignore_errors=True)
    if broken := write_pages(work / "docs"):
        sys.exit("these links lead nowhere: " + ", ".join(broken))
    shutil.copyfile(ROOT / "docs" / "worker.js", work / "docs" / "worker.js")
    shutil.copyfile(ROOT / "docs" / "site.css", work / "docs" / "site.css")
    settings = (ROOT / "docs" / "site.yml").read_text(encoding="utf-8")
    nav = "\n".join(menu(sources()))
    (work / "mkdocs.yml").write_text(f"{settings}site_dir: site\nnav:\n{nav}\n")
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=work, check=True)
    shutil.rmtree(out, ignore_errors=True)
    (work / "site").replace(out)
    shutil.copyfile(ROOT / "llms.txt", out / "llms.txt")
    (out / "404.html").unlink()  # for web servers only: its addresses begin at a server's root
    for page in out.rglob("*.html"):
        # The builder's page would fetch this script from a server; ours does the same.
        up = os.path.relpath(out / "worker.js", page.parent)
        text = page.read_text(encoding="utf-8")
        page.write_text(_SHIM.sub(f'<script src="{up}"></script>', text), encoding="utf-8")
    sys.stdout.write(f"{out / 'index.html'} can be opened in a browser\n")


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve())
