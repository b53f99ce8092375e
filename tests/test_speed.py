"""Less memory takes no multiple of the time, and the core is a multiple of tiktoken's speed.

CPU seconds are compared on this machine one after the other, and the factors are wide, so that its speed and load do
not matter.
"""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.tokens import load_tokenizer
from tests.corpus import contents, documents, random_words
from tests.meter import metered

FACTOR = 4.0  # 0.9 to 1.2 is usual
FASTER = 2.0  # 6 to 8 is usual for text that is new


def _write(path: Path, texts: list[str], **settings: object) -> None:
    pq.write_table(pa.table({"text": texts}), path, **settings)


def _cut(size: int, length: int) -> list[str]:
    words = random_words(size).decode()
    return [words[start : start + length] for start in range(0, size, length)]


def _repeated(path: Path) -> None:
    """Values that a dictionary holds once and the text 39 times."""
    _write(path, [random_words(20_000, seed=i % 49).decode() for i in range(1900)])


def _long_first(path: Path) -> None:
    texts = _cut(22_000_000, 2500)
    _write(path, ["".join(texts[:900]), *texts], row_group_size=3000)


def _one_page(path: Path) -> None:
    _write(path, _cut(60_000_000, 3000), row_group_size=1 << 30, data_page_size=1 << 30, use_dictionary=False)


def _dictionary(path: Path) -> None:
    _write(path, _cut(55_000_000, 3000) * 2, row_group_size=1 << 30, dictionary_pagesize_limit=1 << 30)


def _rejects(path: Path) -> None:
    path.write_bytes(b"x\n" * 500_000)


SHAPES: dict[str, Callable[[Path], None]] = {
    "repeated.parquet": _repeated,
    "long-first.parquet": _long_first,
    "rejects.jsonl": _rejects,
    "one-page.parquet": _one_page,
    "dictionary.parquet": _dictionary,
}
QUICK = ("repeated.parquet",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SHAPES])
def test_with_the_least_memory_a_run_takes_no_multiple_of_the_time(tmp_path: Path, name: str) -> None:
    SHAPES[name](tmp_path / name)
    little = _seconds(tmp_path, name, "330MB")
    much = _seconds(tmp_path, name, "1GB")
    assert little < FACTOR * much, f"{little:.1f} s of CPU with little memory, {much:.1f} with much"
    assert much < FACTOR * little, f"{much:.1f} s of CPU with much memory, {little:.1f} with little"
    assert contents(tmp_path / "330MB") == contents(tmp_path / "1GB")


def test_the_core_is_several_times_as_fast_as_tiktoken_in_the_same_process() -> None:
    tokenizer = shardmill.tokenizer("gpt2")
    encode = load_tokenizer("gpt2").reference()
    texts = documents(4_000, seed=5)
    tokenizer.encode(texts[0]), encode(texts[0])  # so that both have their tables
    started = time.process_time()
    ours = tokenizer.encode_batch(texts)
    between = time.process_time()
    theirs = [encode(text) for text in texts]
    ended = time.process_time()
    assert [one.tolist() for one in ours] == theirs
    assert ended - between > FASTER * (between - started), f"{between - started:.3f} s, tiktoken {ended - between:.3f}"


def _seconds(folder: Path, name: str, memory: str) -> float:
    """CPU seconds of a run with this memory, or with that which it names in place of it."""
    out = folder / memory
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = metered(
            "prepare", folder / name, "-o", out, "--memory", memory, "--workers", 2, "--max-bad", "any", "-q"
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.code == 0:
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        named = re.search(r"`--memory (\d+MB)`", done.err)
        assert named, done.err
        memory = named[1]
    raise AssertionError(f"the memory that it names does not suffice: {done.err}")
