"""Whether the tokens that a way wrote are those of tiktoken on whole documents."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tiktoken

from benchmarks.corpus import Corpus

EOT = 50256
TAIL = 64
"""Tokens at the end of a joined text that may change when text follows."""


class Oracle:
    """tiktoken's tokens for the documents of a corpus, with which larger corpora begin."""

    def __init__(self, corpus: Corpus) -> None:
        encoding = tiktoken.get_encoding("gpt2")
        texts = list(corpus.documents())
        self.documents = [np.array(encoding.encode_ordinary(text), dtype=np.uint16) for text in texts]
        joined = encoding.encode_ordinary("\n\n".join(texts))[:-TAIL]
        self.joined = np.array(joined, dtype=np.uint16)

    def stream(self, eot: str) -> np.ndarray:
        if eot == "joined":
            return self.joined
        mark = np.array([EOT], dtype=np.uint16)
        before, after = [mark] * (eot == "before"), [mark] * (eot == "after")
        return np.concatenate([part for tokens in self.documents for part in (*before, tokens, *after)])

    def judge(self, out: Path, eot: str) -> str:
        """`equal`, `equal, in another order`, or what is wrong."""
        expected = self.stream(eot)
        written = np.concatenate([np.empty(0, dtype=np.uint16), *_parts(out, len(expected))])
        if len(written) < len(expected):
            return f"no: {len(written):,} tokens, at least {len(expected):,} are right"
        begin = written[: len(expected)]
        if np.array_equal(begin, expected):
            return "equal"
        if eot in ("after", "before") and _documents(written) == Counter(t.tobytes() for t in self.documents):
            return "equal, in another order"
        return f"no: first difference at token {np.argmax(begin != expected):,}"


def digest(out: Path) -> tuple[int, str]:
    """How many tokens a way wrote, and the sha256 of them all."""
    total, sha = 0, hashlib.sha256()
    for tokens in _files(out):
        for start in range(0, len(tokens), 1 << 22):
            sha.update(np.ascontiguousarray(tokens[start : start + (1 << 22)]).tobytes())
        total += len(tokens)
    return total, sha.hexdigest()


def _files(out: Path) -> Iterator[np.ndarray]:
    for path in sorted(out.rglob("*")):
        if path.parent.name == "documents":  # tables, not tokens
            continue
        if path.suffix == ".npy":
            yield np.load(path, mmap_mode="r")
        elif path.suffix in (".bin", ".ds") and path.stat().st_size:
            yield np.memmap(path, dtype=np.uint16, mode="r")


def _parts(out: Path, wanted: int) -> Iterator[np.ndarray]:
    """The tokens in order, whole files, until there are enough."""
    held = 0
    for tokens in _files(out):
        yield tokens
        held += len(tokens)
        if held >= wanted:
            return


def _documents(tokens: np.ndarray) -> Counter[bytes]:
    parts = (part[part != EOT] for part in np.split(tokens, np.flatnonzero(tokens == EOT)))
    return Counter(part.tobytes() for part in parts if len(part))
