"""JSON Lines in the core: what it takes is what Python's `json` gives, and everything else is left."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from shardmill import core
from shardmill.core.reading import BLANK, LEFT, TAKEN, JsonLines, json_lines
from shardmill.documents.records import judge
from tests.odd_lines import damaged, odd_lines, real_lines

PATHS = [("text",), ("a", "b"), ("a",), ("x", "text", "b"), ("",), ("é",)]


def texts(found: JsonLines) -> list[bytes]:
    data, ends = found.text.tobytes(), found.offsets.tolist()
    return [data[a:b] for a, b in pairwise(ends)]


def check(lines: list[bytes], path: tuple[str, ...]) -> int:
    """Compare with Python's verdict on every line, and the ways with each other; gives the number of lines taken."""
    block = b"".join(line + b"\n" for line in lines)
    found, scalar = json_lines(block, path), json_lines(block, path, simd=False)
    for name in found._fields:
        assert getattr(found, name).tolist() == getattr(scalar, name).tolist()
    assert len(found.verdicts) == len(lines)
    assert found.starts.tolist() == np.cumsum([0, *(len(line) + 1 for line in lines)]).tolist()
    for line, verdict, text in zip(lines, found.verdicts.tolist(), texts(found), strict=True):
        if verdict == TAKEN:
            assert judge(line, path).text == text.decode(), line
        else:
            assert text == b""
            assert (verdict == BLANK) is (not line.strip(b" \t\r")), line
    return int(np.count_nonzero(found.verdicts == TAKEN))


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_what_is_taken_of_odd_lines_is_what_python_gives(path: tuple[str, ...]) -> None:
    chance = random.Random(".".join(path))
    record: object = 'é "a"\n'
    for name in reversed(path):
        record = {"id": 1.5, name: record, "tags": [{}, [None]]}
    line = json.dumps(record, ensure_ascii=False).encode()
    lines = [*odd_lines(chance, 2_000), *(damaged(chance, line) for _ in range(1_000))]
    assert check(lines, path) > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_what_is_taken_of_a_quarter_of_a_million_lines_is_what_python_gives(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(31):
        assert check(odd_lines(chance, 1_000), ("text",)) > 100


def test_real_lines_are_all_taken() -> None:
    lines = real_lines()
    assert check(lines, ("text",)) == len(lines)
    assert check(lines, ("meta", "url")) == len(lines)


def test_a_line_is_taken_wherever_a_quote_or_an_escape_falls_in_a_vector() -> None:
    for length in range(100):
        lines = [
            json.dumps({"k" * (length % 7): 0, "text": "x" * length + middle + "y" * rest}).encode()
            for middle in ("", "\n", "é", "😀", '"', "\\\\")
            for rest in (0, 1, 31, 32, 33)
        ]
        assert check(lines, ("text",)) == len(lines)


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "twice", "text": "the last counts"}', b'{"te\\u0078t": "escaped"}', b'{"text": "\\ud800"}', b"{}",
        b'{"text": "a"} x', b'{"text": "a", "b": -NaN}', b'{"text": "a", "b": 01}', b'{"text": "a",}',
        b'{"text": "\x01"}', b'{"text": "a\xff"}', b'{"text": "a", "b": "\xed\xa0\x80"}', b'{"text": 1}',
        b'{"text": null}', b"[]", b"x", b"null",
        b'{"text": "a", "b": ' + b"[" * 65 + b"]" * 65 + b"}", b'\xef\xbb\xbf{"text": "a"}', b'{"text": "a"}\0',
    ],
)  # fmt: skip
def test_what_is_odd_is_left_to_python(line: bytes) -> None:
    found = json_lines(b'{"text":"before"}\n' + line + b'\n{"text":"after"}\n', ("text",))
    assert found.verdicts.tolist() == [TAKEN, LEFT, TAKEN]
    assert texts(found) == [b"before", b"", b"after"]


def test_a_last_line_without_a_newline_is_left_to_python() -> None:
    found = json_lines(b'{"text":"a"}\n{"text":"b"}', ("text",))
    assert found.verdicts.tolist() == [TAKEN, LEFT]
    assert found.starts.tolist() == [0, 13, 25]
    assert json_lines(b"", ("text",)).verdicts.tolist() == []


def test_too_little_room_is_an_error_and_nothing_is_written_beyond() -> None:
    block = b'{"text":"abc"}\n' * 4
    ends = np.array([4], np.int64)
    for room, most, wanted in ((len(block), 4, 4), (len(block) - 1, 4, -2), (len(block), 3, -2), (len(block), -1, -1)):
        text = np.full(len(block) + 64, 7, np.uint8)
        starts, offsets = np.full(9, 7, np.int64), np.full(9, 7, np.int64)
        verdicts = np.full(8, 7, np.uint8)
        for simd in (0, 1):
            got = core.library().sm_json_lines(
                block, len(block), b"text", ends.ctypes.data, 1, text.ctypes.data, room,
                starts.ctypes.data, offsets.ctypes.data, verdicts.ctypes.data, most, simd,
            )  # fmt: skip
            assert got == wanted
        assert (text[len(block) :] == 7).all()
        assert (verdicts[max(most, 0) :] == 7).all()
        assert (starts[max(most, 0) + 1 :] == 7).all() and (offsets[max(most, 0) + 1 :] == 7).all()


GUARDED = """
import ctypes, mmap, random, sys
import numpy as np
from shardmill.core import library
from tests.odd_lines import odd_lines

libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
pages = 64

def guarded():
    "The address behind which nothing may be read or written."
    area = mmap.mmap(-1, (pages + 1) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.mprotect(ctypes.c_void_p(start + pages * page), page, 0) == 0, ctypes.get_errno()
    kept.append(area)
    return start + pages * page

kept, functions = [], library()
data_end, text_end = guarded(), guarded()
starts, offsets, verdicts = np.empty(9999, np.int64), np.empty(9999, np.int64), np.empty(9999, np.uint8)
ends, places = np.array([4], np.int64), np.empty(9999, np.int64)
lines = odd_lines(random.Random(1), 3000)
for i, line in enumerate(lines):
    block = b"\\n".join(lines[i : i + i % 3 + 1]) + b"\\n" * (i % 2)
    n = len(block)
    ctypes.memmove(data_end - n, block, n)
    for simd in (0, 1):
        assert functions.sm_json_lines(
            data_end - n, n, b"text", ends.ctypes.data, 1, text_end - n, n,
            starts.ctypes.data, offsets.ctypes.data, verdicts.ctypes.data, 9998, simd) >= 0
        functions.sm_utf8_valid(data_end - n, n, simd)
        functions.sm_count(data_end - n, n, 10, simd)
        for separator in (b"\\n", b"\\n\\n", b'","'):
            functions.sm_find(data_end - n, n, separator, len(separator), places.ctypes.data, 9999, simd)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")
def test_no_byte_behind_a_buffer_is_touched() -> None:
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
