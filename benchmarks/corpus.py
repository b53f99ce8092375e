"""The documents that a benchmark runs on: text of your own, or text made here when there is none."""

from __future__ import annotations

import io
import json
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("english", "code", "chinese", "random")
SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Corpus:
    """Documents of about `size` bytes of UTF-8 in all, the same ones each time they are asked for."""

    kind: str
    size: int | None
    """None: all that the input holds, once."""
    source: Path | None = None

    @property
    def key(self) -> str:
        """Names what was made of this, for the cache."""
        if self.source is None:
            return f"made-{self.kind}-{self.size}"
        newest = max(path.stat().st_mtime_ns for path in _files(self.source))
        return f"{self.source.name.split('.')[0]}-{newest:x}-{self.size or 'all'}"

    def documents(self) -> Iterator[str]:
        left = sys.maxsize if self.size is None else self.size
        while left > 0:
            before = left
            for text in _read(self.source) if self.source else MAKERS[self.kind]():
                # A document that holds the separator would be two documents in one container and one in another.
                if not text or SEPARATOR in text:
                    continue
                yield text
                left -= len(text.encode())
                if left <= 0:
                    return
            if self.size is None:
                return
            if left == before:
                raise SystemExit(f"error: no text was found in {self.source}")

    def counted(self) -> Corpus:
        """The same documents, the size known: a part of a corpus without one would be filled up by repeating it."""
        if self.size is not None:
            return self
        return Corpus(self.kind, sum(len(text.encode()) for text in self.documents()), self.source)

    def describe(self, size: int) -> str:
        """What the reader of a result must know of this text, `size` being its bytes."""
        if self.source is None:
            return MADE[self.kind]
        held = sum(len(text.encode()) for text in _read(self.source))
        times = f", repeated {size / held:.1f} times, which flatters caches" if size > held * 1.01 else ""
        return f"{self.source.name}{times}"


def _files(path: Path) -> list[Path]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise SystemExit(f"error: there is no file at {path}")
    return files


def _read(path: Path) -> Iterator[str]:
    for file in _files(path):
        if file.suffix == ".parquet":
            for batch in pq.ParquetFile(file).iter_batches(columns=["text"]):
                yield from (text for text in batch.column(0).to_pylist() if text)
            continue
        with pa.input_stream(file, compression="detect") as raw:
            lines = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="")
            if {".jsonl", ".json"} & set(file.suffixes):
                for line in lines:
                    if line.strip():
                        yield json.loads(line)["text"]
            else:
                yield from _paragraphs(lines)


def _paragraphs(lines: io.TextIOWrapper, least: int = 4000) -> Iterator[str]:
    """A text file has no documents of its own, so it is cut at line ends into pieces of the usual size of one."""
    piece: list[str] = []
    held = 0
    for line in lines:
        piece.append(line)
        held += len(line)
        if held >= least:
            yield "".join(piece)
            piece, held = [], 0
    if piece:
        yield "".join(piece)


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        try:
            yield path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue


def _english() -> Iterator[str]:
    """Words as often as they stand in the standard library's sources, one in eighty new."""
    counts: Counter[str] = Counter()
    for text in _sources():
        counts.update(word for word in text.split() if word.isalpha() and word.isascii())
    words = [word for word, _ in counts.most_common(40_000)]
    share = np.array([counts[word] for word in words], dtype=np.float64)
    rng = np.random.default_rng(0)
    while True:
        lengths = np.maximum(rng.lognormal(5.8, 1.0, 1000).astype(int), 5)
        drawn = rng.choice(len(words), size=int(lengths.sum()), p=share / share.sum())
        chosen = [words[i] for i in drawn.tolist()]
        for i in rng.integers(0, len(chosen), len(chosen) // 80).tolist():
            chosen[i] = _new_word(rng)
        ends = np.cumsum(lengths).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            yield _sentences(chosen[start:end])


def _new_word(rng: np.random.Generator) -> str:
    syllables = "an ber cor di el fen gra hol in jo ka lor mi nu os pra qui ren sta tor ul vex wen yth zo".split()
    return "".join(syllables[i] for i in rng.integers(0, len(syllables), rng.integers(2, 5)).tolist())


def _sentences(words: list[str]) -> str:
    lines = (" ".join(words[i : i + 14]).capitalize() + "." for i in range(0, len(words), 14))
    return "\n\n".join(lines)


def _chinese() -> Iterator[str]:
    rng = np.random.default_rng(1)
    characters = rng.permutation(np.arange(0x4E00, 0x9FA5))[:4000]
    share = 1 / np.arange(1, 4001)
    while True:
        drawn = rng.choice(characters, size=200_000, p=share / share.sum())
        drawn[rng.integers(0, len(drawn), len(drawn) // 12)] = ord("，")
        drawn[rng.integers(0, len(drawn), len(drawn) // 30)] = ord("。")
        text = "".join(map(chr, drawn.tolist()))
        yield from (text[i : i + 1000] for i in range(0, len(text), 1000))


def _random() -> Iterator[str]:
    rng = np.random.default_rng(2)
    while True:
        letters = rng.integers(97, 123, 4_000_000, dtype=np.uint8)
        letters[rng.integers(0, len(letters), len(letters) // 9)] = 32
        text = letters.tobytes().decode()
        yield from (text[i : i + 4000] for i in range(0, len(text), 4000))


MAKERS = {"english": _english, "code": _sources, "chinese": _chinese, "random": _random}
MADE = {
    "english": "made here: words of the standard library's sources at their frequencies, one in eighty new",
    "code": "the sources of Python's standard library, repeated where there are not enough, which flatters caches",
    "chinese": "made here: 4,000 Chinese characters by Zipf's law, with punctuation",
    "random": "made here: random letters, so that nearly every word is new",
}
