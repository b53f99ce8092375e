"""Arrow IPC: whatever stands beside the text column, and however a batch is stored, the same rows in bounded slices."""

from __future__ import annotations

import gzip
import io
import random
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.documents import Position, Reading, arrow_ipc
from shardmill.errors import SourceError
from shardmill.sources import find_sources
from tests.documents.twin import Read, arrow_bytes, read_path, read_source

WORDS = ["", "a", "bc", "é😀", "x" * 11, "y" * 12, "z" * 13, "some words " * 9]


def _beside(rows: int, chance: random.Random) -> dict[str, pa.Array]:
    """Columns of every layout that a batch may have beside the text."""

    def some(value: Any) -> list[Any]:
        return [value(i) if chance.random() < 0.8 else None for i in range(rows)]

    pair = pa.struct([("a", pa.string()), ("v", pa.string_view())])
    numbers = pa.array(range(rows), pa.int64())
    return {
        "null": pa.nulls(rows),
        "bool": pa.array(some(lambda i: i % 2 == 0), pa.bool_()),
        "int": pa.array(some(lambda i: i), pa.int16()),
        "decimal": pa.array(some(Decimal), pa.decimal128(9, 2)),
        "time": pa.array(some(lambda i: i), pa.timestamp("us")),
        "fixed": pa.array(some(lambda i: b"abc"), pa.binary(3)),
        "string": pa.array(some(lambda i: "s" * i), pa.string()),
        "large": pa.array(some(lambda i: "s" * i), pa.large_string()),
        "view": pa.array(some(lambda i: "v" * i), pa.string_view()),
        "list": pa.array(some(lambda i: ["l"] * (i % 3)), pa.list_(pa.string())),
        "large list": pa.array(some(lambda i: [i] * (i % 3)), pa.large_list(pa.int8())),
        "list view": pa.array(some(lambda i: [i] * (i % 3)), pa.list_view(pa.int8())),
        "fixed list": pa.array(some(lambda i: [i, i]), pa.list_(pa.int8(), 2)),
        "map": pa.array(some(lambda i: [("k", i)]), pa.map_(pa.string(), pa.int8())),
        "struct": pa.array(some(lambda i: {"a": "x" * i, "v": "w" * 20}), pair),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array(some(lambda i: i % 3), pa.int8()), pa.array(WORDS)),
        "sparse": pa.UnionArray.from_sparse(pa.array([0] * rows, pa.int8()), [numbers, pa.nulls(rows, pa.string())]),
        "dense": pa.UnionArray.from_dense(
            pa.array([0] * rows, pa.int8()), pa.array(range(rows), pa.int32()), [numbers, pa.array(["u"])]
        ),
        "runs": pa.RunEndEncodedArray.from_arrays(
            pa.array([rows][: rows > 0], pa.int32()), pa.array(["r"][: rows > 0], pa.string())
        ),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array(some(lambda i: b"u" * 16), pa.binary(16))),
    }  # fmt: skip


KINDS = {
    "string": pa.string(),
    "large": pa.large_string(),
    "binary": pa.binary(),
    "view": pa.string_view(),
    "null": pa.null(),
    "fixed": pa.binary(4),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "wide dictionary": pa.dictionary(pa.uint32(), pa.large_binary()),
    "dictionary of views": pa.dictionary(pa.int32(), pa.string_view()),
}


def _column(kind: str, rows: int, chance: random.Random, nulls: float) -> pa.Array:
    texts = [chance.choice(WORDS) if chance.random() >= nulls else None for _ in range(rows)]
    if kind == "null":
        return pa.nulls(rows)
    if kind == "fixed":
        return pa.array([None if text is None else b"four" for text in texts], KINDS[kind])
    if "dictionary" in kind:
        values = pa.array([*WORDS, None], pa.string()).cast(KINDS[kind].value_type)
        numbers = [None if text is None else chance.choice([WORDS.index(text), len(WORDS)]) for text in texts]
        return pa.DictionaryArray.from_arrays(pa.array(numbers, KINDS[kind].index_type), values)
    return pa.array(texts, pa.string()).cast(KINDS[kind])


def _stored(batches: list[pa.RecordBatch], stream: bool, **options: Any) -> bytes:
    sink = io.BytesIO()
    made = pa.ipc.IpcWriteOptions(**options)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, batches[0].schema, options=made) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _bare(data: bytes) -> bytes:
    """The same file without a mark and a length before its schema, which then stands at once where the file begins."""
    length = int.from_bytes(data[12:16], "little")
    return data[:8] + data[16 : 16 + length] + bytes(8) + data[16 + length :]


def _check(got: Read, values: list[Any]) -> None:
    wanted = [value.encode() if isinstance(value, str) else value for value in values]
    assert got.documents == [value for value in wanted if value is not None]
    assert got.records == [row for row, value in enumerate(wanted) if value is not None]
    assert [row for row, _ in got.rejects] == [row for row, value in enumerate(wanted) if value is None]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_any_batches_are_read_as_arrows_own_reader_reads_them(
    tmp_path: Path, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{kind} {seed}")
    for number in range(6):
        nulls = chance.choice([0.0, 0.0, 0.3])
        nested = chance.random() < 0.4
        batches = []
        first = chance.choice([0, 1, 9, 40])
        names = chance.sample(sorted(_beside(1, chance)), 6)
        for rows in [first or 3, *chance.choices([0, 1, 9, 40], k=3)]:
            beside = [(name, column) for name, column in _beside(rows, chance).items() if name in names]
            text = _column(kind, rows, chance, nulls)
            if nested:
                mask = pa.array([chance.random() < nulls for _ in range(rows)], pa.bool_())
                others = pa.array(["o"] * rows, pa.string())
                fields = [pa.field("o", others.type), pa.field("text", text.type)]
                text = pa.StructArray.from_arrays([others, text], fields=fields, mask=mask)
            columns = [*beside[:3], ("a" if nested else "text", text), *beside[3:]]
            batch = pa.RecordBatch.from_arrays([column for _, column in columns], [name for name, _ in columns])
            batches.append(batch.slice(chance.randrange(rows // 2 + 1)))
        # The dictionaries are the same in all batches, so a file may hold them.
        compression = chance.choice([None, "lz4", "zstd"])
        legacy = chance.random() < 0.2 and "view" not in kind
        stream = chance.random() < 0.5
        version = pa.ipc.MetadataVersion.V4 if chance.random() < 0.2 else pa.ipc.MetadataVersion.V5
        if compression:  # which pyarrow misreads in version 4
            version = pa.ipc.MetadataVersion.V5
        options = {"use_legacy_format": True} if legacy and not compression else {"metadata_version": version}
        data = _stored(batches, stream, compression=compression, **options)
        packed = chance.random() < 0.4
        if not stream and not legacy and not packed and chance.random() < 0.3:
            data = _bare(data)
        path = tmp_path / f"{number}.arrow{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
        with (pa.ipc.open_stream if stream else pa.ipc.open_file)(pa.BufferReader(data)) as reader:
            table = reader.read_all()
        rows_there = table["a" if nested else "text"].to_pylist()
        values = [row and row["text"] for row in rows_there] if nested else rows_there
        monkeypatch.setattr(arrow_ipc, "STEP", chance.choice([7, 16, 1 << 15]))
        field = "a.text" if nested else "text"
        for size in (1, 100, 1 << 20):
            _check(read_path(path, size, Reading(text_field=field)), values)


def test_a_file_whose_schema_is_in_its_footer_only_has_to_be_a_plain_file(tmp_path: Path) -> None:
    data = _bare(_stored([pa.RecordBatch.from_pydict({"text": ["a"]})], stream=False))
    path = tmp_path / "a.arrow.gz"
    path.write_bytes(gzip.compress(data))
    with pytest.raises(SourceError, match="damaged") as raised:
        read_path(path)
    assert "plain file" in (raised.value.hint or "")


def _deltas(words: int, stream: bool = True) -> tuple[bytes, list[str]]:
    """Batches, each with more values in its dictionary than the one before."""
    values = [f"value {i} " * (i % 5 + 1) for i in range(words)]
    sink = io.BytesIO()
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("n", pa.dictionary(pa.int8(), pa.string())), ("text", kind)])
    texts: list[str] = []
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression="zstd")
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, schema, options=options) as writer:
        for known in range(1, words + 1, 7):
            rows = [(i * known) % known for i in range(20)] + [known - 1]
            column = pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(values[:known]))
            other = pa.DictionaryArray.from_arrays(pa.array([0] * 21, pa.int8()), pa.array(["other"]))
            writer.write_batch(pa.RecordBatch.from_arrays([other, column], schema=schema))
            texts += [values[row] for row in rows]
    return sink.getvalue(), texts


@pytest.mark.parametrize("stream", [True, False])
def test_dictionaries_that_grow_are_read(tmp_path: Path, stream: bool) -> None:
    data, texts = _deltas(100, stream)
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    for size in (1, 1000, 1 << 20):
        _check(read_path(path, size), texts)


def test_a_dictionary_that_is_replaced_is_not_the_old_one(tmp_path: Path) -> None:
    numbers = pa.array([0, 1, 0], pa.int8())
    columns = [pa.DictionaryArray.from_arrays(numbers, pa.array(list(words))) for words in ("ab", "cd", "efg")]
    batches = [pa.RecordBatch.from_arrays([column], ["text"]) for column in columns]
    path = tmp_path / "a.arrow"
    path.write_bytes(_stored(batches, stream=True))
    _check(read_path(path), list("abacdcefe"))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_other_columns_are_not_read(tmp_path: Path, ending: str) -> None:
    junk = ["j" * 1000] * 10
    batch = pa.RecordBatch.from_pydict({"before": junk, "text": list("abcdefghij"), "after": junk})
    data = bytearray(_stored([batch], stream=False))
    for _ in range(2):
        at = data.find(b"j" * 10_000)
        data[at : at + 10_000] = b"\xff" * 10_000
    path = tmp_path / f"a.arrow{ending}"
    path.write_bytes(gzip.compress(data) if ending else data)
    _check(read_path(path), list("abcdefghij"))


@pytest.mark.parametrize("start", [0, 1, 49, 50, 51, 120, 149])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_run_goes_on_at_any_row_without_the_batches_before(
    tmp_path: Path, start: int, compression: str | None
) -> None:
    batches = [pa.RecordBatch.from_pydict({"text": [f"row {50 * n + i}" for i in range(50)]}) for n in range(3)]
    data = bytearray(_stored(batches, stream=False, compression=compression))
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    [source] = find_sources([str(path)], "auto")
    got = read_source(source, 70, start=Position(start, start))
    assert got.documents == [b"row %d" % i for i in range(start, 150)]
    assert got.records == list(range(start, 150))


class _Asked:
    """Memory that is asked for, and refused above a limit."""

    def __init__(self) -> None:
        self.held = self.peak = 0
        self.largest, self.largest_row = 64 << 20, 0

    @contextmanager
    def hold(self, amount: int, what: str, place: str) -> Any:
        self.held += amount
        self.peak = max(self.peak, self.held)
        yield
        self.held -= amount


def test_memory_is_asked_for_a_dictionary_and_given_back(tmp_path: Path) -> None:
    values = [f"{i:06}" * 500 for i in range(1000)]
    column = pa.DictionaryArray.from_arrays(pa.array(range(1000), pa.int32()), pa.array(values))
    path = tmp_path / "a.arrow"
    path.write_bytes(_stored([pa.RecordBatch.from_arrays([column], ["text"])], stream=True, compression="zstd"))
    asked = _Asked()
    _check(read_path(path, 10_000, room=asked), values)
    assert 3_000_000 <= asked.peak < 10_000_000 and asked.held == 0


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_length_that_lies_is_damage_and_allocates_nothing(tmp_path: Path, codec: str) -> None:
    texts = ["some words " * 50] * 100
    data = bytearray(_stored([pa.RecordBatch.from_pydict({"text": texts})], stream=True, compression=codec))
    true = (sum(map(len, texts))).to_bytes(8, "little")
    at = data.rfind(true)
    for lie in (1 << 60, -2, 0, 100):
        data[at : at + 8] = lie.to_bytes(8, "little", signed=True)
        path = tmp_path / "a.arrow"
        path.write_bytes(data)
        with pytest.raises(SourceError, match="damaged"):
            read_path(path)


class _Marked(pa.ExtensionType):
    """Text that somebody has given a name of his own."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind, "marked")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


@pytest.mark.parametrize("field", ["text", "a.text"])
@pytest.mark.parametrize("name", ["a.arrow", "a.parquet"])
def test_an_extension_type_that_is_stored_as_text_is_text(tmp_path: Path, name: str, field: str) -> None:
    texts = pa.array(["a", None, "b"])
    if field != "text":
        texts = pa.StructArray.from_arrays([texts], ["text"])
    table = pa.table({"x": texts, field.split(".")[0]: pa.ExtensionArray.from_storage(_Marked(texts.type), texts)})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    got = read_path(tmp_path / name, 100, Reading(text_field=field))
    assert got.documents == [b"a", b"b"]
    assert len(got.rejects) == 1


def test_views_that_share_their_text_are_cut_by_the_text_that_they_give(tmp_path: Path) -> None:
    text = b"some words " * 1000
    view = len(text).to_bytes(4, "little") + text[:4] + bytes(8)
    views = pa.Array.from_buffers(pa.string_view(), 500, [None, pa.py_buffer(view * 500), pa.py_buffer(text)])
    (tmp_path / "a.arrow").write_bytes(_stored([pa.record_batch([views], names=["text"])], stream=True))
    assert (tmp_path / "a.arrow").stat().st_size < 50_000
    got = read_path(tmp_path / "a.arrow", 100_000)
    assert got.documents == [text] * 500
    assert max(got.costs) <= 120_000


def test_a_null_in_a_dictionary_may_have_bytes_behind_it(tmp_path: Path) -> None:
    mask, ends = pa.py_buffer(bytes([0b101])), pa.py_buffer(np.array([0, 1, 5, 6], np.int32))
    values = pa.Array.from_buffers(pa.string(), 3, [mask, ends, pa.py_buffer(b"aBBBBc")])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0], pa.int32()), values)
    (tmp_path / "a.arrow").write_bytes(arrow_bytes(pa.table({"text": column})))
    got = read_path(tmp_path / "a.arrow")
    assert got.documents == [b"a", b"c", b"a"]
    assert got.rejects == [(1, "field `text` is null")]
