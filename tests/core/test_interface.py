"""What a caller of the core relies on besides the ids: rows, marks, sizes, errors, and that it may be missing."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill import core as binding
from shardmill.core import CoreError
from shardmill.core import encoding as core
from shardmill.tokens import rank_files
from tests.core.models import VOCABULARIES, encoder, model, ranks, reference
from tests.tokens.hard import disorder, rows
from tests.tokens.vocabularies import rank_file

TEXTS = ["", "Hello world", "", "it's 12345 été\n\n  中文 x", "a" * 3000, ""]


def expected(texts: list[str], eot: int | None, where: str) -> list[list[int]]:
    mark = [] if eot is None else [eot]
    ids = [reference("gpt2")(text) for text in texts]
    return [mark + row if where == "before" else row + mark for row in ids]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize(("eot", "where"), [(None, "after"), (50256, "after"), (50256, "before"), (0, "after")])
@pytest.mark.parametrize("gap", [0, 3])
def test_rows_have_their_marks_and_gaps_are_skipped(
    dtype: type, eot: int | None, where: Literal["after", "before"], gap: int
) -> None:
    texts = [text.encode() + b"|||"[:gap] for text in TEXTS]
    data = np.frombuffer(b"before" + b"".join(texts), np.uint8)
    offsets = np.cumsum([6, *map(len, texts)], dtype=np.int64)
    if gap:
        data = data[:-gap]  # what would come after the last row may be missing
    made = core.Encoder(model("gpt2"), 1 << 20, dtype)
    ids, counts = made.encode(data, offsets, gap, eot=eot, where=where)
    want = expected(TEXTS, eot, where)
    assert ids.dtype == dtype
    assert counts.tolist() == list(map(len, want))
    assert ids.tolist() == [id_ for row in want for id_ in row]


def test_no_rows_are_no_ids() -> None:
    ids, counts = encoder("gpt2", simd=True).encode(np.empty(1, np.uint8), np.zeros(1, np.int64))
    assert len(ids) == len(counts) == 0


def test_the_worst_text_fits_into_the_room_and_nothing_is_written_behind_it() -> None:
    text = "".join(chr(code) for code in range(0x10000, 0x10800))  # no tokens of their own: one for each byte
    data, offsets = rows([text, "", text])
    memory = np.full(core.room(offsets) + 8, 7, np.uint32)
    ids, _ = encoder("gpt2", simd=True).encode(data, offsets, eot=1, out=memory[:-8])
    assert len(ids) > len(data) * 0.9
    assert memory[-8:].tolist() == [7] * 8


def test_too_little_room_is_an_error() -> None:
    data, offsets = rows(["some words"] * 10)
    with pytest.raises(CoreError, match="too small"):
        encoder("gpt2", simd=True).encode(data, offsets, out=np.empty(40, np.uint32))


@pytest.mark.parametrize("offsets", [[0, 11], [3, 2], [-1, 4], [0, 4, 2**40]])
def test_offsets_outside_of_the_data_are_an_error(offsets: list[int]) -> None:
    with pytest.raises(CoreError, match="out of range"):
        encoder("gpt2", simd=True).encode(
            np.zeros(10, np.uint8), np.array(offsets, np.int64), out=np.empty(100, np.uint32)
        )


def test_memory_of_another_type_is_refused() -> None:
    with pytest.raises(CoreError, match="another type"):
        encoder("gpt2", simd=True).encode(*rows(["x"]), out=np.empty(100, np.uint16))


def test_ids_that_do_not_fit_their_type_are_refused() -> None:
    with pytest.raises(CoreError):
        core.Encoder(model("cl100k"), 1 << 20, np.uint16)
    with pytest.raises(CoreError):
        core.Encoder(model("gpt2"), 1 << 20, np.uint16).encode(*rows(["x"]), eot=1 << 16)


def test_a_vocabulary_without_all_bytes_is_refused() -> None:
    with pytest.raises(CoreError, match="byte"):
        core.Model([b"a", b"b", b"ab"], "gpt2")


@pytest.mark.parametrize("scheme", ["gpt2", "cl100k", "o200k"])
@pytest.mark.parametrize("simd", [True, False])
def test_bytes_that_are_no_text_lose_nothing(scheme: str, simd: bool) -> None:
    rng = random.Random(scheme)
    tokens = {rank: token for token, rank in ranks(scheme).items()}
    texts = [rng.randbytes(rng.randint(1, 200)) for _ in range(300)]
    texts += [bytes(rng.choices(b"a \xe4\xb8\xad\xf0\x9f\x98\x80\xc3\xff'", k=rng.randint(1, 200))) for _ in range(300)]
    data, offsets = np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)], dtype=np.int64)
    ids, _ = encoder(scheme, simd=simd).encode(data, offsets)
    assert b"".join(map(tokens.__getitem__, ids.tolist())) == b"".join(texts)


def test_an_encoder_takes_what_it_says_and_no_more() -> None:
    for size in (0, 1 << 20, 3_000_000, 16 << 20):
        made = core.Encoder(model("gpt2"), size)
        assert made.bytes <= max(size, 1 << 19)
        assert made.bytes > 0.49 * size  # its slots are a power of two
    assert core.Encoder(model("gpt2")).bytes > 0.97 * core.CACHE


@pytest.mark.parametrize("scheme", list(VOCABULARIES))
def test_a_rank_file_is_parsed_as_python_does(scheme: str) -> None:
    name = VOCABULARIES[scheme]
    file = rank_file(name).read_bytes() if name else rank_files.p50k_ranks()  # which leaves one rank out
    made, want = core.parse_ranks(file), core.pack(rank_files.by_id(rank_files.parse(file, scheme), {}))
    assert made.offsets.tolist() == want.offsets.tolist()
    assert made.text.tobytes() == want.text.tobytes()


@pytest.mark.parametrize(
    "file",
    [
        *[b"YQ== 0\n\nYg== 1\n", b"YQ== 1\nYg== 0\n", b"YQ== 0\nYg== 0\n", b"YQ=a 0\n", b"YQ= 0\n", b"YQ=== 0\n"],
        *[
            b"Y 0\n",
            b"YWJjY 0\n",
            b"= 0\n",
            b" 0\n",
            b"YQ==\n",
            b"YQ== \n",
            b"YQ==",
            b"YQ== ",
            b"YQ==  0\n",
            b"YQ== 0x\n",
        ],
        *[
            b"YQ== 0\r\n",
            b"Y-== 0\n",
            b"\xff 0\n",
            b"YQ== -1\n",
            b"YQ== 1048576\n",
            b"YQ== 99999999999999999999\n",
            b"\n",
        ],
    ],
)
def test_a_rank_file_that_is_not_plain_is_refused(file: bytes) -> None:
    with pytest.raises(CoreError, match="vocabulary"):
        core.parse_ranks(file)


def test_the_last_line_of_a_rank_file_needs_no_newline() -> None:
    assert core.parse_ranks(b"YQ== 0\nYWI= 2").text.tobytes() == b"aab"
    assert core.parse_ranks(b"YQ== 0\nYWI= 2").offsets.tolist() == [0, 1, 1, 3]
    assert core.parse_ranks(b"").offsets.tolist() == [0]


def test_threads_share_a_model() -> None:
    texts = disorder("threads", 2000)
    data, offsets = rows(texts)
    want = encoder("gpt2", simd=True).encode(data, offsets)[0].tolist()
    found: list[bool] = []

    def work() -> None:
        mine = core.Encoder(model("gpt2"), 1 << 20, np.uint32)
        found.extend(mine.encode(data, offsets)[0].tolist() == want for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 20


@pytest.mark.parametrize(("content", "why"), [(None, "is missing"), (b"no library", "cannot be loaded: ")])
def test_a_core_that_is_not_there_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    path = tmp_path / "_core.so"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(binding, "_LIBRARY", path)
    with pytest.raises(CoreError, match=f"the compiled core {why}") as caught:
        binding.library.__wrapped__()
    assert caught.value.place == str(path) and "make core" in str(caught.value.hint)


def test_a_core_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "ABI", binding.ABI + 1)
    with pytest.raises(CoreError, match="was built from other sources"):
        binding.library.__wrapped__()


def test_every_error_of_the_core_is_raised_with_words() -> None:
    offsets = np.array([0, 99], np.int64)
    with pytest.raises(CoreError, match="out of range"):
        binding.content_hash(np.zeros(3, np.uint8), offsets, 0, 0)
    with pytest.raises(CoreError, match="out of range"):
        binding.not_normal(np.zeros(3, np.uint8), offsets, 0)
    with pytest.raises(CoreError, match="out of range"):
        encoder("gpt2", simd=True).encode_open(b"text", state=99)
    with pytest.raises(CoreError, match="error -99 of the core"):
        binding.checked(-99)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("before", [False, True])
def test_rows_of_ids_are_dealt_to_two_splits_with_their_marks(dtype: type, before: bool) -> None:
    chance = random.Random(3)
    for rows_count in (0, 1, 2, 40):
        ids: NDArray[Any] = np.array([chance.randrange(50_000) for _ in range(300)], dtype)
        starts = np.array([chance.randrange(280) for _ in range(rows_count)], np.int64)
        lengths = np.array([chance.randrange(20) for _ in range(rows_count)], np.int64)
        marks, second = (np.array([chance.random() < 0.5 for _ in range(rows_count)], np.bool_) for _ in range(2))
        wanted: list[list[int]] = [[], []]
        for start, length, mark, split in zip(starts, lengths, marks, second, strict=True):
            row, eot = ids[start : start + length].tolist(), [7] * int(mark)
            wanted[int(split)] += eot + row if before else row + eot
        dealt = core.deal(ids, starts, lengths, marks, second, 7, before=before)
        assert [part.tolist() for part in dealt] == wanted
        assert {part.dtype for part in dealt} == {np.dtype(dtype)}


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 4), (3, 1), (4, 0), (1, 1 << 62), (0, -1)])
def test_a_row_that_is_not_among_the_ids_is_refused(start: int, length: int) -> None:
    ids, no = np.zeros(3, np.uint16), np.zeros(1, np.bool_)
    places, out = np.array([start, length], np.int64), np.zeros(4, np.uint16)
    address = places.ctypes.data
    result = binding.library().sm_deal(
        ids.ctypes.data, 3, 0, address, address + 8, 1, no.ctypes.data, no.ctypes.data, 7, 0, out.ctypes.data, 4, 4
    )
    assert result < 0


def test_ids_are_never_dealt_beyond_the_room_nor_left_out() -> None:
    ids, no, yes = np.arange(3, dtype=np.uint16), np.zeros(1, np.bool_), np.ones(1, np.bool_)
    starts, lengths, out = np.zeros(1, np.int64), np.full(1, 3, np.int64), np.full(8, 9, np.uint16)
    arguments = (ids.ctypes.data, 3, 0, starts.ctypes.data, lengths.ctypes.data, 1)
    deal = binding.library().sm_deal
    for marks, border, room in ((yes, 3, 3), (no, 2, 2), (no, 4, 4), (no, 3, 4), (no, 5, 4), (no, -1, 4)):
        result = deal(*arguments, marks.ctypes.data, no.ctypes.data, 7, 0, out.ctypes.data, border, room)
        assert result < 0 and out[max(0, room) :].tolist() == [9] * (8 - room)
