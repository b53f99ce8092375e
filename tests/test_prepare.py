"""The main job from outside: every kind of source in, exactly the reference's tokens out."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard

import shardmill
from shardmill.errors import UsageError
from shardmill.tokens import load_tokenizer
from tests.corpus import HARD, contents, documents, write_jsonl
from tests.meter import SHARDMILL
from tests.reference import check, twin

EOT = 50256


def _text(texts: list[str]) -> bytes:
    return "\x1e".join(texts).encode()


def _jsonl(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": t}, ensure_ascii=i % 2 == 0).encode() + b"\n" for i, t in enumerate(texts))


def _csv(texts: list[str], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerow(["id", "text"])
    # The standard library's csv cannot write NUL, and Arrow's reader takes a lone CR for the end of a row.
    writer.writerows([i, t.replace("\x00", "")] for i, t in enumerate(texts))
    return file.getvalue().encode()


def _parquet(texts: list[str], kind: pa.DataType | None = None, **options: object) -> bytes:
    sink = io.BytesIO()
    kind = kind or pa.string()
    column = pa.array([t.encode() if pa.types.is_binary(kind) else t for t in texts])
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": column.cast(kind)}), sink, **options)
    return sink.getvalue()


def _arrow(texts: list[str], stream: bool = False) -> bytes:
    sink, table = io.BytesIO(), pa.table({"text": texts})
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return sink.getvalue()


def _feather(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pyarrow.feather.write_feather(pa.table({"text": texts}), sink, compression="zstd")
    return sink.getvalue()


KINDS = {
    "text.txt": _text,
    "lines.jsonl": _jsonl,
    "table.csv": _csv,
    "table.tsv": lambda texts: _csv(texts, "\t"),
    "string.parquet": _parquet,
    "large.parquet": lambda texts: _parquet(texts, pa.large_string(), compression="zstd", row_group_size=37),
    "binary.parquet": lambda texts: _parquet(texts, pa.binary(), compression="none"),
    "dictionary.parquet": lambda texts: _parquet(texts, pa.dictionary(pa.int32(), pa.string())),
    "file.arrow": _arrow,
    "stream.arrow": lambda texts: _arrow(texts, stream=True),
    "file.feather": _feather,
}
PACKINGS = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]),
    ".zst": lambda data: b"".join(zstandard.compress(data[i : i + 20_000]) for i in range(0, len(data), 20_000)),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_gives_the_tokens_of_the_reference(tmp_path: Path, kind: str, packing: str) -> None:
    if packing and ("parquet" in kind or kind in ("file.arrow", "file.feather")):
        return  # these compress inside; that a packed one is refused is shown with the readers
    source = tmp_path / (kind + packing)
    source.write_bytes(PACKINGS[packing](KINDS[kind](documents(300, seed=5))))
    shardmill.prepare(source, tmp_path / "out", val=0.3, separator="\x1e", shard_tokens=1000)
    manifest = check(tmp_path / "out", twin(source, separator="\x1e"))
    assert manifest["splits"]["val"]["documents"] > 50


def test_a_folder_is_read_in_sorted_order_whatever_its_files_are(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    write_jsonl(folder / "b.jsonl", documents(40, 1))
    write_jsonl(folder / "a.jsonl", documents(40, 2))
    (folder / "deep" / "c.parquet").write_bytes(_parquet(documents(40, 3)))
    (folder / ".hidden.jsonl").write_text("not json")
    result = shardmill.prepare(folder, tmp_path / "out", val=0)
    check(tmp_path / "out", twin([folder / "a.jsonl", folder / "b.jsonl", folder / "deep" / "c.parquet"]))
    assert [Path(s["name"]).name for s in result.manifest["sources"]] == ["a.jsonl", "b.jsonl", "c.parquet"]


def test_a_glob_and_several_sources_keep_their_order(tmp_path: Path) -> None:
    for name in ("x2.jsonl", "x1.jsonl", "y.jsonl"):
        write_jsonl(tmp_path / name, documents(30, len(name)))
    shardmill.prepare([tmp_path / "y.jsonl", tmp_path / "x*.jsonl"], tmp_path / "out", val=0)
    check(tmp_path / "out", twin([tmp_path / name for name in ("y.jsonl", "x1.jsonl", "x2.jsonl")]))


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_standard_input_is_a_source(tmp_path: Path, packing: str) -> None:
    data = PACKINGS[packing](_jsonl(documents(300)))
    command = [*SHARDMILL, "prepare", "-", "-o", str(tmp_path / "out"), "--val", "0", "-q", "--input-format", "jsonl"]
    subprocess.run(command, input=data, check=True)
    (tmp_path / f"a.jsonl{packing}").write_bytes(data)
    check(tmp_path / "out", twin(tmp_path / f"a.jsonl{packing}"))


@pytest.mark.parametrize("eot", ["after", "before", "none"])
def test_eot_stands_where_it_is_wanted_and_nowhere_else(tmp_path: Path, eot: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*HARD, "", *HARD])
    shardmill.prepare(source, tmp_path / "out", val=0.4, eot=eot)
    manifest = check(tmp_path / "out", twin(source), eot=eot)
    tokens = np.concatenate([np.fromfile(tmp_path / "out" / f"{s}.bin", np.uint16) for s in ("train", "val")])
    assert np.count_nonzero(tokens == EOT) == (0 if eot == "none" else 2 * len(HARD))
    assert manifest["empty"] == 1


def test_shards_are_equal_and_together_they_are_what_nanogpt_reads(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(800))
    shardmill.prepare(source, tmp_path / "one", val=0.2)
    result = shardmill.prepare(source, tmp_path / "many", val=0.2, format="shards", shard_tokens=7000)
    for split in ("train", "val"):
        shards = sorted((tmp_path / "many").glob(f"{split}_*.bin"))
        assert [shard.name for shard in shards] == [f["name"] for f in result.manifest["splits"][split]["files"]]
        assert len(shards) > 1
        assert {shard.stat().st_size for shard in shards[:-1]} == {14_000}
        assert b"".join(shard.read_bytes() for shard in shards) == (tmp_path / "one" / f"{split}.bin").read_bytes()


def test_a_document_of_three_and_a_half_shards_lies_across_four(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["word " * 3499 + "end"])
    result = shardmill.prepare(source, tmp_path / "out", format="shards", shard_tokens=1000, val=0, eot="none")
    assert [f["tokens"] for f in result.manifest["splits"]["train"]["files"]] == [1000, 1000, 1000, 500]


@pytest.mark.parametrize("separator", ["<|endoftext|>", "\\n\\n", "\\n"])
@pytest.mark.parametrize("specials", ["text", "parse"])
def test_documents_that_are_left_where_they_stand_are_those_of_the_reference(
    tmp_path: Path, separator: str, specials: str
) -> None:
    plain = separator.replace("\\n", "\n")
    disorder = random.Random(separator)
    words = ["the", " quick", "\n", "  ", " ʕ•ᴥ•ʔ", " 中文", "'s", " 1234", plain[:1], "\n\n\n", "<|end", " é"]
    texts = ["".join(disorder.choices(words, k=disorder.randint(0, 60))) for _ in range(3_000)]
    path = tmp_path / "a.txt"
    path.write_text(plain.join(texts), encoding="utf-8", newline="")
    (tmp_path / "b.txt").write_text(plain.join(["one", "two", "", "three"]) + plain, encoding="utf-8", newline="")
    sources = [path, tmp_path / "b.txt"]
    shardmill.prepare(sources, tmp_path / "out", separator=separator, specials=specials, val="0.2")
    check(tmp_path / "out", twin(sources, separator=plain))


@pytest.mark.parametrize("limit", ["17", "5k tokens"])
def test_a_limit_is_exact_whatever_the_chunks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(1500))
    made = []
    for chunk in (1 << 16, 1 << 22):
        monkeypatch.setattr("shardmill.run.budget.LARGEST", chunk)
        monkeypatch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
        result = shardmill.prepare(source, tmp_path / str(chunk), val=0, limit=limit)
        made.append(contents(tmp_path / str(chunk)))
    assert made[0] == made[1]
    tokens = np.fromfile(tmp_path / str(chunk) / "train.bin", np.uint16)
    assert np.array_equal(tokens, twin(source).stream()[: len(tokens)])
    assert result.manifest["documents"] == 17 or 5000 <= len(tokens) < 5300


@pytest.mark.parametrize("options", [{"separator": "\n"}, {"separator": "\n", "input_format": "text"}, {}])
@pytest.mark.parametrize("limit", ["40", "5k tokens"])
def test_what_is_replaced_is_counted_as_far_as_a_limit_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, options: dict[str, Any]
) -> None:
    """One line in three is invalid, and some hold what others become, across the ends of rows too."""
    line = b"some bytes \xff of a line, \xef\xbf\xbd as it is, \xe2\x82 and more\xef\xbf\n\xbdwords\nplain\n"
    source = tmp_path / "a.txt"
    source.write_bytes(line * 20_000)
    made = []
    for chunk in (1 << 16, 1 << 22):
        monkeypatch.setattr("shardmill.run.budget.LARGEST", chunk)
        monkeypatch.setattr("shardmill.run.budget.SMALLEST", 1 << 16)
        result = shardmill.prepare(source, tmp_path / str(chunk), val=0, limit=limit, max_bad="any", **options)
        made.append(contents(tmp_path / str(chunk)))
    assert made[0] == made[1]
    if options and limit == "40":
        # Of the first 40 lines 14 begin with "some" and have three, 13 with an odd byte.
        assert result.replaced == 14 * 3 + 13


def test_a_bom_is_dropped_utf_16_is_read_and_invalid_utf_8_is_replaced_and_counted(tmp_path: Path) -> None:
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfafter a BOM")
    (tmp_path / "utf16.txt").write_bytes("sixteen bits, ünïcödé 😀".encode("utf-16"))
    (tmp_path / "bad.txt").write_bytes(b"bad \xff\xfe here \xe2\x82 and \xf0\x9f\x98 there")
    names = ["bad.txt", "bom.txt", "utf16.txt"]
    result = shardmill.prepare([tmp_path / name for name in names], tmp_path / "out", val=0)
    check(tmp_path / "out", twin([tmp_path / name for name in names]))
    assert result.replaced == 4


def test_nested_fields_and_many_tiny_files_work(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(500):
        (folder / f"{i:04}.jsonl").write_text(json.dumps({"a": {"b": f"tiny file {i}"}}) + "\n")
    (folder / "empty.jsonl").touch()
    result = shardmill.prepare(folder, tmp_path / "out", val=0, text_field="a.b")
    check(tmp_path / "out", twin(folder, text_field="a.b"))
    assert len(result.manifest["sources"]) == 501
    assert sum(source["documents"] for source in result.manifest["sources"]) == 500


def test_a_document_far_larger_than_a_chunk_is_exact(tmp_path: Path, small_chunks: None) -> None:
    large = " ".join(documents(2000, seed=3))
    source = tmp_path / "a.txt"
    source.write_text("before\x1e" + large + "\x1eafter\x1e" + "漢字。" * 50_000 + "\x1e" + "x" * 300_000 + "\x1eend")
    for workers in (1, 3):
        shardmill.prepare(source, tmp_path / str(workers), val=0.5, separator="\x1e", workers=workers)
        check(tmp_path / str(workers), twin(source, separator="\x1e"))
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_several_formats_come_from_one_pass_and_stand_side_by_side(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    result = shardmill.prepare(source, tmp_path / "out", format=["nanogpt", "shards"], val=0.2, shard_tokens=5000)
    check(tmp_path / "out", twin(source))
    shards = sorted((tmp_path / "out").glob("train_*.bin"))
    assert b"".join(s.read_bytes() for s in shards) == (tmp_path / "out" / "train.bin").read_bytes()
    assert result.manifest["also"][0]["format"] == "shards"


def test_many_tiny_documents_take_no_memory_that_grows_with_their_number(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(b"a\n" * 3_000_000)
    result = shardmill.prepare(source, tmp_path / "out", separator="\n", val=0)
    assert result.manifest["documents"] == 3_000_000
    tokens = np.fromfile(tmp_path / "out" / "train.bin", np.uint16)
    assert np.array_equal(np.unique(tokens[0::2]), [64])
    assert np.array_equal(np.unique(tokens[1::2]), [EOT])


def test_the_manifest_holds_nothing_that_differs_between_two_right_runs(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(100))
    for name in ("one", "two"):
        shardmill.prepare(source, tmp_path / name)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["tokenizer"]["sha256"] == load_tokenizer("gpt2").sha256


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokeniser": "gpt2"}, "did you mean `tokenizer`"),
        ({"format": "nanogtp"}, "did you mean `nanogpt`"),
        ({"memory": "lots"}, "not an amount of memory"),
        ({"val": "half"}, "not a share"),
        ({"val": "last:3"}, "not valid"),
        ({"workers": 0}, "must be at least 1"),
        ({"separator": ""}, "`separator` is an empty text"),
        ({"tokenizer": "no/such/tokenizer.json"}, "tokenizer"),
        ({"name": "../escape"}, "cannot be part"),
    ],
)
def test_a_wrong_option_is_named_and_the_way_out_shown(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["text"])
    with pytest.raises(UsageError) as error:
        shardmill.prepare(source, tmp_path / "out", **options)
    assert said in str(error.value)
    assert not (tmp_path / "out").exists()
