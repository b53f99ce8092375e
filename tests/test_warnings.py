"""What looks wrong in the text is said after a run, with the way out: whatever `inspect` says, `prepare` says too."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.errors import ShardmillError, SourceError
from shardmill.run import inspect
from shardmill.troubles import KINDS
from shardmill.write import Done, Progress
from tests.corpus import random_words
from tests.tokens.vocabularies import rank_file

LATIN = "Le café est près de l'école, déjà fermé à Noël. ".encode("latin-1")
WORDS = b"some plain words, and some more of them. "


def text(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def twice(folder: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_bytes(b'{"text": "a"}\n')
    (folder / "in" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n'))
    return folder / "in"


CASES: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "source": (text("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 999)[:-9]), {}, ""),
    "sources": (twice, {}, "a.jsonl"),
    "empty": (text("a.txt", b""), {}, "empty"),
    "rejects": (text("a.jsonl", b'{"text": "a"}\n' * 900 + b"{\n" * 5), {}, ""),
    "utf8": (text("a.txt", LATIN + WORDS * 999), {}, "UTF-8"),
    "binary": (text("a.txt", bytes(2000) + WORDS * 99), {}, "not text"),
    "separator": (text("a.txt", (WORDS + b"<|endoftext|>") * 99), {}, "--separator '<|endoftext|>'"),
    "tokens": (text("a.jsonl", json.dumps({"text": "some words<|im_end|>"}).encode() + b"\n"), {}, "--specials parse"),
    "reader": (text("a.txt", WORDS), {"format": "npy"}, "build-nanogpt"),
    "vocabulary": (text("a.txt", WORDS), {"tokenizer": str(rank_file("cl100k_base.tiktoken"))}, "uint"),
    "disk": (text("a.txt", WORDS * 999), {}, ""),
    "memory": (text("a.txt", WORDS), {"memory": "1MB"}, ""),
}
"""An input for each kind of trouble, options, and what the warning of `prepare` says; empty: an error or a count."""


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_inspect_warns_of_prepare_says_too(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, options, said = CASES[kind]
    source = make(tmp_path)
    if kind == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    report = inspect(source, tmp_path / "out", **options)
    assert kind in {trouble.what for trouble in report.troubles}
    if report.stops:
        assert not said
        with pytest.raises(ShardmillError):
            shardmill.prepare(source, tmp_path / "out", **options)
        return
    result = shardmill.prepare(source, tmp_path / "out", **options)
    assert result.manifest["rejected"] == 5 if kind == "rejects" else any(said in one for one in result.warnings)


def test_a_run_over_ordinary_text_warns_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A page.\n\tAnd \x1b[1mmore\x1b[0m of it: a < b, <b>bold</b>.\r\n\f" * 400)
    assert shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", val=0).warnings == ()


@pytest.mark.parametrize("letters", ["é", "ß", "ñ"])
def test_latin_1_stops_the_run_and_the_hint_really_helps(letters: str, tmp_path: Path) -> None:
    wanted = f"un caf{letters} {letters}t{letters} " * 4000
    (tmp_path / "a b.txt").write_bytes(wanted.encode("latin-1"))
    with pytest.raises(SourceError, match="not UTF-8") as stopped:
        shardmill.prepare(tmp_path / "a b.txt", tmp_path / "out")
    assert stopped.value.place.startswith(str(tmp_path / "a b.txt"))
    hint = stopped.value.hint.split("`")[1]
    assert hint.startswith("iconv -f latin1 -t utf-8 ")
    subprocess.run(hint, shell=True, check=True, timeout=60)
    (made,) = tmp_path.glob("*.utf8.txt")
    result = shardmill.prepare(made, tmp_path / "whole", val=0)
    assert result.warnings == () and result.manifest["splits"]["train"]["bytes"] == len(wanted.encode())
    replaced = shardmill.prepare(tmp_path / "a b.txt", tmp_path / "replaced", max_bad="any")
    assert replaced.replaced == 12_000 and "UTF-8" in replaced.warnings[0] and "iconv" in replaced.warnings[0]


def test_a_little_invalid_utf8_stops_no_run_unless_max_bad_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(LATIN + WORDS * 9999)
    assert "iconv" not in shardmill.prepare(tmp_path / "a.txt", tmp_path / "out").warnings[0]
    with pytest.raises(SourceError, match="not UTF-8"):
        shardmill.prepare(tmp_path / "a.txt", tmp_path / "strict", max_bad="0")


def mixed(folder: Path) -> Path:
    """A folder with every kind of odd text, in files of all sizes."""
    folder.mkdir()
    odd = b"<|endoftext|>some words\0\x01 caf\xe9</s> 12<|im_end|>34 <|end_of_text|>\x1e "
    for i in range(30):
        (folder / f"a{i:02}.txt").write_bytes(WORDS * i + odd * (i % 3))
    (folder / "b.txt").write_bytes(random_words(3_000_000) + odd * 3000 + random_words(3_000_000))
    (folder / "c.txt").write_bytes(b"x" * 1_500_000 + odd * 99 + b"y" * 1_500_000)  # a stretch without a cut
    (folder / "d.txt").write_bytes(bytes(3000))
    (folder / "e.txt").write_bytes(b"")
    lines = [json.dumps({"text": "word <|endoftext|>\0 word " * (i % 7)}) for i in range(20_000)]
    (folder / "f.jsonl").write_text("\n".join(lines))
    (folder / "g.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def run(source: Path, out: Path, *options: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The warnings of a run by the command, and what the manifest says of each source."""
    command = [sys.executable, "-m", "shardmill", "prepare", str(source), "-o", str(out), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["warnings"], json.loads((out / "manifest.json").read_text())["sources"]


ALIKE = ("--max-bad", "any", "--val", "0.1")
WAYS = {
    "little memory": ["--workers", "1", "--memory", "150MB"],
    "many workers": ["--workers", "4", "--memory", "2GB"],
    **{f"{n} parts": ["--executor", "local", "--workers", "1", "--parts", str(n)] for n in (2, 5, 11)},
}


def test_the_warnings_and_the_manifest_are_the_same_in_every_way_to_run(tmp_path: Path) -> None:
    source = mixed(tmp_path / "in")
    warnings, sources = run(source, tmp_path / "out", *ALIKE)
    assert len(warnings) > 5 and sum("odd" in one for one in sources) > 20
    for way, options in WAYS.items():
        assert run(source, tmp_path / way, *ALIKE, *options) == (warnings, sources), way


def test_what_was_found_before_a_kill_is_said_after_it(tmp_path: Path) -> None:
    source = mixed(tmp_path / "in")
    options: dict[str, Any] = {"max_bad": "any", "val": 0.1, "workers": 1}
    wanted = shardmill.prepare(source, tmp_path / "whole", **options)

    class Stop(Progress):
        def update(self, done: Done) -> None:
            if done.bytes > 5_000_000:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shardmill.prepare(source, tmp_path / "killed", progress=Stop(), **options)
    result = shardmill.prepare(source, tmp_path / "killed", **options)
    assert result.resumed
    assert result.warnings == wanted.warnings
    assert list(result.manifest["sources"]) == list(wanted.manifest["sources"])


WARC = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 9\r\n\r\nsome: text"
REFUSED = {
    "a.warc": (WARC, "trafilatura"),
    "a.wet": (WARC, "warcio"),
    "a.warc.gz": (gzip.compress(WARC) + gzip.compress(WARC), "trafilatura"),
    "a.wet.gz": (gzip.compress(WARC), "warcio"),
    "a.txt": (WARC, "warcio"),
    "a": (WARC, "warcio"),
    **{f"{n}.pkl": (pickle.dumps(["some text"] * 9, protocol=n), "JSON Lines") for n in range(6)},
    **{f"{n}.txt": (pickle.dumps(["some text"] * 9, protocol=n), "JSON Lines") for n in range(2, 6)},
    "le.txt": (("Some words.\n" * 99).encode("utf-16-le"), "iconv -f utf-16le"),
    "be.jsonl": (('{"text": "some"}\n' * 99).encode("utf-16-be"), "iconv -f utf-16be"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("beside", [0, 3], ids=["alone", "between tiny files"])
def test_what_is_not_text_by_its_first_bytes_is_refused_with_the_way_out(
    name: str, beside: int, tmp_path: Path
) -> None:
    content, way_out = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    others = []
    for i in range(beside):
        (tmp_path / f"other{i}.txt").write_bytes(WORDS)
        others.append(tmp_path / f"other{i}.txt")
    sources = [*others[:2], tmp_path / name, *others[2:]]
    for command in (partial(shardmill.prepare, out=tmp_path / "out"), stopping_inspection):
        with pytest.raises(SourceError) as refused:
            command(sources)
        assert refused.value.place == str(tmp_path / name)
        assert way_out in refused.value.hint


def stopping_inspection(sources: list[Path]) -> None:
    (trouble,) = (one for one in inspect(sources).troubles if one.stops)
    raise SourceError(trouble.message, place=trouble.place, hint=trouble.hint)


def test_utf16_without_a_mark_is_read_after_the_hint(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(("Some words.\n" * 99).encode("utf-16-le"))
    with pytest.raises(SourceError) as refused:
        shardmill.prepare(tmp_path / "a.txt", tmp_path / "out")
    subprocess.run(refused.value.hint.split("`")[1], shell=True, check=True, timeout=60)
    result = shardmill.prepare(tmp_path / "a.txt.utf8.txt", tmp_path / "out2", val=0)
    assert result.manifest["splits"]["train"]["bytes"] == 12 * 99
