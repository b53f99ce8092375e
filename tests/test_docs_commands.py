"""Every command and every Python block of the documentation is run, in a folder that has the files they speak of.

What asks the hub, the web or an object store asks servers of this machine. A line before a block says where it is
different: `<!-- slow: why -->` is for the slow tests, `<!-- not run: why -->` is skipped, and the reason is printed.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill import cli
from tests.corpus import documents, write_jsonl
from tests.hub import Hub
from tests.object_store import Server, s3_server  # noqa: F401 - a fixture
from tests.test_docs import PAGES, ROOT
from tests.tokens.vocabularies import gpt2_rules, write_json

pytestmark = pytest.mark.thorough

BEFORE = {
    "loader.md": "shardmill prepare web.jsonl -o data/web --val 0.2",
    "outputs.md": "shardmill prepare web.jsonl -o data/web --val 0.2",
    "report.md": "shardmill prepare web.jsonl -o data --val 0.2; mkdir -p ~/.config/fish/completions",
}
"""What a page takes for done."""
PROLOGUE = {
    "loader.md": "import shardmill\ndata = shardmill.open('data/web')\nbatches = data['train'].batches(4, 64)",
    "python.md": "import types\nimport pyarrow.compute as pc\ntexts = ['one text', 'another']\n"
    "pages = lambda: (types.SimpleNamespace(text=text) for text in texts)",
}
"""Names that the Python blocks of a page take for given."""
_FENCE = re.compile(r"(?:^<!-- (slow|not run): ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    page: Path
    mark: str
    reason: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its commands, each as one line for a shell."""
        joined = self.text.replace("\\\n", " ")
        if self.language == "console":
            return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
        shell = self.language in ("", "sh") and re.search(r"^(?:shardmill|make|pip|python) ", joined, re.MULTILINE)
        return [line for line in joined.splitlines() if line.strip()] if shell else []


def blocks(page: Path) -> list[Block]:
    return [Block(page, *map(str, found)) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


RUN = [page for page in PAGES if any(block.commands or block.language == "python" for block in blocks(page))]
SLOW = [page for page in RUN if any(block.mark == "slow" for block in blocks(page))]
LEFT = [block for page in PAGES for block in blocks(page) if block.mark == "not run"]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages speak of."""
    folder = tmp_path_factory.mktemp("material")
    texts = [text for text in documents(1500) if text]
    table = pa.table({"text": texts, "page": [{"body": text} for text in texts]})
    for name in ("corpus/a.parquet", "crawl/a.parquet", "folder-of-parquet/a.parquet", "pages/a.parquet",
                 "my-fineweb/a.parquet"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        pq.write_table(table, folder / name)
    pq.write_table(pa.table({"text": [None, *texts[:200]]}), folder / "holes.parquet")
    for name in ("web.jsonl", "books.jsonl", "data.jsonl"):
        write_jsonl(folder / name, texts)
    lines = (folder / "web.jsonl").read_bytes()
    (folder / "huge.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "corpus" / "b.jsonl.zst").write_bytes(pa.Codec("zstd").compress(lines, asbytes=True))
    shutil.copy(folder / "corpus" / "b.jsonl.zst", folder / "crawl")
    (folder / "corpus.txt").write_text("\n\n".join(texts))
    for name in ("train_fineweb.txt", "huge.txt"):
        (folder / name).write_text("<|endoftext|>".join(text.replace("<|endoftext|>", "") for text in texts))
    shutil.copy(write_json("gpt2", gpt2_rules()) / "tokenizer.json", folder)
    (folder / "examples").symlink_to(ROOT / "examples")
    programs = folder / "programs"
    programs.mkdir()
    for name, call in (("shardmill", "-m shardmill"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
        (programs / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def servers(material: Path, s3_server: Server) -> Iterator[dict[str, str]]:  # noqa: F811 - a fixture
    """The environment of commands: a hub, the web and an object store on this machine."""
    client = s3_server.bucket("bucket").server.client
    for key in ("crawl/a.txt", "crawl/2024/b.txt"):
        client.put_object(Bucket="bucket", Key=key, Body=(material / "corpus.txt").read_bytes())
    with Hub() as hub:
        for name in ("fineweb-edu", "fineweb"):
            hub.add(f"HuggingFaceFW/{name}", {"sample/10BT/000_00000.parquet": material / "crawl" / "a.parquet"})
        hub.web["corpus.jsonl.zst"] = (material / "corpus" / "b.jsonl.zst").read_bytes()
        path = f"{material / 'programs'}{os.pathsep}{os.environ['PATH']}"
        packages = os.pathsep.join(str(Path(folder).resolve()) for folder in sys.path if folder)
        yield {**os.environ, **hub.environment, "WEB": f"{hub.url}/web", "PATH": path, "PYTHONPATH": packages}


def run_page(page: Path, folder: Path, material: Path, environment: dict[str, str], marks: tuple[str, ...]) -> None:
    """Every block of a page in order, in one folder."""
    shutil.copytree(material, folder, symlinks=True)
    if page.name in BEFORE:
        run(["bash", "-euo", "pipefail", "-c", BEFORE[page.name]], folder, environment)
    python = f"import shardmill\n{PROLOGUE.get(page.name, '')}"
    for block in blocks(page):
        if block.mark not in marks:
            continue
        for command in block.commands:
            if not checked(command):
                command = command.replace("https://example.org", environment["WEB"])
                make_room(folder, re.findall(r" (?:-o|--out) (\S+)", command))
                run(["bash", "-euo", "pipefail", "-c", command], folder, environment)
        if block.language == "python":
            make_room(folder, re.findall(r'shardmill\.prepare\([^)]*?, "([^"]+)"', block.text))
            run([sys.executable, "-c", f"{python}\n{block.text}"], folder, environment)


def run(call: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, f"{call[-1]}\n{done.stdout}{done.stderr}"


def make_room(folder: Path, names: list[str]) -> None:
    """Examples on one page may write into a folder of the same name."""
    for name in names:
        if "://" not in name:
            shutil.rmtree(folder / name, ignore_errors=True)


def checked(command: str) -> bool:
    """Whether a command is one that is only looked at: what it names exists."""
    words = command.split("#")[0].split()
    if words[:1] == ["make"]:
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
        return True
    if words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"shardmill\[(\w+)\]", command)) <= set(extras), command
        return True
    return False


@pytest.mark.parametrize("page", RUN, ids=named)
def test_what_a_page_tells_to_do_works(page: Path, tmp_path: Path, material: Path, servers: dict[str, str]) -> None:
    run_page(page, tmp_path / "here", material, servers, ("",))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", SLOW, ids=named)
def test_what_a_page_tells_to_do_works_to_its_end(
    page: Path, tmp_path: Path, material: Path, servers: dict[str, str]
) -> None:
    pytest.importorskip("torch")  # what is slow is training
    run_page(page, tmp_path / "here", material, servers, ("", "slow"))


@pytest.mark.parametrize("block", LEFT, ids=lambda block: named(block.page))
def test_a_block_that_is_not_run_has_a_reason(block: Block) -> None:
    assert block.reason
    pytest.skip(f"{block.page.name}: {block.reason}")


def inline_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
        for code in re.findall(r"`(shardmill [^`]+)`", prose):
            yield page.name, " ".join(code.split())


@pytest.mark.parametrize(("page", "command"), sorted(set(inline_commands())))
def test_a_command_within_a_sentence_has_words_that_there_are(page: str, command: str) -> None:
    words = [word.strip("'\"") for word in command.split()[1:] if word not in ("SOURCE…", "…")]
    with click.Context(cli.shardmill) as context:
        known = cli.shardmill.get_command(context, words[0])
        if words[0].startswith("-"):
            assert words[0] in ("--help", "--version", "-h", "-V")
            return
        assert known is not None, f"there is no command {words[0]}"
        flags = {
            flag for parameter in known.get_params(context) for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word for word in words[1:] if word.startswith("-") and word != "-"} <= flags
