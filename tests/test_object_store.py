"""Output to object stores: the same bytes as on a disk, whole or not at all, from whatever machine."""

from __future__ import annotations

import pytest

import shardmill
from shardmill.options import FORMATS
from tests.corpus import contents, documents, write_jsonl
from tests.object_store import bucket, s3_server

__all__ = ["bucket", "s3_server"]


@pytest.mark.parametrize("form", [*FORMATS, FORMATS])
def test_every_format_gives_the_objects_that_a_disk_would_have_as_files(tmp_path, bucket, form):
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    with source.open("a") as file:
        file.write("not json\n")
    options = {"format": form, "val": 0.2, "shard_tokens": 9_000}
    shardmill.prepare(source, tmp_path / "out", **options)
    result = shardmill.prepare(source, bucket.url(), **options)
    assert result.out == bucket.url()
    assert bucket.contents() == contents(tmp_path / "out")
    assert "rejects.jsonl" in bucket.contents()
    assert [name for name in bucket.names() if name.startswith(".shardmill/")] == [".shardmill/plan.json"]
    assert bucket.uploads() == []
