"""The other tools, from PyPI into an environment of their own, and GPT-2's vocabulary where they look for it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.containers import CACHE
from shardmill.tokens.rank_files import gpt2_ranks

PEERS = Path(__file__).parent / "peers"
VENV = CACHE / "venv"
PYTHON = VENV / "bin" / "python"
VOCABULARY = CACHE / "vocabulary"
NAMES = ("shardmill", "pyarrow", "numpy", "isal", "tiktoken")


def prepare() -> dict[str, str]:
    """Make the environment and the vocabulary if they are not there; gives what the ways need in theirs."""
    wanted = (PEERS / "requirements.txt").read_text()
    stamp = VENV / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing the other tools into {VENV} …", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(PEERS / "requirements.txt")], check=True)
        stamp.write_text(wanted)
    if not (VOCABULARY / "tokenizer.json").exists():
        subprocess.run([str(PYTHON), str(PEERS / "vocabulary.py"), str(VOCABULARY)], check=True)
    return {
        "TIKTOKEN_CACHE_DIR": str(VOCABULARY),
        "BENCHMARK_VOCABULARY": str(VOCABULARY),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def ranks() -> dict[str, str]:
    """GPT-2's rank file out of shardmill, for what runs without the other tools; gives what it needs to find it."""
    path = VOCABULARY / "gpt2.tiktoken"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gpt2_ranks())
    return {"BENCHMARK_VOCABULARY": str(VOCABULARY)}


def versions() -> dict[str, dict[str, str]]:
    """What is installed here and in the peers' environment."""
    names = "datasets datatrove gigatoken numpy tiktoken tokenizers".split()
    ask = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    asked = subprocess.run([str(PYTHON), "-c", ask], check=True, capture_output=True, text=True)
    return {"shardmill": ours(), "peers": json.loads(asked.stdout)}


def ours() -> dict[str, str]:
    """Versions in the environment that shardmill runs in."""
    found = {}
    for name in NAMES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {"python": sys.version.split()[0], **found}
