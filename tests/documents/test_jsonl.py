"""JSON Lines: a line's verdict never depends on its neighbours, the chunk size or the compression."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardmill.documents import FreeRoom, Reading, jsonl
from shardmill.errors import SourceError
from tests.documents.json_ways import WAYS, take_way
from tests.documents.twin import COMPRESSIONS, SIZES, json_documents, read_path

# Each line beside the reason why it is a reject; None: it is a document.
LINES: list[tuple[bytes, str | None]] = [
    (b'{"text": "plain"}', None),
    (b'{"text": ""}', None),
    (b'  \t{"text": "white space around"}\t  ', None),
    (b'{"text": "carriage return"}\r', None),
    (b'{"id": 7, "text": "with others", "meta": {"a": [1, 2, {"b": null}]}}', None),
    (b'{"text": "first", "text": "the last of two counts"}', None),
    (b'{"te\\u0078t": "an escaped key"}', None),
    (b'{"text": "escapes \\u00e9 \\ud83d\\ude00 \\n \\" \\\\ \\/ \\u0000"}', None),
    ('{"text": "é 日本語 😀 \u2028"}'.encode(), None),
    (b'{"text": "a number too large", "x": 1e999}', None),
    (b'{"text": "five thousand digits", "x": ' + b"7" * 5000 + b"}", None),
    (b'{"text": "not a number", "x": NaN, "y": -Infinity}', None),
    (b'{"text": "a surrogate elsewhere", "x": "\\ud800"}', None),
    (b'{"text": "Inf, -Inf and -NaN are words here: [Inf]", "-NaN": ["Inf }"]}', None),
    (b'{"text": "infinite", "x": Inf}', "not valid JSON: expecting value (column 27)"),
    (b'{"x": -Inf, "text": "infinite"}', "not valid JSON: expecting value (column 7)"),
    (b'{"text": "no number", "x": [-NaN ]}', "not valid JSON: expecting value (column 29)"),
    (b'{"text": "' + b"deep " + b'", "x": ' + b"[" * 600 + b"]" * 600 + b"}", None),
    (b'{"text": null}', "field `text` is null"),
    (b'{"txt": "x"}', "field `text` is missing"),
    (b"{}", "field `text` is missing"),
    (b'{"text": 7}', "field `text` is a number, not a string"),
    (b'{"text": true}', "field `text` is a boolean, not a string"),
    (b'{"text": ["a"]}', "field `text` is an array, not a string"),
    (b'{"text": {"a": 1}}', "field `text` is an object, not a string"),
    (b'{"text": "\\ud800"}', "lone surrogate in field `text`"),
    (b'{"text": "\\udc00 x"}', "lone surrogate in field `text`"),
    (b'"just a string"', "not an object but a string"),
    (b"[1, 2]", "not an object but an array"),
    (b"17", "not an object but a number"),
    (b"null", "not an object but null"),
    (b'{"text": "cut short', "not valid JSON: unterminated string starting at (column 10)"),
    (b'{"text": "no end"', "not valid JSON: expecting ',' delimiter (column 18)"),
    (b"{text: 1}", "not valid JSON: expecting property name enclosed in double quotes (column 2)"),
    (b'{"text": "two"} {"text": "objects"}', "not valid JSON: more text after the end of the record (column 17)"),
    (b'{"text": "a"}{"text": "b"}', "not valid JSON: more text after the end of the record (column 14)"),
    (b'{"text": "raw \x01 control"}', "not valid JSON: invalid control character at (column 15)"),
    (b'{"text": "nul"}\0{}', "not valid JSON: more text after the end of the record (column 16)"),
    (b'{"text": "bad \\q escape"}', "not valid JSON: invalid \\escape (column 15)"),
    (b'{"text": "bad \xff byte"}', "invalid UTF-8 (column 15)"),
    (b'{"text": "fine", "x": "\xe2\x82"}', "invalid UTF-8 (column 24)"),
    (b"\xef\xbb\xbf{}", None),
    (b"}", "not valid JSON: expecting value (column 1)"),
    (b'{"a": {}', "not valid JSON: expecting ',' delimiter (column 9)"),
    (b'{"text": "a", "x": 01}', "not valid JSON: expecting ',' delimiter (column 21)"),
    (b"not json at all", "not valid JSON: expecting value (column 1)"),
]
# A mark counts only at the very start of a file.
LINES = [(line, "not valid JSON: expecting value (column 1)" if line[:1] == b"\xef" else why) for line, why in LINES]


def _check(path: Path, lines: list[tuple[bytes, str | None]], size: int) -> None:
    got = read_path(path, size)
    good = [i for i, (_, why) in enumerate(lines) if why is None]
    assert got.records == good
    assert got.documents == [json.loads(lines[i][0], parse_int=float)["text"].encode() for i in good]
    assert got.rejects == [(i, why) for i, (_, why) in enumerate(lines) if why is not None]
    starts = [0]
    for line, _ in lines:
        starts.append(starts[-1] + len(line) + 1)
    whites = [len(line) - len(line.lstrip()) for line, _ in lines]
    assert got.reject_bytes == [starts[i] + whites[i] for i, (_, why) in enumerate(lines) if why is not None]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", SIZES[4:])
def test_every_kind_of_line_gets_its_verdict(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in LINES))
    _check(path, LINES, size)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (kind, where)
        for kind in range(len(LINES))
        for where in ("first", "middle", "last")
        if where != "first" or LINES[kind][0][:1] != b"\xef"  # at the very beginning a mark is no damage
    ],
)
def test_a_line_costs_its_neighbours_nothing(tmp_path: Path, kind: int, where: str) -> None:
    good: list[tuple[bytes, str | None]] = [(f'{{"text": "{i} {"x" * (i % 37)}"}}'.encode(), None) for i in range(60)]
    at = {"first": 0, "middle": 31, "last": 60}[where]
    lines = [*good[:at], LINES[kind], *good[at:]]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in lines) + b"\n")
    for size in (1, 100, 1 << 22):
        _check(path, lines, size)


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_compressed_lines_give_the_same_documents(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(COMPRESSIONS[ending](b"\n".join(line for line, _ in LINES)))
    for size in (1, 200, 1 << 22):
        _check(path, LINES, size)


def test_many_lines_with_damage_here_and_there_are_read_exactly(tmp_path: Path) -> None:
    chance = random.Random(5)
    lines = [
        chance.choice(LINES) if chance.random() < 0.01 else (b'{"text": "%d", "x": [%d]}' % (i, i), None)
        for i in range(20_000)
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in lines) + b"\n")
    for size in (30_000, 1 << 22):
        _check(path, lines, size)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [1, 10, 1 << 22])
def test_blank_lines_are_no_records_but_count_as_lines(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n\n{"text": "a"}\n \t \r\n' + b" " * 50 + b'\n{"text": "b"}\n\r\n\nbad\n\n')
    got = read_path(path, size)
    assert got.documents == [b"a", b"b"]
    assert got.records == [2, 5]
    assert [record for record, _ in got.rejects] == [8]
    assert got.positions[-1].records == 10


@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_without_records_has_no_documents(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    for size in (1, 100):
        got = read_path(path, size)
        assert not got.documents and not got.rejects


@pytest.mark.usefixtures("way")
def test_a_byte_order_mark_at_the_start_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
    for size in (1, 2, 100):
        assert read_path(path, size).documents == [b"a", b"b"]


def test_utf_16_lines_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "é 😀"}\n{"text": "b"}\n'.encode("utf-16"))
    assert read_path(path, 5).documents == ["é 😀".encode(), b"b"]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_line_larger_than_a_chunk_is_a_chunk_of_its_own(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(COMPRESSIONS[ending](b'{"text": "a"}\n{"text": "%s"}\n{"text": "b"}' % (b"x" * 300_000)))
    got = read_path(path, 100)
    assert [len(document) for document in got.documents] == [1, 300_000, 1]
    assert max(got.costs) == 300_013


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_line_larger_than_memory_allows_is_told_by_its_size_and_is_a_chunk_of_its_own(
    tmp_path: Path, ending: str, where: str
) -> None:
    giant = b'{"text": "%s"}' % (b"x" * 700_000)
    at = {"first": 0, "middle": 1, "last": 2}[where]
    lines = [b'{"text": "a"}', b'{"text": "b"}']
    lines.insert(at, giant)
    for end in (b"", b"\n"):
        path = tmp_path / f"a.jsonl{ending}"
        path.write_bytes(COMPRESSIONS[ending](b"\n".join(lines) + end))
        for size in (10, 100_000):
            got = read_path(path, size, room=FreeRoom(200_000))
            assert got.documents == [b"a", b"b"]
            [(record, reason)] = got.rejects
            assert (record, reason) == (at, f"a line of {len(giant):,} bytes is larger than the memory allows")
            assert got.too_large == [len(giant)]
            assert got.positions[-1].records == 3


def test_a_system_without_memory_is_an_error_and_no_verdict_on_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a", "x": Inf}\n')  # left to the standard library

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("shardmill.documents.records._DECODER.raw_decode", full)
    monkeypatch.setattr(jsonl.JsonLinesReader, "_look_for_field", lambda *_: None)
    with pytest.raises(MemoryError):
        read_path(path, 100)


@pytest.mark.usefixtures("way")
def test_a_nested_field_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b'{"a": {"b": "x", "c": 1}}', b'{"a": {"b": null}}', b'{"a": null}', b'{"a": {}}', b'{"a": 3}', b"{}"]
    path.write_bytes(b"\n".join([*lines, b'{"a": {"b": "y"}, "d": 2}']))
    for size in (1, 1 << 22):
        got = read_path(path, size, Reading(text_field="a.b"))
        assert got.documents == [b"x", b"y"]
        assert [reason for _, reason in got.rejects] == [
            "field `a.b` is null",
            "field `a.b` is null",
            "field `a.b` is missing",
            "field `a.b` is missing: what should hold it is a number",
            "field `a.b` is missing",
        ]


@pytest.mark.parametrize("size", [1, 1 << 22])
def test_a_field_that_no_record_has_is_an_error_that_names_the_fields(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1, "content": "a"}\n{"id": 2, "raw": "b"}\n')
    with pytest.raises(SourceError, match="no record has the field `text`") as caught:
        read_path(path, size)
    assert caught.value.hint and "`id`, `content`, `raw`" in caught.value.hint


@pytest.mark.parametrize("kind", ['"x"', "3", "[]", "true"])
def test_a_nested_field_inside_what_holds_none_is_one_that_no_record_has(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": {kind}, "id": 1}}\n' * 60)
    with pytest.raises(SourceError, match=r"no record has the field `text\.body`") as caught:
        read_path(path, 100, Reading(text_field="text.body"))
    assert caught.value.hint and "`text`, `id`" in caught.value.hint
    path.write_text(path.read_text() + '{"text": null}\n')
    assert len(read_path(path, 100, Reading(text_field="text.body")).rejects) == 61


@pytest.mark.parametrize("size", [1, 1 << 22])
def test_one_record_with_the_field_is_enough(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1}\n{"text": "b"}\n')
    got = read_path(path, size)
    assert got.documents == [b"b"] and len(got.rejects) == 1


def test_a_json_array_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for data in (b'[\n  {"text": "a"},\n  {"text": "b"}\n]\n', b'[{"text": "a"}, {"text": "b"}]'):
        path.write_bytes(data)
        with pytest.raises(SourceError, match="JSON array") as caught:
            read_path(path, 100)
        assert caught.value.hint and "jq" in caught.value.hint


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_OBJECTS = st.dictionaries(st.sampled_from(["text", "a", "b"]), _VALUES, max_size=3).map(
    lambda value: json.dumps(value).encode("utf-8", "surrogatepass")
)
_DAMAGED = st.tuples(_OBJECTS, st.integers(0, 60), st.binary(max_size=3), st.integers(0, 3)).map(
    lambda parts: parts[0][: parts[1]] + parts[2].replace(b"\n", b"") + parts[0][parts[1] + parts[3] :]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(_OBJECTS | _DAMAGED | st.sampled_from([b"", b" ", b'{"text":"x"}', b'{"text":"y"}\r']), max_size=12),
    size=st.sampled_from([1, 20, 1 << 20]),
    way=st.sampled_from(WAYS),
)
@example(lines=[b'{"text":"a"}', b'{"text":"b"}\0{}', b'{"text":"c"}'], size=1 << 20, way="core")
def test_any_lines_are_judged_as_the_standard_library_does(
    tmp_path: Path, lines: list[bytes], size: int, way: str
) -> None:
    path = tmp_path / "fuzz.jsonl"
    data = b'{"text":"first"}\n' + b"\n".join(lines)
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        take_way(way, patch)
        got = read_path(path, size)
    texts, records, rejects = json_documents(data)
    assert got.documents == texts
    assert got.records == records
    assert [record for record, _ in got.rejects] == rejects
