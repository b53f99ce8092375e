"""An install on a machine without a C compiler: the build fetches `ziglang`, and the bytes are the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpus import contents, documents, write_jsonl

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent.parent


def called(environment: dict[str, str], *command: object, seconds: int = 900) -> subprocess.CompletedProcess[str]:
    """Run a command with nothing in its PATH but Python."""
    return subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without a compiler."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "http", "SSL", "no_"))
    }
    return {**kept, "HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    """What an sdist has of the package, without a core that was compiled before."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "_core.*"))
    return tree


@pytest.mark.timeout(1_200)
def test_without_a_compiler_the_install_fetches_one_and_the_bytes_are_the_same(
    tmp_path: Path, bare: dict[str, str], source_tree: Path
) -> None:
    pip = [sys.executable, "-m", "pip"]
    fetched = called(bare, *pip, "download", "-q", "--no-deps", "-d", tmp_path / "zig", "ziglang")
    if fetched.returncode:
        pytest.skip(f"ziglang cannot be installed here: {fetched.stderr.strip().splitlines()[-1]}")
    bare["PIP_FIND_LINKS"] = str(tmp_path / "zig")
    # Editable, as `make demo` and `make test` do it: the core is then in the source tree.
    target = tmp_path / "packages"
    done = called(bare, *pip, "install", "-q", "--no-deps", "--target", target, "--editable", source_tree)
    assert done.returncode == 0, done.stderr
    made = source_tree / "src" / "shardmill" / "core" / "_core.so"
    assert made.exists()
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    for name, tree in (("here", ROOT), ("there", source_tree)):
        run = [sys.executable, "-m", "shardmill", "prepare", source, "-o", tmp_path / name, "-q"]
        done = called({**bare, "PYTHONPATH": str(tree / "src")}, *run)
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_an_install_that_cannot_compile_fails_and_says_what_to_install(bare: dict[str, str], source_tree: Path) -> None:
    (source_tree / "src" / "shardmill" / "core" / "broken.c").write_text("no C")
    environment = {**bare, "PATH": os.environ["PATH"]}
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("this machine has no C compiler that could fail")
    left = source_tree / "src" / "shardmill" / "core" / "_core.so"
    left.write_text("what an older build has left")
    done = called(environment, sys.executable, source_tree / "hatch_build.py")
    assert done.returncode == 1 and not left.exists()
    assert "install a C compiler" in done.stderr and "failed" in done.stderr
    nothing = called(bare, sys.executable, "-S", source_tree / "hatch_build.py")
    assert nothing.returncode == 1 and "no C compiler was found" in nothing.stderr
