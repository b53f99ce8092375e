"""Completion in real shells, generated from the commands themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardmill.cli import shardmill as command

ASK = {
    "bash": """
eval "$(shardmill completion bash)"
COMP_WORDS=({words}) COMP_CWORD=$(({count} - 1))
_shardmill_completion shardmill
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    # zsh completes only at a prompt: what the function hands to zsh's own completion is printed in its place.
    "zsh": """
compdef() {{ }}
_describe() {{ local name=${{@[-2]}}; printf '%s\\n' ${{(P)name}} }}
compadd() {{ local name=${{@[-1]}}; printf '%s\\n' ${{(P)name}} }}
_path_files() {{ printf 'files\\n' }}
eval "$(shardmill completion zsh)"
words=({words}) CURRENT={count}
_shardmill_completion
""",
    "fish": """
shardmill completion fish | source
complete -C "{line}"
""",
}


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the command `shardmill`, of this tree, and some names to complete."""
    folder = tmp_path_factory.mktemp("shells")
    program = folder / "shardmill"
    program.write_text(f"#!/bin/sh\nPYTHONPATH='{':'.join(sys.path)}' exec {sys.executable} -m shardmill \"$@\"\n")
    program.chmod(0o755)
    return folder


def complete(shell: str, shells: Path, line: str) -> set[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = [*line.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    script = ASK[shell].format(words=quoted, count=len(words), line=line)
    environment = {**os.environ, "PATH": f"{shells}:{os.environ['PATH']}", "HOME": str(shells)}
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *bare, "-c", script], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return {word for shown in done.stdout.split("\n") for word in [shown.split("\t")[0].split(":")[0].strip()] if word}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_values_are_completed(shell: str, shells: Path) -> None:
    assert {"prepare", "plan"} & complete(shell, shells, "shardmill p") == {"plan", "prepare"}
    assert {"--separator", "--seed"} <= complete(shell, shells, "shardmill prepare --se")
    assert {"nanogpt", "npy"} <= complete(shell, shells, "shardmill prepare -f n")
    assert "gpt2" in complete(shell, shells, "shardmill prepare -t gp")


def test_every_shell_gets_a_script_and_any_other_is_refused_with_the_ones_there_are() -> None:
    for shell in ("bash", "zsh", "fish"):
        done = CliRunner().invoke(command, ["completion", shell])
        assert done.exit_code == 0 and "_SHARDMILL_COMPLETE" in done.stdout
    assert CliRunner().invoke(command, ["completion", "tcsh"]).exit_code == 2
