"""The documents table of a dataset: every row says where a document ends, and from where its text came."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.output_formats import FORMATS
from shardmill.tokens import load_tokenizer
from shardmill.write import manifest_json, read_manifest
from tests.corpus import contents, documents
from tests.crashing import crash_everywhere
from tests.shards.readers import read_stream

pytestmark = pytest.mark.thorough

ROW = [("end", "<i8"), ("source", "<i4"), ("record", "<i8"), ("bytes", "<i8")]


def tables(folder: Path) -> dict[str, np.ndarray]:
    """The tables of a dataset, as a user reads them."""
    found = {path.stem: np.load(path) for path in sorted((folder / "documents").iterdir())}
    for split, table in found.items():
        assert table.dtype.descr == ROW
        mapped = np.load(folder / "documents" / f"{split}.npy", mmap_mode="r")
        assert np.array_equal(mapped, table)
    return found


def text_at(source: dict[str, Any], record: int, size: int) -> bytes:
    """The text of a document, read from its source in the slowest way."""
    path = Path(source["name"])
    if source["unit"] == "line":
        return str(json.loads(path.read_bytes().split(b"\n")[record])["text"]).encode()
    if source["unit"] == "row":
        return str(pq.read_table(path)["text"][record].as_py()).encode()
    assert source["unit"] == "byte"
    return path.read_bytes()[record : record + size]


def check_table(out: Path) -> None:
    """Compare every row of every table with the tokens and with the text of its source."""
    manifest = json.loads((out / "manifest.json").read_bytes())
    known, found = load_tokenizer("gpt2"), tables(out)
    assert found.keys() == manifest["splits"].keys()
    for split, described in manifest["splits"].items():
        table = found[split]
        names = [file["name"] for file in described["files"] if not file.get("role")]
        tokens = read_stream(manifest["format"], out, names, manifest["dtype"])
        ends = table["end"].tolist()
        assert ends == sorted(set(ends)) and (ends[-1] if ends else 0) == len(tokens) == described["tokens"]
        if not described.get("dropped"):
            assert table["bytes"].sum() == described["bytes"]
        for start, row in zip([0, *ends], table.tolist(), strict=False):
            end, source, record, size = row
            some = tokens[start:end]
            text = known.decode(some[some != 50256])
            whole = text_at(manifest["sources"][source], record, size or len(text))
            cut = end == len(tokens) or start == 0  # by `--val first:N` or `--tail drop`
            assert text == whole or (cut and text and text in whole)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Lines with rejects, rows, tiny files, a text with its seams."""
    folder, texts = tmp_path_factory.mktemp("sources"), [text for text in documents(300, seed=5) if text]
    lines = [json.dumps({"text": text}) if i % 7 else chance for i, (text, chance) in
             enumerate(zip(texts[:150], ["bad", "", '{"text": ""}', '{"text": null}'] * 50, strict=False))]  # fmt: skip
    (folder / "a.jsonl").write_text("\n".join(lines))
    (folder / "b.jsonl").write_text("\n".join(lines[::-1]))
    pq.write_table(pa.table({"text": [*texts[150:200], None, *texts[200:]]}), folder / "c.parquet", row_group_size=20)
    for i, text in enumerate(texts[:20]):
        (folder / f"d{i}.txt").write_text(text)
    (folder / "e.txt").write_bytes("\n".join(texts * 3).encode())
    return sorted(folder.iterdir())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("val", ["0", "0.2", "first:3k"])
def test_every_document_is_listed_with_its_end_and_its_origin(
    format: str, val: str, sources: list[Path], tmp_path: Path
) -> None:
    shardmill.prepare(sources, tmp_path / "out", format=format, val=val, shard_tokens=5000, max_bad="any")
    check_table(tmp_path / "out")
    assert not verify(tmp_path / "out").damage


@pytest.mark.parametrize("eot", ["after", "before", "none"])
@pytest.mark.parametrize("val", ["0.4", "first:9k", "tail:0.3"])
@pytest.mark.parametrize("separator", [None, "\n"])
def test_text_is_listed_by_the_byte_at_which_a_document_begins(
    eot: str, val: str, separator: str | None, sources: list[Path], tmp_path: Path
) -> None:
    source = tmp_path / "e.txt"
    source.write_bytes(sources[-1].read_bytes() * 12)
    made = []
    for size in (1 << 16, 1 << 22):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shardmill.run.budget.LARGEST", size)
            patch.setattr("shardmill.run.budget.SMALLEST", size)
            out = tmp_path / str(size)
            shardmill.prepare(source, out, val=val, eot=eot, separator=separator, workers=2)
        check_table(out)
        made.append(contents(out))
    assert made[0] == made[1]


@pytest.mark.parametrize("format", ["shards", "megatron"])
def test_a_table_ends_where_tail_drop_ends_the_tokens(format: str, sources: list[Path], tmp_path: Path) -> None:
    formats = [format, *({"shards", "megatron"} - {format})]
    shardmill.prepare(sources, tmp_path / "out", format=formats, val="0.3", shard_tokens=3000, tail="drop",
                      max_bad="any")  # fmt: skip
    check_table(tmp_path / "out")
    assert not verify(tmp_path / "out").damage
    data = {format: shardmill.open(tmp_path / "out", format) for format in formats}
    assert "dropped" in data["shards"]["train"].described
    several = zip(*(one["train"].documents for one in data.values()), strict=False)
    assert all(np.array_equal(*pair) for pair in list(several)[:-1])


def test_formats_with_and_without_eot_share_a_table(sources: list[Path], tmp_path: Path) -> None:
    for first in ("after", "none"):
        out = tmp_path / first
        shardmill.prepare(sources, out, format=["nanogpt"], val="0.3", eot=first, max_bad="any")
        data = shardmill.open(out)
        split = data["val"]
        assert [split.decode(one) for one in split.documents] == [
            split.documents.text(i) for i in range(len(split.documents))
        ]
    texts = [[one.tolist() for one in shardmill.open(tmp_path / first)["val"].documents] for first in ("after", "none")]
    assert texts[0] == texts[1]


def test_a_document_says_where_it_comes_from(sources: list[Path], tmp_path: Path) -> None:
    shardmill.prepare(sources[:1], tmp_path / "out", val="0", max_bad="any")
    documents = shardmill.open(tmp_path / "out")["train"].documents
    origin = documents.origin(0)
    assert origin is not None
    assert (origin.source, origin.unit, origin.record) == (str(sources[0]), "line", 1)
    assert origin.bytes == len(documents.text(0).encode())
    assert str(origin) == f"{sources[0]}, line 2"
    with pytest.raises(IndexError):
        documents.origin(len(documents))


def test_text_from_python_is_listed_by_its_number(tmp_path: Path) -> None:
    texts = ["one", "", "three", "four"]
    shardmill.prepare([{"text": text} for text in texts], tmp_path / "out", val="0")
    (table,) = tables(tmp_path / "out").values()
    assert table["record"].tolist() == [0, 2, 3]
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes())["sources"][0]["unit"] == "document"


def _change_end(table: np.ndarray) -> None:
    table["end"][3] += 1


def _change_order(table: np.ndarray) -> None:
    table["end"][3] = table["end"][5]


def _change_source(table: np.ndarray) -> None:
    table["source"][3] = 99


def _change_bytes(table: np.ndarray) -> None:
    table["bytes"][3] += 1


@pytest.mark.parametrize("change", [_change_end, _change_order, _change_source, _change_bytes])
@pytest.mark.parametrize("eot", ["after", "before"])
def test_verify_finds_a_table_that_does_not_fit_the_tokens(
    change: Any, eot: str, sources: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shardmill.prepare(sources, out, val="0", eot=eot, max_bad="any")
    table = np.load(out / "documents" / "train.npy")
    change(table)
    np.save(out / "documents" / "train.npy", table)
    _forge(out)
    damage = verify(out).damage
    assert damage and all("documents" in one or "EOT" in one for one in damage)


def _forge(out: Path) -> None:
    """Give the manifest the checksum of the changed table."""
    data = (out / "documents" / "train.npy").read_bytes()
    manifest = read_manifest(out)
    manifest["splits"]["train"]["documents_table"] |= {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    (out / "manifest.json").write_bytes(b"".join(manifest_json(manifest)))


def test_a_dataset_without_val_has_one_table(tmp_path: Path) -> None:
    shardmill.prepare([{"text": "text"}], tmp_path / "out", val="0")
    assert [path.name for path in (tmp_path / "out" / "documents").iterdir()] == ["train.npy"]


def test_a_table_that_tail_drop_cuts_is_the_same_after_a_kill_at_any_step(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(300)))
    crash_everywhere(source, tmp_path / "out", every=9, format="shards", shard_tokens=5_000, val=0.2, tail="drop")
    check_table(tmp_path / "out")
