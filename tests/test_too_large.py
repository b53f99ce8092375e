"""A record that the memory has no room for stops a run, so that the bytes never depend on `--memory`."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import shardmill
from shardmill.errors import BudgetError
from tests.corpus import contents, random_words
from tests.crashing import allow
from tests.meter import Metered, metered
from tests.tokens.vocabularies import gpt2_rules, write_json

pytestmark = pytest.mark.thorough

MB = 1_000_000
LARGE = 26_000_000
BASE = 400 * MB  # what a run with two workers may take for all but the line


def _numbers(count: int) -> str:
    """A line of about nine times as many bytes."""
    return json.dumps({"text": "beside", "numbers": list(range(count))}) + "\n"


def _lines(path: Path, *, before: int = 30_000) -> Path:
    """Short lines, one of about LARGE bytes, and short lines again, with bad ones among them."""
    with open(path, "w") as file:
        file.writelines(json.dumps({"text": f"the text of line {i}, " * 9}) + "\n" for i in range(before))
        file.write("not json\n")
        file.write(_numbers(LARGE // 9))
        file.writelines(json.dumps({"text": f"line {i} of those after it"}) + "\n" for i in range(1000))
    return path


def _named(said: str) -> str:
    return re.search(r"`--memory (\S+)`", said)[1]


def _text(size: int) -> str:
    return random_words(size).decode()


# Lines of one size in different ways: those that the core takes, and those that are left to Python's parser.
LONG_LINES: dict[str, Callable[[int], bytes]] = {
    "one string": lambda size: json.dumps({"text": _text(size - 20)}).encode(),
    "characters of all widths": lambda size: json.dumps(
        {"text": _text(size - 40) + "é日😀"}, ensure_ascii=False
    ).encode(),
    "escapes": lambda size: b'{"text": "%s"}' % (b'\\u00e9\\" a few words\\n' * (size // 22)),
    "text beside others": lambda size: json.dumps({"id": 7, "text": "short", "other": _text(size - 60)}).encode(),
    "many fields": lambda size: json.dumps(
        {"text": _text(size // 2), "numbers": {str(i): i for i in range(size // 40)}}
    ).encode(),
    "a name twice": lambda size: b'{"text": 1, "text": "%s"}' % json.dumps(_text(size - 40)).encode()[1:-1],
    "a name twice, wide": lambda size: '{"text": 1, "text": "😀'.encode() + b"a few words " * (size // 12) + b'"}',
    "not JSON": lambda size: json.dumps({"text": _text(size - 20)}).encode() + b"}",
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "a.jsonl": lambda data: data,
    "a.jsonl.gz": lambda data: gzip.compress(data, 1),
    "a.jsonl.zst": lambda data: zstandard.compress(data, 1),
    "-": lambda data: data,
}
MATRIX = [(kind, "a.jsonl") for kind in LONG_LINES] + [
    (kind, name) for kind in ("one string", "a name twice") for name in PACKED if name != "a.jsonl"
]


@pytest.mark.parametrize(("kind", "name"), MATRIX)
def test_a_long_line_is_read_within_the_limit_or_with_the_memory_that_the_error_names(
    kind: str, name: str, tmp_path: Path
) -> None:
    line = LONG_LINES[kind](30 * MB)
    source = tmp_path / name.replace("-", "piped.jsonl")
    source.write_bytes(PACKED[name](b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n'))

    def prepare(out: str, memory: str) -> Metered:
        options = ["-o", tmp_path / out, "--memory", memory, "--val", "0", "--max-bad", "any", "-q"]
        with open(source, "rb") as stdin:
            given = ["-", "--input-format", "jsonl"] if name == "-" else [source]
            done = metered("prepare", *given, *options, stdin=stdin)
        assert done.peak < float(memory.removesuffix("MB")) * MB, done.err
        return done

    done = prepare("out", "190MB")
    assert done.code == 1
    assert f"a line of {len(line):,} bytes is larger than the memory allows" in done.err
    assert ", line 2\n" in done.err
    memory = _named(done.err)
    assert float(memory.removesuffix("MB")) * MB < BASE + 6 * len(line)
    done = prepare("out", memory)
    # What Python's parser takes for a line that is left to it is not known: then the process limit ends the run.
    if kind == "a name twice, wide" and done.code:
        assert "the data takes more than" in done.err
        done = prepare("out", _named(done.err))
    assert done.code == 0, done.err
    texts = ["first", json.loads(line)["text"], "last"] if kind != "not JSON" else ["first", "last"]
    plain = tmp_path / "a.txt"
    plain.write_text("\x1e".join(texts), encoding="utf-8", newline="")
    shardmill.prepare(plain, tmp_path / "text", separator="\x1e", val=0)
    made, expected = ((tmp_path / folder / "train.bin").read_bytes() for folder in ("out", "text"))
    assert made == expected


def test_the_run_says_where_it_is_and_goes_on_with_the_memory_that_it_names(tmp_path: Path) -> None:
    source = _lines(tmp_path / "a.jsonl")
    prepare = ["prepare", source, "--max-bad", "any", "-q", "-o"]
    stopped = metered(*prepare, tmp_path / "out", "--memory", "190MB")
    assert stopped.code == 1
    length = len(source.read_bytes().splitlines()[30_001])
    assert f"a line of {length:,} bytes is larger than the memory allows" in stopped.err
    assert f"place: {source}, line 30,002\n" in stopped.err
    assert "Traceback" not in stopped.err
    assert not (tmp_path / "out" / "manifest.json").exists()
    journal = (tmp_path / "out" / ".shardmill" / "journal.jsonl").read_text().splitlines()
    recorded = json.loads(journal[-1])["state"]
    assert recorded["position"]["records"] == 30_001, "all that stands before it was not recorded"
    enough = _named(stopped.err)
    resumed = metered(*prepare, tmp_path / "out", "--memory", enough)
    assert resumed.code == 0, resumed.err
    assert resumed.peak < float(enough.removesuffix("MB")) * MB
    whole = metered(*prepare, tmp_path / "whole", "--memory", "3GB")
    assert whole.code == 0, whole.err
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    (reject,) = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert json.loads(reject)["line"] == 30_001


def test_a_document_for_a_tokenizer_without_cuts_is_no_different(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    tokenizer = write_json("lowercase", {**gpt2_rules(), "normalizer": {"type": "Lowercase"}})
    source = tmp_path / "a.txt"
    source.write_bytes(b"first\x1e" + b"a few words " * (3 * MB // 12) + b"\x1elast")
    prepare = ["prepare", source, "-t", tokenizer, "--separator", r"\x1e", "-o"]
    stopped = metered(*prepare, tmp_path / "out", "--memory", "500MB")
    assert stopped.code == 1
    assert "a document of 3,000,000 bytes is larger than the memory allows" in stopped.err
    assert f"place: {source}, byte 6\n" in stopped.err
    resumed = metered(*prepare, tmp_path / "out", "--memory", _named(stopped.err))
    assert resumed.code == 0, resumed.err
    assert resumed.peak < float(_named(stopped.err).removesuffix("MB")) * MB
    assert metered(*prepare, tmp_path / "whole", "--memory", "3GB").code == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("group", [1, 100])
def test_a_row_of_parquet_is_no_different(tmp_path: Path, group: int) -> None:
    source = tmp_path / "a.parquet"
    texts = ["first", "second", random_words(20 * MB).decode(), *["after"] * 100]
    pq.write_table(pa.table({"text": texts}), source, row_group_size=group, use_dictionary=False)
    prepare = ["prepare", source, "-o"]
    stopped = metered(*prepare, tmp_path / "out", "--memory", "250MB")
    assert stopped.code == 1
    # Of rows that share a page, only the size of the page is known before it is decoded.
    said = (
        r"a row of 20,\d{3},\d{3} bytes is larger than the memory allows"
        if group == 1
        else r"a page of 20,000,\d+ bytes"
    )
    assert re.search(said, stopped.err)
    assert f"place: {source}, row {3 if group == 1 else 1}\n" in stopped.err
    assert stopped.peak < 250 * MB
    enough = _named(stopped.err)
    resumed = metered(*prepare, tmp_path / "out", "--memory", enough)
    assert resumed.code == 0, resumed.err
    assert resumed.peak < float(enough.removesuffix("MB")) * MB
    assert metered(*prepare, tmp_path / "whole", "--memory", "3GB").code == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_lines_are_counted_in_the_source_that_it_stands_in(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(40):
        (tmp_path / f"{i:02}.jsonl").write_text('{"text": "short"}\n\n{"text": "as short"}\n')
    with open(tmp_path / "07.jsonl", "a") as file:
        file.write(_numbers(50_000))
    with open(tmp_path / "05.jsonl", "a") as file:
        file.write(json.dumps({"text": "x" * 70_000}) + "\n")
    allow(100_000, monkeypatch.setattr, in_pieces=False)
    with pytest.raises(BudgetError, match="a line of 338,9") as caught:
        shardmill.prepare(tmp_path, tmp_path / "out", memory="4GB")
    assert caught.value.place == f"{tmp_path / '07.jsonl'}, line 4"


def test_what_stands_after_the_last_wanted_document_does_not_matter(
    tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"text {i}"}) + "\n" for i in range(11)]
    source.write_text("".join([*lines[:10], _numbers(50_000), lines[10]]))
    allow(100_000, monkeypatch.setattr, in_pieces=False)
    result = shardmill.prepare(source, tmp_path / "out", memory="4GB", limit="10", val=0)
    assert result.manifest["documents"] == 10
    with pytest.raises(BudgetError):
        shardmill.prepare(source, tmp_path / "more", memory="4GB", limit="11", val=0)
