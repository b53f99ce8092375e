"""The places of a source cover it: each record is in one of them, and only there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from shardmill.documents import Reading
from shardmill.sampling import places
from shardmill.sampling.places import SampledSource
from shardmill.sources import find_sources
from shardmill.tokens import load_tokenizer

UNIT = 1 << 13


def texts() -> list[str]:
    """Some hundred documents, empty ones among them and some much longer than a part."""
    rng = np.random.default_rng(5)
    lengths = rng.choice([0, 3, 40, 400, 1500, 9000], 300, p=[0.1, 0.1, 0.3, 0.3, 0.17, 0.03])
    lengths[-1] = 40  # an empty piece after the last separator is no document
    return [" ".join(f"é{word:07x}" for word in rng.integers(0, 1 << 28, length // 10)) for length in lengths.tolist()]


@pytest.mark.parametrize("kind", ["jsonl", "txt", "groups", "pages", "dictionary", "feather", "batch"])
def test_every_record_is_at_exactly_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(places, "UNIT", UNIT)
    made = texts()
    path = tmp_path / f"a.{kind}"
    table = pa.table({"text": made * 4 if kind == "dictionary" else made})
    separator = None
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in made))
    elif kind == "txt":
        separator = b"<|sep|>"
        path.write_text("<|sep|>".join(made))
    elif kind in ("feather", "batch"):
        path = tmp_path / "a.feather"
        pyarrow.feather.write_feather(table, path, chunksize=7 if kind == "feather" else 1000)
    else:
        path = tmp_path / "a.parquet"
        pq.write_table(
            table, path, row_group_size=9 if kind == "groups" else 2000, use_dictionary=kind == "dictionary",
            data_page_size=2000, write_batch_size=4,
        )  # fmt: skip
    (source,) = find_sources([str(path)])
    reading = Reading("text", separator, load_tokenizer("gpt2").cut, largest=1 << 20)
    sampled = SampledSource(0, source, 1_000_000, reading)
    found = list(sampled.places([(i + 0.5) / 3000 for i in range(3000)], 1 << 30))
    assert sampled.error is None and sampled.entered
    assert len(found) > 10
    truth = table.column("text").to_pylist()
    written = [text for text in truth if text]
    assert sum(one.begun for one in found) == len(truth)
    sizes = np.concatenate([lengths for one in found for lengths in one.lengths])
    assert sorted(sizes[sizes > 0].tolist()) == sorted(len(text.encode()) for text in written)
    assert sum(one.text for one in found) == sum(len(text.encode()) for text in truth)
    assert sum(one.stored for one in found) == pytest.approx(1_000_000, rel=0.01)
    all_of_it = source.size if kind in ("jsonl", "txt") else 1_000_000
    assert sum(one.covered for one in found) == pytest.approx(all_of_it, rel=0.01)


@pytest.mark.parametrize("separator", [b"\n", b"<|sep|>", b"\n\n"])
def test_places_of_text_that_meet_at_a_separator_share_its_documents_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: bytes
) -> None:
    made = [f"note {i} says a little" if i % 3 else "ok" for i in range(400)]
    (tmp_path / "a.txt").write_bytes(separator.join(text.encode() for text in made))
    (source,) = find_sources([str(tmp_path / "a.txt")])
    reading = Reading("text", separator, load_tokenizer("gpt2").cut, largest=1 << 20)
    for unit in range(150, 190):
        monkeypatch.setattr(places, "UNIT", unit)
        found = SampledSource(0, source, 1_000_000, reading).places([(i + 0.5) / 1000 for i in range(1000)], 1 << 30)
        assert sum(place.begun for place in found) == len(made), unit
