"""The core built by every compiler that is here, with sanitizers, for ARM, and under a fuzzer.

Each build encodes texts whose ids tiktoken has given.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill.core
from shardmill.core.encoding import SCHEMES
from shardmill.tokens import rank_files
from tests.core.models import ranks, reference
from tests.tokens.hard import RUNS, disorder, rows, run

HERE = Path(__file__).parent
SOURCES = Path(shardmill.core.__file__).parent
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_ISOC11_SOURCE"]
SANITIZE = ["-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
BUILDS = {
    "gcc": (["gcc", "-O3"], []),
    "gcc with sanitizers": (["gcc", *SANITIZE], []),
    "plain C": (["gcc", "-O2", "-DSM_PLAIN"], []),
    "clang": (["clang", "-O3"], []),
    "clang with sanitizers": (["clang", *SANITIZE], []),
    "aarch64": (["aarch64-linux-gnu-gcc", "-O2", "-static"], ["qemu-aarch64"]),
}
"""The command of the compiler, and what runs the program."""


def need(*commands: str) -> None:
    for command in commands:
        if not shutil.which(command):
            pytest.skip(f"{command} is not installed")


def compiled(program: str, command: list[str], folder: Path) -> Path:
    made = folder / program
    sources = [str(HERE / f"{program}.c"), *map(str, sorted(SOURCES.glob("*.c")))]
    done = subprocess.run(
        [*command, *STRICT, f"-I{SOURCES}", *sources, "-o", str(made)], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return made


def case_file(path: Path, scheme: str, texts: list[str]) -> Path:
    """A vocabulary, texts and the ids of the reference, as cases.h reads them."""
    tokens = rank_files.by_id(ranks(scheme), {})
    ids = [reference(scheme)(text) for text in texts]
    data, offsets = rows(texts)
    token_offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    flat = np.array([id_ for row in ids for id_ in row], np.uint32)
    sizes = [SCHEMES.index(scheme), len(tokens), token_offsets[-1], -1, 1, len(texts), len(data), len(flat)]
    with path.open("wb") as file:
        parts: list[Any] = [np.array(sizes, np.int64), token_offsets, b"".join(tokens), offsets, data]
        for part in [*parts, np.array(list(map(len, ids)), np.int64), flat]:
            file.write(part if isinstance(part, bytes) else part.tobytes())
    return path


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("cases")
    texts = [*disorder("builds", 600), *(run(kind, size) for kind in RUNS for size in (100, 3000))]
    return [case_file(folder / scheme, scheme, texts) for scheme in ("gpt2", "o200k", "deepseek-v3")]


QUICK = "gcc with sanitizers"


@pytest.mark.parametrize(
    "build", [build if build == QUICK else pytest.param(build, marks=pytest.mark.slow) for build in BUILDS]
)
def test_a_build_gives_the_ids_of_the_reference(build: str, cases: list[Path], tmp_path: Path) -> None:
    command, runner = BUILDS[build]
    need(command[0], *runner)
    program = compiled("check", command, tmp_path)
    some = map(str, cases[: 1 if build == QUICK else None])
    done = subprocess.run([*runner, str(program), *some], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_built_in_place(tmp_path: Path) -> None:
    need("cc")
    folder = tmp_path / "src" / "shardmill" / "core"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(HERE.parents[1] / "hatch_build.py", tmp_path)
    (folder / "_core.so").write_text("what an older build has left")
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | {"CFLAGS": "-O0"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "hatch_build.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "_core.so").read_bytes().startswith(b"\x7fELF" if sys.platform == "linux" else b"")


@pytest.mark.slow
def test_a_fuzzer_finds_nothing(cases: list[Path], tmp_path: Path) -> None:
    """For FUZZ_SECONDS, three if that is not set."""
    need("clang")
    program = compiled("fuzz", ["clang", "-O1", "-g", "-fsanitize=fuzzer,address,undefined"], tmp_path)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, text in enumerate([*disorder("fuzz", 200), *(run(kind, 300) for kind in RUNS)]):
        (corpus / str(number)).write_text(text)
    seconds = os.environ.get("FUZZ_SECONDS", "3")
    done = subprocess.run(
        [str(program), str(corpus), f"-max_total_time={seconds}", "-max_len=5000", f"-artifact_prefix={tmp_path}/"],
        env={**os.environ, "CASE_FILE": str(cases[0])},
        capture_output=True,
        text=True,
        timeout=int(seconds) + 120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
