"""To add an output format is one file and one line, as CONTRIBUTING.md says: done here in a copy of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.corpus import documents, write_jsonl

PACKAGE = Path(__file__).parents[1] / "src" / "shardmill"
TOY = '''"""Toy shards: the word TOY!, how many tokens there are, tokens."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.shards.format import Recognised, whole
from shardmill.shards.streams import StreamFormat
from shardmill.shards.token_files import TokenFile


class Toy(StreamFormat):
    name, eot, file_name = "toy", "before", "{name}-{split}-{index}.toy"

    def head(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        return struct.pack("<4sQ", b"TOY!", tokens)

    def recognise(self, path: Path, raw: np.dtype[Any]) -> Recognised | None:
        if path.suffix != ".toy":
            return None
        return whole(raw, TokenFile(path, int.from_bytes(path.read_bytes()[4:12], "little"), 12))


FORMAT = Toy()
'''


def test_a_format_is_one_file_and_one_line(tmp_path):
    copy = tmp_path / "src" / "shardmill"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "shards" / "toy.py").write_text(TOY)
    registry = copy / "shards" / "formats.py"
    registry.write_text(
        registry.read_text().replace("_FILES = {\n", '_FILES = {\n    "nanogpt": "nanogpt",\n    "toy": "toy",\n')
    )

    def run(*words):
        environment = {**os.environ, "PYTHONPATH": str(copy.parent)}
        call = [sys.executable, "-m", "shardmill", *map(str, words)]
        done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

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
