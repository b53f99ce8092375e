"""Tiny files are read by the thousand, and give what they give one by one."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

import shardmill
from shardmill.detection import UNSUPPORTED
from shardmill.documents.tiny_files import TinyFiles
from shardmill.errors import ShardmillError, SourceError
from shardmill.sources.finding import find_sources
from shardmill.write import Result
from tests.corpus import HARD, contents, documents, write_jsonl
from tests.crashing import crash_everywhere
from tests.datasets import TOGETHER
from tests.reference import check, twin
from tests.shards.readers import megatron_documents

pytestmark = pytest.mark.thorough

TEXT = b"A few words, and some more of them."


def write(folder: Path, texts: Iterable[bytes]) -> Path:
    """A file for each text, in order."""
    folder.mkdir(exist_ok=True)
    for i, text in enumerate(texts):
        (folder / f"{i:05}.txt").write_bytes(text)
    return folder


def some(count: int = 300, seed: int = 0) -> list[bytes]:
    return [text.encode() for text in documents(count, seed)]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each chunk holds that is read from now on and holds several."""
    made, seen = TinyFiles.chunk_at, []

    def watched(self: TinyFiles, first: int, stop: int) -> Any:
        chunk = made(self, first, stop)
        if chunk is not None:
            seen.append(chunk.whole)
        return chunk

    monkeypatch.setattr(TinyFiles, "chunk_at", watched)
    return seen


def one_by_one(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> Result:
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.documents.tiny_files.MOST", 0)
        return shardmill.prepare(*arguments, **options)


def same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sources: Any, **options: Any) -> Result:
    """Prepare together and one by one, and compare all that was written and told."""
    joined = shardmill.prepare(sources, tmp_path / "together", **options)
    singly = one_by_one(monkeypatch, sources, tmp_path / "singly", **options)
    assert contents(tmp_path / "together") == contents(tmp_path / "singly")
    assert (joined.manifest, joined.replaced, joined.fallbacks) == (
        singly.manifest,
        singly.replaced,
        singly.fallbacks,
    )
    return joined


def test_tiny_files_are_read_together_and_are_what_the_twin_says(tmp_path: Path, together: list[int]) -> None:
    source = write(tmp_path / "in", [*some(), *(text.encode() for text in HARD)])
    shardmill.prepare(source, tmp_path / "out", val=0)
    assert together == [300 + len(HARD)]
    check(tmp_path / "out", twin(source))


@pytest.mark.parametrize("val", ["0", "0.3", "first:2000", "1"])
def test_together_and_one_by_one_they_give_the_same_bytes_in_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int], val: str
) -> None:
    texts = [b"", *some(), b"", b"", b"x" * 65536, "é".encode() * 32768, *some(50, 1), b""]
    source = write(tmp_path / "in", texts)
    same(monkeypatch, tmp_path, source, format=TOGETHER, val=val, shard_tokens=3000)
    assert together == [356]


@pytest.mark.parametrize("most", [0, 4096])
def test_an_empty_file_is_no_document_in_an_index_and_hides_no_end_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("shardmill.documents.tiny_files.MOST", most)
    source = write(tmp_path / "in", [b"", TEXT, b"", b"more words", b"", b"and more", b""])
    for seed in range(8):  # which sides the texts and the empty ones fall on
        out = tmp_path / f"{seed}"
        splits = shardmill.prepare(source, out, format="megatron", val=0.5, seed=seed).manifest["splits"]
        for name, split in splits.items():
            paths = [out / file["name"] for file in split["files"] if file["name"].endswith(".bin")]
            found = [len(document) for path in paths for document in megatron_documents(path)]
            assert (len(found), 0 in found) == (split["documents"], False), name


def test_small_chunks_give_the_same_bytes_as_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    source = write(tmp_path / "in", [b"", *some(40), b"", b"", *some(40, 1), b""])
    shardmill.prepare(source, tmp_path / "large", format=TOGETHER, val=0.5)
    for most in (2, 7):
        monkeypatch.setattr("shardmill.documents.tiny_files.MOST", most)
        shardmill.prepare(source, tmp_path / f"{most}", format=TOGETHER, val=0.5)
        assert contents(tmp_path / f"{most}") == contents(tmp_path / "large")
    assert all(together)
    assert len(together) > 50


def test_tiny_files_together_are_no_larger_than_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    monkeypatch.setattr("shardmill.run.budget.LARGEST", 1 << 14)
    monkeypatch.setattr("shardmill.run.budget.SMALLEST", 1 << 14)
    source = write(tmp_path / "in", [TEXT * 100] * 20)
    same(monkeypatch, tmp_path, source)
    assert len(together) == 5


@pytest.mark.parametrize("eot", ["after", "before", "none"])
def test_eot_stands_where_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int], eot: str
) -> None:
    source = write(tmp_path / "in", [b"", *some(30), b"", b""])
    same(monkeypatch, tmp_path, source, eot=eot, val=0.5)
    assert together == [33]


@pytest.mark.parametrize(
    "odd",
    [
        codecs.BOM_UTF8 + TEXT,
        codecs.BOM_UTF8,
        b"\xff not UTF-8 \x80\x80 \xe2\x82",
        b"\x82\xac",  # what the one before lacks
        "\ufffd stood there before".encode(),
    ],
)
def test_what_can_be_told_file_by_file_does_not_end_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int], odd: bytes
) -> None:
    source = write(tmp_path / "in", [TEXT, b"cut \xe2", odd, TEXT])
    assert same(monkeypatch, tmp_path, source, val=0.5).replaced > 0
    assert together == [4]


PACKED_OR_ENCODED = {
    "gzip": gzip.compress(TEXT),
    "zstd": zstandard.ZstdCompressor().compress(TEXT),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "gzip of nothing": gzip.compress(b""),
    "gzip of more than a chunk": gzip.compress(b"a long story. " * 300_000),
    "UTF-16 LE": codecs.BOM_UTF16_LE + "Wörter".encode("utf-16-le"),
    "UTF-16 BE": codecs.BOM_UTF16_BE + "Wörter".encode("utf-16-be"),
    "UTF-32 LE": codecs.BOM_UTF32_LE + "Wörter".encode("utf-32-le"),
    "UTF-32 BE": codecs.BOM_UTF32_BE + "Wörter".encode("utf-32-be"),
    "text with parquet's mark": b"PAR1 is the mark of parquet",
    "text with Arrow's mark": b"ARROW1 is that of Arrow",
}


@pytest.mark.parametrize("odd", PACKED_OR_ENCODED)
@pytest.mark.parametrize("val", ["0", "0.5"])
def test_what_is_packed_or_encoded_otherwise_is_read_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int], odd: str, val: str
) -> None:
    source = write(tmp_path / "in", [TEXT, b"", PACKED_OR_ENCODED[odd], TEXT])
    same(monkeypatch, tmp_path, source, val=val)
    assert together == [2, 1]


def failure(
    call: Callable[..., object], *arguments: Any, **options: Any
) -> tuple[type[ShardmillError], str, str | None, str | None]:
    with pytest.raises(ShardmillError) as error:
        call(*arguments, **options)
    return type(error.value), error.value.message, error.value.place, error.value.hint


NO_TEXT = {
    **{what: mark + b" and the rest" for mark, what, _ in UNSUPPORTED},
    "parquet cut off": b"PAR1\x15\x04",
    "Arrow cut off": b"ARROW1\0\0",
    "tar": b"name".ljust(257, b"\0") + b"ustar",
    "gzip cut off": gzip.compress(TEXT)[:20],
    "gzip in gzip": gzip.compress(gzip.compress(TEXT)),
}


@pytest.mark.parametrize("odd", NO_TEXT)
def test_what_is_no_text_is_the_same_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    source = write(tmp_path / "in", [TEXT, NO_TEXT[odd], TEXT])
    expected = failure(one_by_one, monkeypatch, source, tmp_path / "singly")
    assert expected[0] is SourceError
    assert failure(shardmill.prepare, source, tmp_path / "together") == expected


def after_finding(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let something happen to the files between the moment they are found and the first that is opened."""

    def finding(*arguments: Any, **options: Any) -> Any:
        found = find_sources(*arguments, **options)
        change()
        return found

    monkeypatch.setattr("shardmill.run.main.find_sources", finding)


@pytest.mark.parametrize("how", ["vanished", "shrank", "grew", "touched", "emptied"])
def test_a_file_that_is_not_as_it_was_found_is_the_same_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    source = write(tmp_path / "in", [TEXT] * 5)
    path = source / "00002.txt"

    def change() -> None:
        if how == "vanished":
            path.unlink()
        elif how == "touched":
            os.utime(path, ns=(1, 1))
        else:
            path.write_bytes({"shrank": TEXT[:-1], "grew": TEXT + b"!", "emptied": b""}[how])

    after_finding(monkeypatch, change)
    expected = failure(one_by_one, monkeypatch, source, tmp_path / "singly")
    write(source, [TEXT] * 5)
    assert failure(shardmill.prepare, source, tmp_path / "together") == expected
    assert (expected[0], expected[2]) == (SourceError, str(path))


def test_of_two_faults_the_first_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "in", [TEXT, b"%PDF-1.7", TEXT, TEXT])
    after_finding(monkeypatch, (source / "00002.txt").unlink)
    with pytest.raises(SourceError, match="a PDF file"):
        shardmill.prepare(source, tmp_path / "out")


def test_a_special_token_that_is_an_error_is_rejected_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    texts = some(30)
    texts[7] = texts[20] = b"here is <|endoftext|> in the text"
    source = write(tmp_path / "in", texts)
    result = same(monkeypatch, tmp_path, source, specials="error", val=0.3)
    assert result.manifest["rejected"] == 2
    assert together == [30]
    expected = failure(one_by_one, monkeypatch, source, tmp_path / "a", specials="error", max_bad="1")
    assert failure(shardmill.prepare, source, tmp_path / "b", specials="error", max_bad="1")[0] is expected[0]


def test_other_files_between_them_keep_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    source = write(tmp_path / "in", some(60))
    write_jsonl(source / "00010a.jsonl", documents(20, 5))
    (source / "00020a.txt").write_bytes(b" word" * 20_000)
    (source / "00030a.txt.gz").write_bytes(gzip.compress(TEXT))
    (source / "00030b").write_bytes(TEXT)
    (source / "00030c").write_bytes(b'{"text": "a line"}\n')
    same(monkeypatch, tmp_path, source, val=0.3, format="megatron")
    assert sorted(together) == [10, 10, 11, 29]


def test_a_format_that_the_user_names_counts_more_than_the_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    source = write(tmp_path / "in", some(20))
    (source / "00010a.jsonl").write_bytes(b'{"text": "a line"}\n')
    (source / "00010b.gz").write_bytes(gzip.compress(TEXT))
    same(monkeypatch, tmp_path, source, input_format="text")
    assert sorted(together) == [9, 12]
    together.clear()
    shardmill.prepare(source / "*.txt", tmp_path / "out", input_format="jsonl", max_bad="any")
    assert together == []


@pytest.mark.parametrize("options", [{"separator": "\n\n"}, {"val": "tail:0.5"}, {"limit": "5"}])
def test_what_needs_a_look_into_each_file_is_not_read_together(
    tmp_path: Path, together: list[int], options: dict[str, Any]
) -> None:
    shardmill.prepare(write(tmp_path / "in", some(20)), tmp_path / "out", **options)
    assert together == []


def test_a_run_that_is_killed_among_them_goes_on_at_any_file(tmp_path: Path) -> None:
    texts = some(300)
    texts[200] = gzip.compress(TEXT)
    source = write(tmp_path / "in", texts)
    left = crash_everywhere(source, tmp_path / "out", every=29, format="megatron", shard_tokens=5000, val=0.3)
    assert len(left) > 3


def test_a_run_that_ended_in_the_middle_goes_on_with_chunks_of_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    source = write(tmp_path / "in", some(400))
    expected = contents(Path(shardmill.prepare(source, tmp_path / "whole", val=0.3).out))
    monkeypatch.setattr("shardmill.write.checkpoints._EVERY", 0.0)
    lost, away = source / "00300.txt", tmp_path / "away"
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.documents.tiny_files.MOST", 37)
        after_finding(patch, lambda: lost.rename(away))
        with pytest.raises(SourceError, match="not there any more"):
            shardmill.prepare(source, tmp_path / "out", val=0.3)
    away.rename(lost)
    together.clear()
    assert shardmill.prepare(source, tmp_path / "out", val=0.3).resumed
    assert together == [100]
    assert contents(tmp_path / "out") == expected


def test_a_name_that_is_not_utf_8_stands_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    folder = os.fsencode(tmp_path / "in")
    os.mkdir(folder)
    names = [b"a\xff.txt", 'b "ü"\n.txt'.encode(), b"c\x7f.txt"]
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(TEXT)
    result = same(monkeypatch, tmp_path, tmp_path / "in")
    assert together == [3]
    told = [os.path.basename(os.fsencode(source["name"])) for source in result.manifest["sources"]]
    assert told == names
