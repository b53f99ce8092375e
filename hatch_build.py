"""Compiles src/shardmill/core/*.c into the package, with a C compiler of the machine or else with the one in `ziglang`.

`python hatch_build.py` does it in place.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program
    BuildHookInterface = object

CORE = Path(__file__).parent / "src" / "shardmill" / "core"
LIBRARY = CORE / "_core.so"
FLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"]
# For this system, and any processor of its kind: without this it would be for this very processor.
ZIG = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
TARGETS = {
    "manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_1_x86_64": "x86_64-linux-musl",
    "musllinux_1_1_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
"""For the platforms that releases are made for: what `ziglang` calls them. SHARDMILL_PLATFORM chooses one."""
HELP = "install a C compiler (Debian: apt install gcc; macOS: xcode-select --install), or set CC to one, and try again"


def compiler() -> list[str] | None:
    """The command of a C compiler: `CC`, or the first of the usual ones that is installed."""
    for command in [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def build() -> str | None:
    """Compile the library in place. Returns what went wrong, or None if it is there."""
    platform = os.environ.get("SHARDMILL_PLATFORM")
    found = [compiler(), ZIG if importlib.util.find_spec("ziglang") else None]
    commands = [[*ZIG, "-target", TARGETS[platform]]] if platform else [command for command in found if command]
    troubles = []
    for command in commands:
        trouble = _compile(command)
        if trouble is None:
            return None
        troubles.append(trouble)
    LIBRARY.unlink(missing_ok=True)  # what an older build has left must not be taken for this one
    return "\n".join(troubles or ["no C compiler was found, and the package `ziglang` is not installed"])


def _compile(command: list[str]) -> str | None:
    new = LIBRARY.with_suffix(f".{os.getpid()}.tmp")
    sources = sorted(str(path) for path in CORE.glob("*.c"))
    done = subprocess.run(
        [*command, *FLAGS, *shlex.split(os.environ.get("CFLAGS", "")), *sources, "-o", str(new)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        new.unlink(missing_ok=True)
        return f"`{shlex.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}"
    # Renamed, because a process may have the old file mapped.
    new.replace(LIBRARY)
    return None


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the library to the wheel, which is then of this platform only."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling: a C compiler, where the machine has none."""
        return [] if compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        trouble = build()
        if trouble:
            raise RuntimeError(f"shardmill's core could not be compiled: {HELP}\n{trouble}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ.get('SHARDMILL_PLATFORM') or _this_platform()}"
        build_data["artifacts"].append(LIBRARY.relative_to(Path(__file__).parent).as_posix())


def _this_platform() -> str:
    from packaging.tags import sys_tags

    platforms = (tag.platform for tag in sys_tags())
    return next(name for name in platforms if not name.startswith(("manylinux", "musllinux")))


if __name__ == "__main__":
    problem = build()
    sys.exit(f"{problem}\n{HELP}" if problem else 0)
