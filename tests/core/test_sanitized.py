"""The core's reading under the sanitizers, and compiled for ARM: against what Python's `json` gives."""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from shardmill.documents.records import judge
from tests.odd_lines import odd_lines, real_lines

ROOT = Path(__file__).parents[2]
NAMES = ("json", "utf8", "scan", "normal", "pages", "deal")
SOURCES = [ROOT / "src/shardmill/core" / f"{name}.c" for name in NAMES]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# Compiler, its options, and what runs the program.
BUILDS: dict[str, tuple[str, list[str], list[str]]] = {
    "gcc": ("gcc", SANITIZE, []),
    "clang": ("clang", SANITIZE, []),
    "ARM": ("aarch64-linux-gnu-gcc", ["-static"], ["qemu-aarch64"]),
}


@pytest.mark.parametrize("build", BUILDS)
def test_no_build_reads_outside_or_differs_from_python(tmp_path: Path, build: str) -> None:
    compiler, options, runner = BUILDS[build]
    for tool in (compiler, *runner):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program = tmp_path / "replay"
    flags = ["-std=c11", "-O0", "-g", "-Wall", "-Wextra", "-Werror", "-DREPLAY", f"-I{SOURCES[0].parent}"]
    command = [compiler, *flags, *options, *map(str, SOURCES), str(Path(__file__).with_name("fuzz_reading.c"))]
    made = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False, timeout=120)
    if "cannot find" in made.stderr and "san" in made.stderr:
        pytest.skip(f"{compiler} has no sanitizers here")
    assert made.returncode == 0, made.stderr
    corpus = tmp_path / "corpus"
    lines = [*real_lines(), *odd_lines(random.Random(9), 2_000)]
    with corpus.open("wb") as file:
        for line in lines:
            text = judge(line, ["text"]).text
            said = b"" if text is None else text.encode()
            size = -1 if text is None else len(said)
            file.write(struct.pack("=q", len(line) + 1) + line + b"\n" + struct.pack("=q", size) + said)
    done = subprocess.run(
        [*runner, str(program), str(corpus)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    count, taken = map(int, re.findall(r"\d+", done.stdout))
    assert count == len(lines)
    assert taken > 500
