"""Datasets of known documents in any format, made by the outputs themselves and without reading any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.shards import FORMATS, SPLITS
from shardmill.tokens import load_tokenizer
from tests.shards.driving import Driven

EOT = 50256
TOGETHER = tuple(format for format in FORMATS if format != "litdata")
"""All that can be made in one folder: litData's index has the name of MosaicML's."""


def random_documents(seed: int, count: int = 60, longest: int = 300) -> dict[str, list[np.ndarray]]:
    """For each split some documents of tokens that are not EOT."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, (2, count))
    return {
        split: [random.integers(0, EOT, n).astype(np.uint16) for n in lengths[i][: count if i == 0 else count // 4]]
        for i, split in enumerate(SPLITS)
    }


def with_eot(document: np.ndarray, eot: str, mark: int = EOT) -> np.ndarray:
    end = np.array([mark], document.dtype)
    return np.concatenate({"after": [document, end], "before": [end, document], "none": [document]}[eot])


def make_dataset(format: str, folder: Path, documents: dict[str, list[np.ndarray]], **more: Any) -> Path:
    """Write the files and a manifest; gives the folder."""
    run = Driven(format, folder, tokenizer="gpt2", **more)
    output = run.output
    for split, made in documents.items():
        for document in made:
            tokens = with_eot(document, output.eot)
            output.append(split, tokens, np.array([len(tokens)]))
    run.finish(tuple(documents))
    tokenizer = load_tokenizer("gpt2")
    splits = {
        split: {
            "tokens": sum(w.tokens for s, w in run.files if s == split),
            "documents": len(documents[split]),
            "bytes": sum(len(tokenizer.decode(document)) for document in documents[split]),
            "files": [w.entry() for s, w in run.files if s == split],
        }
        for split in documents
    }
    counted = {"documents": sum(len(made) for made in documents.values()), "empty": 0, "rejected": 0}
    manifest = {
        "shardmill": "0.1.0",
        "fingerprint": "f" * 64,
        "format": format,
        "dtype": str(output.dtype),
        "eot": output.eot,
        "splits": splits,
        "tokenizer": tokenizer.describe(),
        "sources": [{"name": "a.jsonl", "bytes": 0, **counted}],
        **counted,
        "replaced": 0,
        "options": {"tokenizer": "gpt2", "format": [format], "separator": "\n"},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
