"""What a call names: files, folders, globs and standard input, always in the same order."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardmill.documents import FreeRoom, Position, Reading, SourceReader
from shardmill.errors import ShardmillError, SourceError, UsageError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.sources import find_sources
from tests.documents.twin import arrow_bytes, parquet_bytes, read_path, read_source, table


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in (
        "b.txt", "a.jsonl", "sub/c.parquet", "sub/deep/d.txt.gz", "z.CSV", "noending", "_hidden.txt", ".dot.txt",
        "_skipped/x.txt", ".git/config.txt", "picture.png", "archive.zip", "sub/e.md", "sub/f.jsonl.zst", "g.bin",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"text\nx" if name == "z.CSV" else b"x")
    return tmp_path


def _names(specs: list[str], root: Path) -> list[str]:
    return [os.path.relpath(source.path, root) for source in find_sources(specs)]


def test_a_folder_gives_its_readable_files_sorted(corpus: Path) -> None:
    assert _names([str(corpus)], corpus) == [
        "a.jsonl", "b.txt", "noending", "sub/c.parquet", "sub/deep/d.txt.gz", "sub/e.md", "sub/f.jsonl.zst", "z.CSV",
    ]  # fmt: skip


def test_globs_are_sorted_and_may_be_recursive(corpus: Path) -> None:
    assert _names([f"{corpus}/*.txt"], corpus) == ["_hidden.txt", "b.txt"]
    assert _names([f"{corpus}/**/*.gz"], corpus) == ["sub/deep/d.txt.gz"]
    assert _names([f"{corpus}/sub/[ef].*"], corpus) == ["sub/e.md", "sub/f.jsonl.zst"]
    assert _names([f"{corpus}/**/*.txt*"], corpus) == ["_hidden.txt", "_skipped/x.txt", "b.txt", "sub/deep/d.txt.gz"]


def test_the_order_of_the_call_is_kept_and_what_is_named_twice_is_read_twice(corpus: Path) -> None:
    b, a = str(corpus / "b.txt"), str(corpus / "a.jsonl")
    assert _names([b, a, b], corpus) == ["b.txt", "a.jsonl", "b.txt"]


def test_a_file_named_outright_is_taken_whatever_it_is_called(corpus: Path) -> None:
    assert _names([str(corpus / "_hidden.txt"), str(corpus / "g.bin")], corpus) == ["_hidden.txt", "g.bin"]


def test_a_name_with_glob_characters_that_exists_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_bytes(b"x")
    assert _names([str(tmp_path / "a[1].txt")], tmp_path) == ["a[1].txt"]


def test_a_source_knows_its_size_and_version(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"12345")
    [source] = find_sources([str(path)], "text")
    assert (source.name, source.size, source.input_format) == (str(path), 5, "text")
    assert source.version == str(path.stat().st_mtime_ns)


@pytest.mark.parametrize("spec", ["missing.txt", "*.nothing", "empty", "pictures", "", "broken", "nul\0"])
def test_what_names_nothing_is_a_wrong_call(tmp_path: Path, spec: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/a.png").write_bytes(b"x")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError):
        find_sources([f"{tmp_path}/{spec}" if spec else ""])
    with pytest.raises(UsageError):
        find_sources([])


def test_standard_input_can_be_given_once(tmp_path: Path) -> None:
    [source] = find_sources(["-"])
    assert source.name == "-" and source.size is None and source.version == ""
    with pytest.raises(UsageError):
        find_sources(["-", "-"])


@pytest.mark.filterwarnings("ignore:.*multi-threaded")  # of a fork, whose child does nothing but this
def test_a_file_without_permission_is_a_wrong_call() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "a.txt")
        path.write_bytes(b"x")
        path.chmod(0)
        if (child := os.fork()) == 0:
            said = "nothing"
            try:
                if os.geteuid() == 0:  # root may read everything
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                find_sources([str(path)])
            except UsageError as error:
                said = error.message
            finally:
                os._exit(0 if said == "no permission to read the source" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_link_that_leads_in_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert _names([str(tmp_path)], tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b'{"text": "a"}\n{"text": "b"}\n', [b"a", b"b"]),
        (b"{ braces } are not JSON\n", [b"{ braces } are not JSON\n"]),
        (b"plain text", [b"plain text"]),
        (b"", [b""]),
        (arrow_bytes(table(["x", "y"]), stream=True), [b"x", b"y"]),
        (arrow_bytes(table(["x", "y"])), [b"x", b"y"]),
        (parquet_bytes(table(["x", "y"])), [b"x", b"y"]),
    ],
)
def test_a_file_whose_name_says_nothing_is_told_by_its_content(
    tmp_path: Path, data: bytes, wanted: list[bytes]
) -> None:
    path = tmp_path / "nameless"
    path.write_bytes(data)
    assert read_path(path).documents == wanted


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "zip", "pdf"])
def test_a_name_that_lies_about_the_format_is_an_error_with_a_hint(tmp_path: Path, name: str, kind: str) -> None:
    data = {
        "parquet": parquet_bytes(table(["x"])),
        "arrow": arrow_bytes(table(["x"])),
        "zip": b"PK\x03\x04 and so on",
        "pdf": b"%PDF-1.7 and so on",
    }[kind]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        read_path(path)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather"])
@pytest.mark.parametrize("data", [b"", b"plain text", b'{"text": "a"}\n', b"PAR1", b"ARROW1\0\0", b"PAR1" * 5])
def test_a_table_that_is_none_is_an_error(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        read_path(path)
    assert caught.value.place


def test_the_format_that_the_user_forces_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b'{"text": "a"}\n')
    assert read_path(path, form="jsonl").documents == [b"a"]
    path = tmp_path / "b.jsonl"
    path.write_bytes(b"%PDF-1.7 as text")
    assert read_path(path, form="text").documents == [b"%PDF-1.7 as text"]
    with pytest.raises(UsageError, match="no input format `word`"):
        read_path(path, form="word")


def test_an_ending_belongs_to_one_format() -> None:
    endings = [ending for format in INPUT_FORMATS.values() for ending in format.endings.split()]
    assert len(endings) == len(set(endings))


@pytest.mark.parametrize("data", [b'{"text": "a b"}\n', b"plain text"])
def test_standard_input_is_read(data: bytes) -> None:
    code = (
        "from shardmill.documents import *\n"
        "from shardmill.sources import find_sources\n"
        "[source] = find_sources(['-'])\n"
        "reader = SourceReader(0, source, Reading(), FreeRoom())\n"
        "print([bytes(reader.read(chunk).data) for chunk in reader.chunks(Position(), 100)], reader.unit)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    unit = b"line" if data[:1] == b"{" else b"byte"
    assert done.stdout.strip() == b"[b'%s'] %s" % (b"a b" if unit == b"line" else data, unit)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.csv", "a.txt.gz"])
def test_a_file_that_vanishes_is_an_error_with_its_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"text\n")
    [source] = find_sources([str(path)])
    path.unlink()
    with pytest.raises(SourceError, match="not there any more") as caught:
        read_source(source, 10)
    assert caught.value.place == str(path)
    with pytest.raises(SourceError):
        SourceReader(0, source, Reading(), FreeRoom()).check()


def _lines(count: int) -> bytes:
    return b"".join(b'{"text": "%06d"}\n' % i for i in range(count))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("how", ["shrinks", "grows", "is replaced"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / name
    path.write_bytes(_lines(20_000))
    [source] = find_sources([str(path)])
    reader = SourceReader(0, source, Reading(separator=b"\n"), FreeRoom())
    chunks = reader.chunks(Position(), 10_000)
    reader.read(next(chunks))
    later = next(chunks)
    if how == "shrinks":
        os.truncate(path, 1000)
    elif how == "grows":
        with path.open("ab") as file:
            file.write(b"more\n")
    else:
        path.write_bytes(_lines(20_000).replace(b"0", b"1"))
        os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="changed while it was read"):
        reader.read(later)
    with pytest.raises(SourceError, match="changed while it was read"):
        reader.check()
    if how == "shrinks":
        with pytest.raises(ShardmillError):
            list(chunks)


def test_files_are_closed_when_chunks_are_exhausted_or_given_up(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a.txt", "a.jsonl", "a.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(_lines(20_000) if not name.endswith("gz") else gzip.compress(_lines(20_000)))
        [source] = find_sources([str(path)])
        reader = SourceReader(0, source, Reading(separator=b"\n"), FreeRoom())
        for chunk in reader.chunks(Position(), 100_000):
            reader.read(chunk)
        given_up = reader.chunks(Position(), 1000)
        next(given_up)
        given_up.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


def test_places_are_for_people(tmp_path: Path) -> None:
    for name, place, unit in (("a.jsonl", "line 18,204,551", "line"), ("a.parquet", "row 18,204,551", "row")):
        (tmp_path / name).write_bytes(b"")
        [source] = find_sources([str(tmp_path / name)])
        reader = SourceReader(0, source, Reading(), FreeRoom())
        assert reader.place(18_204_550, 7) == place and reader.unit == unit
    (tmp_path / "a.txt").write_bytes(b"")
    [source] = find_sources([str(tmp_path / "a.txt")])
    assert SourceReader(0, source, Reading(), FreeRoom()).place(-1, 1234) == "byte 1,234"
