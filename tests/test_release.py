"""The way to a release: one version, and workflows that call what there is."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import shardmill
import wheels
from hatch_build import TARGETS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
if not WORKFLOWS:
    pytest.skip("an sdist has no workflows", allow_module_level=True)


def steps(workflow: str) -> list[dict[str, Any]]:
    jobs = WORKFLOWS[workflow]["jobs"].values()
    return [{"name": "", "run": "", **step} for job in jobs for step in job["steps"]]


def test_the_version_stands_in_one_place_and_heads_the_changelog() -> None:
    place = PROJECT["tool"]["hatch"]["version"]["path"]
    assert "version" not in PROJECT["project"]
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert [path for path in sources if f'"{shardmill.__version__}"' in path.read_text()] == [ROOT / place]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == shardmill.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == shardmill.__version__


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_calls_what_exists(workflow: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(step["run"] for step in steps(workflow))
    called = re.findall(r"\bmake ([\w-]+)", commands)
    assert called and set(called) <= targets
    assert all((ROOT / script).exists() for script in re.findall(r"\.ci/\w+|src/[\w/.]+", commands))


def test_the_tests_run_on_linux_and_macos_and_on_every_python_that_is_promised() -> None:
    classifiers = " ".join(PROJECT["project"]["classifiers"])
    matrix = WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r":: (3\.\d+)", classifiers)
    systems = " ".join([*matrix["os"], *(entry["os"] for entry in matrix["include"])])
    assert "ubuntu" in systems and "macos" in systems


@pytest.mark.parametrize(("tag", "fine"), [(f"v{shardmill.__version__}", True), ("v9.9.9", False)])
def test_only_a_tag_that_names_the_version_is_published(tag: str, fine: bool) -> None:
    (check,) = [step["run"] for step in steps("publish") if step["name"] == "The tag is the version"]
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    assert (subprocess.run(["bash", "-c", check], cwd=ROOT, env=environment, timeout=60).returncode == 0) == fine


def made_wheel(folder: Path, name: str, core: bytes, *, extra: str = "", tag: str = "") -> Path:
    """A wheel of a package that has one module, beside the tree that it was made from."""
    (folder / "src" / "shardmill").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "shardmill" / "__init__.py").write_text("")
    wheel = folder / f"shardmill-1-py3-none-{name}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("shardmill/__init__.py", "")
        archive.writestr(wheels.CORE, core)
        archive.writestr("shardmill-1.dist-info/WHEEL", f"Tag: py3-none-{tag or name}\n")
        if extra:
            archive.writestr(extra, "")
    return wheel


BEGINS = {
    "x86_64": b"\x7fELF\x02\x01" + bytes(12) + b"\x3e\x00",
    "aarch64": b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\x00",
    "macosx_11_0_x86_64": b"\xcf\xfa\xed\xfe\x07\x00\x00\x01",
    "macosx_11_0_arm64": b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01",
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_wheel_with_a_core_for_another_machine_is_refused(name: str, tmp_path: Path) -> None:
    right = BEGINS.get(name) or BEGINS[name.split("_", 3 if name.startswith("musl") else 1)[-1]]
    wheels.check(made_wheel(tmp_path, name, right), name, tmp_path)
    for core in set(BEGINS.values()) - {right}:
        with pytest.raises(SystemExit, match="its machine"):
            wheels.check(made_wheel(tmp_path, name, core), name, tmp_path)


@pytest.mark.parametrize(
    ("name", "core", "more", "trouble"),
    [
        ("manylinux2014_x86_64", b"GLIBC_2.28", {}, "glibc 2.28"),
        ("musllinux_1_1_x86_64", b"GLIBC_2.4", {}, "glibc 2.4"),
        ("manylinux2014_x86_64", b"GLIBC_2.17", {"extra": "tests/test_a.py"}, "its files"),
        ("manylinux2014_x86_64", b"", {"tag": "linux_x86_64"}, "its tag"),
    ],
)
def test_a_wheel_that_old_systems_cannot_load_or_that_holds_more_is_refused(
    name: str, core: bytes, more: dict[str, str], trouble: str, tmp_path: Path
) -> None:
    wheel = made_wheel(tmp_path, name, BEGINS["x86_64"] + core, **more)
    with pytest.raises(SystemExit, match=re.escape(trouble)):
        wheels.check(wheel, name, tmp_path)


def test_the_files_that_the_notice_names_are_there() -> None:
    named = re.findall(r"src/[\w./]+\w", (ROOT / "NOTICE").read_text())
    assert named and all((ROOT / name).is_file() for name in named)
