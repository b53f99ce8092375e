"""The recipes of CONTRIBUTING.md, each followed word for word in a copy of the package."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.tokens.rank_files import gpt2_ranks
from tests.corpus import contents, documents, write_jsonl

PACKAGE = Path(__file__).parents[1] / "src" / "shardmill"
TOY = '''"""Toy shards: the word TOY!, how many tokens there are, tokens."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.shards.format import Format, Recognised, recognised
from shardmill.shards.token_files import TokenFile


class Toy(Format):
    name, eot, stem, endings = "toy", "before", "{name}-{split}-{index:06}", (".toy",)

    def header(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        return struct.pack("<4sQ", b"TOY!", tokens)

    def recognise(self, path: Path, raw: np.dtype[Any]) -> Recognised | None:
        if path.suffix != ".toy":
            return None
        return recognised(raw, TokenFile(path, int.from_bytes(path.read_bytes()[4:12], "little"), 12))


FORMAT = Toy()
'''


PACKED = '''"""Packed shards: how many documents, where each ends, tokens; written when a shard is complete."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardmill.shards.format import Format
from shardmill.shards.token_files import EndsIndex


class Packed(Format):
    name, eot, indexed, cumulative = "packed", "after", True, True
    stem, endings = "{split}/{name}.{index:05}", (".tokens", ".tokens.ends", ".packed")

    def complete(self, shard):
        return [shard.write(".packed", self.blocks(shard))]

    def blocks(self, shard):
        yield np.array([shard.document_count], "<u8")
        for ends in shard.length_blocks():
            yield ends.astype("<u8")
        yield from shard.token_blocks()

    def index(self, tokens):
        counts = [int(tokens.read_bytes(i, 0, 8).view("<u8")[0]) for i in range(len(tokens.files))]
        return EndsIndex(tokens, counts, lru_cache(2)(lambda i: tokens.read_bytes(i, 8, 8 * counts[i]).view("<i8")))


FORMAT = Packed()
'''


def copied(tmp_path: Path) -> Path:
    """The package, to be changed."""
    copy = tmp_path / "src" / "shardmill"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} has no single {before!r}"
    path.write_text(text.replace(before, after))


def command(package: Path) -> Callable[..., str]:
    """Runs the command of a copy; gives what it prints."""

    def run(*words: object) -> str:
        # Where bytecode may not be written, every call would compile the package.
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": ""}
        call = [sys.executable, "-m", "shardmill", *map(str, words)]
        done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_an_output_format_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "shards" / "toy.py").write_text(TOY)
    table = "OUTPUT_FORMATS = {\n"
    edit(copy / "output_formats.py", table, f'{table}    "nanogpt": "nanogpt",\n    "toy": "toy",\n')
    run = command(copy)
    source = write_jsonl(tmp_path / "a.jsonl", documents(40))
    run("prepare", source, "-o", tmp_path / "made", "-f", "toy", "--name", "x", "--val", 0.3)
    assert (tmp_path / "made" / "x-train-000000.toy").read_bytes()[:4] == b"TOY!"
    assert not json.loads(run("verify", tmp_path / "made", "--json"))["damage"]
    assert "train, document 0" in run("show", tmp_path / "made", "--split", "train")
    assert "toy" in json.loads(run("inspect", source, "-f", "toy", "--json"))["output_bytes"]
    run("convert", tmp_path / "made", "-o", tmp_path / "other", "-f", "megatron")
    run("convert", tmp_path / "other", "-o", tmp_path / "back", "-f", "toy", "--name", "x")
    (tmp_path / "theirs").mkdir()
    for path in (tmp_path / "made").glob("*.toy"):
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
        shutil.copy(path, tmp_path / "theirs")
    run("convert", tmp_path / "theirs", "-o", tmp_path / "ours", "-f", "nanogpt")
    made, ours = (json.loads((tmp_path / folder / "manifest.json").read_text()) for folder in ("made", "ours"))
    assert {split: ours["splits"][split]["tokens"] for split in ours["splits"]} == {
        split: made["splits"][split]["tokens"] for split in made["splits"]
    }


def test_an_output_format_may_be_written_anew_when_a_shard_is_complete(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "shards" / "packed.py").write_text(PACKED)
    table = "OUTPUT_FORMATS = {\n"
    edit(copy / "output_formats.py", table, f'{table}    "nanogpt": "nanogpt",\n    "packed": "packed",\n')
    run = command(copy)
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    run("prepare", source, "-o", tmp_path / "made", "-f", "packed", "--name", "x", "--val", 0.1, "--shard-tokens", 5000)
    names = sorted(path.relative_to(tmp_path / "made").as_posix() for path in (tmp_path / "made" / "train").iterdir())
    assert names[:2] == ["train/x.00000.packed", "train/x.00001.packed"]
    assert not json.loads(run("verify", tmp_path / "made", "--json"))["damage"]
    run("prepare", source, "-o", tmp_path / "plain", "--val", 0.1)
    run("convert", tmp_path / "made", "-o", tmp_path / "back", "-f", "nanogpt")
    for split in ("train.bin", "val.bin"):
        assert (tmp_path / "back" / split).read_bytes() == (tmp_path / "plain" / split).read_bytes()


PARAGRAPHS = '''"""Paragraphs: a document ends where a line has nothing but a full stop."""

from __future__ import annotations

import numpy as np

from shardmill.documents.chunks import Chunk, Documents, Lease, Position
from shardmill.documents.reading import FormatReader


class ParagraphsReader(FormatReader):
    def chunks(self, feed, start, size, *section):
        position = start.offset
        while feed.end_by(position) is None:
            text = feed.read(position, position + size)
            found = text.rfind(b"\\n.\\n")
            while found < 0 and feed.end_by(position + size) is None:
                size *= 2
                text = feed.read(position, position + size)
                found = text.rfind(b"\\n.\\n")
            end = position + (found + 3 if found >= 0 else len(text))
            yield Chunk(self._index, position, Position(end), Lease(end - position), self._work(feed, position, end))
            feed.drop(end)
            position = end

    def read(self, chunk):
        raw = self._bytes(chunk, chunk.start)
        texts = [part for part in raw.split(b"\\n.\\n") if part]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return Documents(np.frombuffer(b"".join(texts), np.uint8), ends, lines=raw.count(b"\\n"))
'''


def test_an_input_format_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "documents" / "paragraphs.py").write_text(PARAGRAPHS)
    edit(
        copy / "input_formats.py",
        '    "csv": InputFormat(',
        '    "paragraphs": InputFormat("paragraphs", "ParagraphsReader", "line", "par"),\n    "csv": InputFormat(',
    )
    run = command(copy)
    texts = documents(60)
    (tmp_path / "a.par").write_bytes(b"".join(text.encode() + b"\n.\n" for text in texts))
    (tmp_path / "b.dat").write_bytes((tmp_path / "a.par").read_bytes())
    write_jsonl(tmp_path / "a.jsonl", texts)
    run("prepare", tmp_path / "a.jsonl", "-o", tmp_path / "wanted", "--val", 0.3)
    run("prepare", tmp_path / "a.par", "-o", tmp_path / "auto", "--val", 0.3)
    run("prepare", tmp_path / "b.dat", "-o", tmp_path / "told", "--val", 0.3, "--input-format", "paragraphs")
    for made in ("auto", "told"):
        for split in ("train.bin", "val.bin"):
            assert (tmp_path / made / split).read_bytes() == (tmp_path / "wanted" / split).read_bytes()
    assert not json.loads(run("verify", tmp_path / "auto", "--source", "--json"))["damage"]
    counted = json.loads((tmp_path / "wanted" / "manifest.json").read_text())["documents"]
    assert json.loads(run("inspect", tmp_path / "a.par", "--json"))["documents"]["value"] == counted


def test_a_recipe_is_a_table(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    source = write_jsonl(tmp_path / "a.jsonl", documents(40))
    with open(copy / "sources" / "recipes.toml", "a") as recipes:
        recipes.write(
            f'''
["toy/(?P<size>a|b)"]
about = "a toy"
source = "{source.parent}/{{size}}.jsonl"
home = "nowhere"
license = "none"
example = "toy/a"
options = {{ val = "0.3" }}
formats.npy = {{ name = "toys" }}
'''
        )
    run = command(copy)
    assert "toy/a" in run("recipes")
    run("prepare", "toy/a", "-f", "npy", "-o", tmp_path / "made")
    assert (tmp_path / "made" / "toys_val_000000.npy").exists()


def test_a_tokenizer_is_a_scheme_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It splits as GPT-2 does, by another pattern, and has GPT-2's vocabulary: so its tokens are known."""
    copy = copied(tmp_path)
    ranks = gpt2_ranks()
    pattern = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    edit(
        copy / "tokens" / "schemes.py",
        "    for scheme in (\n",
        f'    for scheme in (\n        Scheme("toy", (r"{pattern}",), family="gpt2"),\n',
    )
    line = f'    "toy": Published("toy", {{_END: 50256}}, "{hashlib.sha256(ranks).hexdigest()}", 50257),\n'
    edit(copy / "tokens" / "loading.py", "PUBLISHED = {\n", "PUBLISHED = {\n" + line)
    url = "https://openaipublic.blob.core.windows.net/encodings/toy.tiktoken"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / hashlib.sha1(url.encode()).hexdigest()).write_bytes(ranks)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    run = command(copy)
    assert "toy" in run("tokenizers")
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    run("prepare", source, "-o", tmp_path / "toy", "-t", "toy", "--val", 0.1)
    run("prepare", source, "-o", tmp_path / "gpt2", "--val", 0.1)
    for split in ("train.bin", "val.bin"):
        assert (tmp_path / "toy" / split).read_bytes() == (tmp_path / "gpt2" / split).read_bytes()
    assert json.loads(run("verify", tmp_path / "toy", "--json"))["sampled"] > 0


TOY_EXECUTOR = '''"""Parts one by one, each in a process that is ended after it."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable

from shardmill.cluster.executors import Executor, PartReport
from shardmill.cluster.part_process import PartProcess


class ToyExecutor(Executor):
    """One process at a time."""

    _process: PartProcess | None = None

    def __init__(self, out: str, memory: int | None = None, workers: int | None = None) -> None:
        super().__init__(out, memory, workers)
        self._submitted: list[int] = []

    def open(self) -> None:
        pass

    def submit(self, number: int) -> None:
        self._submitted.append(number)

    def reports(self, seconds: float) -> Iterable[tuple[int, PartReport]]:
        if not self._submitted:
            time.sleep(seconds)
            return
        number = self._submitted[0]
        if self._process is None:
            self._process = PartProcess(self._out, self._memory, self._workers)
            self._process.make(number)
            yield number, PartReport("started", "toy")
        for report in self._process.read("toy") if select.select([self._process], [], [], seconds)[0] else ():
            if report.last:
                self.stop(number)
            yield number, report

    def stop(self, number: int) -> None:
        if number == self._submitted[0]:
            self.close()
        self._submitted.remove(number)

    def close(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None
'''


def test_an_executor_is_a_file_and_a_line(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    (copy / "cluster" / "toy_executor.py").write_text(TOY_EXECUTOR)
    edit(
        copy / "cluster" / "executors.py",
        '    "ray": (',
        '    "toy": ("toy_executor", "ToyExecutor"),\n    "ray": (',
    )
    run = command(copy)
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    flags = ["-f", "shards", "--shard-tokens", 5_000, "--val", 0.2]
    run("prepare", source, "-o", tmp_path / "wanted", *flags)
    run("prepare", source, "-o", tmp_path / "made", "--executor", "toy", "--parts", 3, *flags)
    assert contents(tmp_path / "made") == contents(tmp_path / "wanted")
