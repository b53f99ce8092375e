"""No memory left while a source is read: said as that, never as damage of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from shardmill.storage import feeds
from tests.documents.twin import read_path

TABLE = pa.table({"text": [f"text {i}" for i in range(100)]})
FILES = {
    "a.parquet": lambda path: pq.write_table(TABLE, path),
    "a.arrow": lambda path: pa.feather.write_feather(TABLE, path, compression="uncompressed"),
    "a.csv": lambda path: path.write_text("text\n" + "\n".join(TABLE["text"].to_pylist())),
    "a.jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist())),
    "a.txt": lambda path: path.write_text("some text"),
}


@pytest.mark.parametrize("error", [MemoryError, pa.ArrowMemoryError])
@pytest.mark.parametrize("after", [1, 2, 4])
@pytest.mark.parametrize("name", FILES)
def test_a_read_that_finds_no_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int, error: type[BaseException]
) -> None:
    path, calls, read = tmp_path / name, [], feeds.FileFeed.read
    FILES[name](path)

    def full(self: Any, *where: int) -> bytes:
        calls.append(where)
        if len(calls) > after:
            raise error
        return read(self, *where)

    monkeypatch.setattr(feeds.FileFeed, "read", full)
    try:
        read_path(path, 100)
    except MemoryError:
        assert len(calls) > after
    else:
        assert len(calls) <= after  # all of it was read before
