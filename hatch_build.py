"""Compiles src/shardmill/core/*.c into the package; without a C compiler the package is built without it.

`python hatch_build.py` does it in place.
"""

from __future__ import annotations

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


def compiler() -> list[str] | None:
    """The command of a C compiler: `CC`, or the first of the usual ones that is installed."""
    for command in [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def build() -> str | None:
    """Compile the library in place. Returns why there is none, or None if it is there."""
    LIBRARY.unlink(missing_ok=True)
    command = compiler()
    if command is None:
        return "no C compiler was found"
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
        return f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}"
    # Renamed, because a process may have the old file mapped.
    new.replace(LIBRARY)
    return None


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds the library to the wheel, which is then of this platform only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        trouble = build()
        if trouble:
            print(f"shardmill: built without its compiled core ({trouble.splitlines()[0]})", file=sys.stderr)  # noqa: T201
            return
        from packaging.tags import sys_tags

        platforms = (tag.platform for tag in sys_tags())
        platform = next(name for name in platforms if not name.startswith(("manylinux", "musllinux")))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(LIBRARY.relative_to(Path(__file__).parent).as_posix())


if __name__ == "__main__":
    sys.exit(build())
