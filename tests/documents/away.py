"""For tests of remote sources: the same files in every format, and a client that knows this machine's hub only."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import shardmill
from tests.corpus import contents, documents
from tests.hub import Hub
from tests.hub_answers import TOKEN

QUICK = {
    "SHARDMILL_PAUSE": "0.02",
    "SHARDMILL_LONGEST_PAUSE": "0.1",
    "SHARDMILL_TIMEOUT": "2.5",
    "SHARDMILL_RETRY_SECONDS": "30",
    "SHARDMILL_TRIES": "4",
}
REPO = "someone/web"


def point_at(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    """Make the hub's client in this process speak to this hub, with little patience."""
    from huggingface_hub import constants

    for name, value in {**hub.environment, **QUICK}.items():
        patch.setenv(name, value)
    patch.setattr(constants, "ENDPOINT", hub.url)


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)).encode()


@cache
def lines() -> bytes:
    """JSON Lines that take several requests; made when a test asks for them."""
    return jsonl(documents(30000))


def parquet(path: Path, texts: list[str], rows: int = 500, **more: object) -> bytes:
    """With a column beside the text that is larger than it."""
    table = pa.table({"id": range(len(texts)), "junk": [f"{i:0100}" * 20 for i in range(len(texts))], "text": texts})
    pq.write_table(table, path, row_group_size=rows, compression="none", **more)
    return path.read_bytes()


def every_format(folder: Path, count: int = 4000) -> dict[str, bytes]:
    """Files of a few megabytes in all, one in each format and compression."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = jsonl(documents(count, seed=1))
    text = "\n\n".join(documents(count, seed=2)).encode()
    made = {
        "a.jsonl": lines,
        "b.txt": text,
        "c.jsonl.gz": gzip.compress(lines, 1),
        "d.txt.zst": zstandard.compress(text, 1),
        "e.jsonl.bz2": bz2.compress(lines, 1),
        "f.txt.xz": lzma.compress(text, preset=0),
        "g.parquet": parquet(folder / "g.parquet", documents(count, seed=3)),
        "h.csv": b"id,text\n" + b"".join(b'%d,"row %d of the table"\n' % (i, i) for i in range(count)),
        "i.arrow": arrow(documents(count, seed=4)),
        "j.txt": b"",
        "k.jsonl": jsonl(["one small file"]),
    }
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return made


def arrow(texts: list[str]) -> bytes:
    table = pa.table({"text": texts})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return sink.getvalue().to_pybytes()


def prepared(source: object, out: Path, **options: Any) -> dict[str, bytes]:
    """The files of a dataset, the manifest without what names its sources."""
    shardmill.prepare(source, out, **{"memory": "6GB", "name": "web", **options})
    return made_of(out)


def made_of(out: Path) -> dict[str, bytes]:
    found = contents(out)
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["fingerprint"], manifest["sha256"]
    for source in manifest["sources"]:
        del source["name"]
    return {**found, "manifest": json.dumps(manifest).encode()}


def assert_no_secret(folder: Path, *more: str) -> None:
    """No file below the folder holds a token, a signature or a password."""
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for secret in (TOKEN, "X-Amz-Signature", *more):
                assert secret.encode() not in data, f"{secret} stands in {path}"
