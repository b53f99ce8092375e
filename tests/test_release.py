"""The way to a release: one version, and workflows that call what there is."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import shardmill

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
