"""`make wheels`: the sdist, and a wheel for each platform, built and checked on one Linux machine with `ziglang`.

One wheel for each platform serves every Python version: the core is a plain C library, loaded with ctypes.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from hatch_build import TARGETS, ZIG

ROOT = Path(__file__).parent
CORE = "shardmill/core/_core.so"
MACHINES = {
    "linux_x86_64": b"\x7fELF\x02\x01.{12}\x3e\x00",
    "linux_aarch64": b"\x7fELF\x02\x01.{12}\xb7\x00",
    "macosx_x86_64": b"\xcf\xfa\xed\xfe\x07\x00\x00\x01",
    "macosx_arm64": b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01",
}
"""How a library for each kind of machine begins."""


def main(out: Path) -> None:
    """Build everything into a new folder, check it, and test what can run here."""
    shutil.rmtree(out, ignore_errors=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out]
    run(*build, "--sdist", ROOT)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (tree,) = Path(folder).iterdir()
        for name in TARGETS:
            run(
                sys.executable,
                "-m",
                "build",
                "--no-isolation",
                "--wheel",
                "--outdir",
                out,
                tree,
                SHARDMILL_PLATFORM=name,
            )
            (wheel,) = out.glob(f"*-py3-none-{name}.whl")
            check(wheel, name, tree)
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    test_for_this_machine(out)
    test_for_arm(out)


def run(*command: object, **environment: str) -> None:
    """Run a command to its end; SystemExit if it fails."""
    done = subprocess.run([*map(str, command)], env={**os.environ, **environment}, cwd=ROOT, timeout=1800, check=False)
    if done.returncode:
        raise SystemExit(f"error: `{' '.join(map(str, command))}` failed")


def check(wheel: Path, name: str, tree: Path) -> None:
    """SystemExit unless the wheel has every file of the package and a core for this platform, and nothing else."""
    kind = re.sub(r"(linux|macosx)[\d_]*_(?=x86|a)", r"\1_", re.sub("many|musl", "", name))
    with zipfile.ZipFile(wheel) as archive:
        core = archive.read(CORE)
        held = {one for one in archive.namelist() if ".dist-info/" not in one}
        (described,) = (one for one in archive.namelist() if one.endswith(".dist-info/WHEEL"))
        tags = re.findall(r"^Tag: (.*)$", archive.read(described).decode(), re.MULTILINE)
    package = tree / "src"
    wanted = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()} | {CORE}
    newest = max((int(found) for found in re.findall(rb"GLIBC_2\.(\d+)", core)), default=0)
    troubles = {
        "its tag": tags != [f"py3-none-{name}"],
        f"its files ({sorted(held ^ wanted)[:5]})": held != wanted,
        "its machine": not re.match(MACHINES[kind], core, re.DOTALL),
        f"glibc 2.{newest}": newest > (17 if name.startswith("many") else 0),
    }
    if wrong := [what for what, found in troubles.items() if found]:
        raise SystemExit(f"error: {wheel.name} is wrong: {', '.join(wrong)}")


def test_for_this_machine(out: Path) -> None:
    """Install the wheel into an environment that has nothing else, and run the tests of the promises with it."""
    (wheel,) = out.glob(f"*manylinux*_{platform.machine()}.whl")
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin", "python")
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[test]")
        run(python, "-c", f"import shardmill; assert shardmill.__file__.startswith({folder!r}), shardmill.__file__")
        run(python, "-m", "pytest", "-q", "tests/test_promises.py", "-p", "no:cacheprovider", PYTHONPATH="")


def test_for_arm(out: Path) -> None:
    """Encode texts with the library of the ARM wheel, in an emulator; the ids must be those of tiktoken."""
    if not shutil.which("qemu-aarch64") or not Path("/usr/aarch64-linux-gnu").exists():
        print("not run: the ARM library, because qemu-aarch64 and libc6-dev-arm64-cross are not installed")
        return
    from tests.core.test_builds import HERE, SOURCES, case_file
    from tests.tokens.hard import disorder

    (wheel,) = out.glob("*manylinux*_aarch64.whl")
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            library = archive.extract(CORE, folder)
        program, cases = Path(folder, "check"), case_file(Path(folder, "cases"), "gpt2", disorder("wheels", 300))
        target = ["-target", TARGETS["manylinux2014_aarch64"], f"-I{SOURCES}", f"-Wl,-rpath,{Path(library).parent}"]
        run(*ZIG, *target, HERE / "check.c", library, "-o", program)
        run("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program, cases)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
