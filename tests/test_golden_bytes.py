"""The bytes of finished datasets, by hash: what was right before a change of the code is the same after it.

The hashes stand in `golden_bytes.json`. `python -m tests.test_golden_bytes` makes them anew; that is right only
where the changelog says why the bytes of a dataset have changed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import shardmill
from tests.corpus import documents
from tests.test_prepare import KINDS
from tests.tokens.vocabularies import json_folder, package, rank_file

GOLDEN = Path(__file__).with_name("golden_bytes.json")
OUTPUTS = ("nanogpt", "shards", "npy", "llmc", "megatron", "datatrove", "mds")
TOKENIZERS = ("gpt2", "cl100k", "gpt2-json", "qwen2-json", "sentencepiece")
VALS = {"none": "0", "fraction": "0.2", "first": "first:5k", "tail": "tail:0.1"}
CASES = [
    *[f"{kind} {output} gpt2 fraction" for kind in KINDS for output in OUTPUTS],
    *[f"{kind} shards {name} fraction" for kind in ("text.txt", "lines.jsonl") for name in TOKENIZERS[1:]],
    *[f"{kind} shards gpt2 {val}" for kind in ("text.txt", "spans.txt") for val in VALS],
    *[f"lines.jsonl shards gpt2 {val}" for val in ("none", "first")],
    *[f"text.txt {output} gpt2-json first" for output in OUTPUTS],
]


def _tokenizer(name: str) -> str:
    if name == "cl100k":
        return str(rank_file("cl100k_base.tiktoken"))
    if name == "sentencepiece":
        return str(package("mistral_common") / "data" / "mistral_instruct_tokenizer_240216.model.v2")
    return str(json_folder(name)) if name.endswith("-json") else name


def made(case: str, folder: Path) -> str:
    """One hash over the names and bytes of all token files of a dataset, and the manifest's counts."""
    kind, output, tokenizer, val = case.split()
    spans = kind == "spans.txt"
    source = folder / kind
    source.write_bytes(KINDS["text.txt" if spans else kind](documents(400, seed=11)) * (8 if spans else 1))
    options: dict[str, Any] = {"separator": r"\x1e"} if kind == "text.txt" else {}
    out = folder / "out"
    shardmill.prepare(
        source, out, format=output, tokenizer=_tokenizer(tokenizer), val=VALS[val], shard_tokens=6000, name="x",
        workers=1, **options,
    )  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_bytes())
    digest = hashlib.sha256()
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.name != "manifest.json" and not {".shardmill", "documents"} & set(path.parts):
            digest.update(f"{path.relative_to(out).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    for split in manifest["splits"].values():
        del split["documents_table"]
    counts = {key: manifest[key] for key in ("format", "dtype", "eot", "splits", "documents", "empty", "rejected")}
    digest.update(json.dumps(counts, sort_keys=True).encode())
    return digest.hexdigest()


@pytest.mark.parametrize("case", CASES)
def test_a_dataset_has_the_bytes_that_it_always_had(case: str, tmp_path: Path) -> None:
    assert made(case, tmp_path) == json.loads(GOLDEN.read_text())[case]


if __name__ == "__main__":
    found = {}
    for wanted in CASES:
        with tempfile.TemporaryDirectory() as place:
            try:
                found[wanted] = made(wanted, Path(place))
            except shardmill.ShardmillError as why:
                sys.stderr.write(f"{wanted}: {why}\n")
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
