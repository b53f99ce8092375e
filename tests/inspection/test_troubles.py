"""What would go wrong in a run is told before it."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import shardmill
from shardmill.errors import UsageError
from shardmill.options import FORMATS
from shardmill.run import inspect
from shardmill.shards import format_named, open_output
from tests.corpus import documents, random_words, write_jsonl
from tests.inspection.material import Disk, found, write_csv, write_parquet
from tests.meter import metered
from tests.tokens.vocabularies import rank_file


@pytest.mark.parametrize(
    ("between", "option"), [("<|endoftext|>", "<|endoftext|>"), ("\n\n", r"\n\n"), ("\n\n\n", r"\n\n\n"), ("\n", r"\n")]
)
def test_separators_in_plain_text_are_found_with_the_option_to_use(tmp_path: Path, between: str, option: str) -> None:
    pieces = [" ".join(["some words of one document"] * 40)] * 2000
    (tmp_path / "a.txt").write_text(between.join(pieces))
    report = inspect(tmp_path / "a.txt")
    assert report.separators[0].separator == option
    assert abs(report.separators[0].documents / 2000 - 1) < 0.1
    assert report.documents.value == 1
    assert f"--separator '{option}'" in report.text()
    told = found(report, "separator")
    assert len(told) == (option == "<|endoftext|>")  # blank lines also separate paragraphs: they are no trouble
    assert all(f"--separator '{option}'" in trouble.hint for trouble in told)
    again = inspect(tmp_path / "a.txt", separator=option)
    assert again.documents.value == 2000
    assert not again.troubles and not again.separators


def test_a_folder_of_small_notes_with_blank_lines_needs_no_separator(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("A note.\n\nIts second paragraph.\n\nIts end.\n")
    report = inspect(tmp_path)
    assert report.separators[0].separator == r"\n\n"
    assert not report.troubles


def test_a_separator_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(random_words(1_000_000))
    (trouble,) = found(inspect(tmp_path / "a.txt", separator="<|nowhere|>"), "separator")
    assert "<|nowhere|>" in trouble.message


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "csv"])
def test_a_wrong_field_would_stop_and_the_fields_are_named(tmp_path: Path, kind: str) -> None:
    made = documents(50)
    if kind == "parquet":
        path = write_parquet(tmp_path / "a.parquet", made, 10)
    elif kind == "csv":
        path = write_csv(tmp_path / "a.csv", made)
    else:
        path = write_jsonl(tmp_path / "a.jsonl", made)
    if kind.endswith("gz"):
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "a.jsonl.gz"
    report = inspect(path, text_field="body")
    assert report.stops
    assert "`text`" in found(report, "source")[0].hint and "--text-field" in found(report, "source")[0].hint


def test_rejects_are_told_with_their_share_and_reasons(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", documents(900))
    with path.open("a") as file:
        file.writelines(['{"text": null}\n'] * 60 + ['{"text": \n'] * 40)
    (trouble,) = found(inspect(path), "rejects")
    assert "10 %" in trouble.message
    assert "is null (60)" in trouble.message and "not valid JSON" in trouble.message and "(40)" in trouble.message
    assert not trouble.stops  # up to a hundred never stop a run
    with path.open("a") as file:
        file.write('{"text": null}\n')
    (trouble,) = found(inspect(path), "rejects")
    assert trouble.stops
    allowed = re.search(r"--max-bad (\S+?)`", trouble.hint or "")[1]
    assert not inspect(path, max_bad=allowed).stops
    shardmill.prepare(path, tmp_path / "out", max_bad=allowed)


def test_invalid_utf8_is_told_with_its_share(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait " * 1000)
    (trouble,) = found(inspect(tmp_path / "a.txt"), "utf8")
    assert "1,000 invalid UTF-8 sequences" in trouble.message and "6.7 %" in trouble.message
    assert trouble.stops
    assert "iconv" in trouble.hint


def test_a_vocabulary_too_large_for_uint16_is_told(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(20))
    report = inspect(source, tokenizer=str(rank_file("cl100k_base.tiktoken")))
    assert report.token_bytes == 4
    assert "uint16" in found(report, "vocabulary")[0].message
    assert 4 * report.tokens.value <= report.output_bytes["nanogpt"] < 4 * report.tokens.value + 2000


@pytest.mark.parametrize("content", [b"", b'{"text": "', b"words without an end "])
def test_json_lines_without_line_ends_would_stop(tmp_path: Path, content: bytes) -> None:
    """A terabyte of one line, of which nearly all is a hole; and a hundred megabytes of words."""
    path = tmp_path / "one.jsonl"
    with path.open("wb") as file:
        if b"words" in content:
            file.writelines([content * 50_000] * 100)  # not at once: other tests look at this process's memory
        else:
            file.write(content)
            file.truncate(1 << 40)
    report = inspect(path)
    assert report.stops
    (trouble,) = found(report, "source")
    assert trouble.place.startswith(str(path))
    assert any(word in trouble.hint for word in ("NUL bytes", "JSON Lines", "not look like text"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nul.txt", bytes(300_000)),
        ("nul.jsonl", bytes(300_000)),
        ("noise.txt", np.random.default_rng(0).bytes(300_000)),
        ("noise.csv", np.random.default_rng(1).bytes(300_000)),
        ("noise.jsonl", np.random.default_rng(2).bytes(300_000)),
        ("half.txt", b"some words\n" * 2000 + bytes(300_000)),
    ],
)
def test_a_source_that_is_not_text_is_named_and_not_printed_raw(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    report = inspect(tmp_path / name)
    (trouble,) = found(report, "binary")
    assert trouble.place == str(tmp_path / name)
    assert "not text" in trouble.message
    said = report.text()
    assert all(one.isprintable() or one == "\n" for one in said)
    assert "\ufffd" not in said
    assert len(said) < 10_000


def test_real_text_with_a_few_control_characters_is_text(tmp_path: Path) -> None:
    pages = "A page of words.\n\tAnd \x1b[1mmore\x1b[0m of them.\r\n" * 40 + "\f"
    (tmp_path / "a.txt").write_text(pages * 50)
    (tmp_path / "b.txt").write_bytes(b"one\x00 in many" + b" words of it" * 1000)
    (tmp_path / "c.txt").write_bytes("as Windows writes it".encode("utf-16"))
    assert not found(inspect(tmp_path), "binary")


@pytest.mark.parametrize("size", [6_000_000, 50_000_000])
def test_a_stretch_without_a_place_to_cut_is_read_anyway(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * size)
    report = inspect(tmp_path / "a.txt")
    assert report.text_bytes.value == size
    assert report.tokens.exact == (size < 10_000_000)
    result = shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", val="0")
    assert abs(report.tokens.value - result.manifest["splits"]["train"]["tokens"]) <= report.tokens.margin


def test_empty_sources_are_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", documents(5))
    (tmp_path / "b.txt").touch()
    (tmp_path / "c.jsonl").touch()
    (trouble,) = found(inspect(tmp_path), "empty")
    assert "b.txt" in trouble.place and "c.jsonl" in trouble.place and "a.jsonl" not in trouble.place
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b""))
    assert inspect(tmp_path / "d.txt.gz").tokens.value == 0
    assert "all sources" in found(inspect(tmp_path / "b.txt"), "empty")[0].message


def test_a_disk_that_is_too_small_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or Disk(10**6, 10**6, 1000))
    report = inspect(source, tmp_path / "not" / "yet")
    assert asked == [tmp_path]
    assert report.free_bytes == 1000 and report.stops
    assert "1 kB are free" in found(report, "disk")[0].message


def test_for_an_object_store_the_disk_is_that_where_files_are_made_until_they_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache").mkdir()
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or Disk(10**6, 10**6, 20_000))
    report = inspect(source, "s3://bucket/out", shard_tokens="1k")
    staging = str(tmp_path / "cache" / "shardmill" / "staging")
    assert asked == [tmp_path / "cache"]
    assert (report.out, report.staging, report.free_bytes) == ("s3://bucket/out", staging, 20_000)
    (trouble,) = found(report, "disk")
    assert "as nanogpt, megatron, torchtitan does not fit" in trouble.message and "-f shards" in trouble.hint
    assert trouble.place == staging and not report.stops
    said = "".join(report.text().split())  # a long path is folded anywhere
    assert f"20 kB free in {staging}, where files are made for s3://bucket/out".replace(" ", "") in said
    assert found(inspect(source, "s3://bucket/out"), "disk")[0].stops, "six shards of the usual size"
    kept = tmp_path / "kept"
    assert inspect(source, "s3://bucket/out", cache=str(kept)).staging == str(kept / "staging")
    assert not kept.exists(), "nothing is written"


def test_uploads_take_their_memory_in_the_foretelling_too(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(5))
    least = []
    for out in (tmp_path / "out", "s3://bucket/out"):
        # Each in a process of its own: what other tests hold in this one changes between two calls.
        run = metered("inspect", source, "-o", out, "--memory", "50MB", "--json")
        (trouble,) = [trouble for trouble in json.loads(run.out)["troubles"] if trouble["what"] == "memory"]
        least.append(int(re.search(r"--memory (\d+)MB", trouble["hint"])[1]))
    assert least[1] - least[0] > 50


def test_an_object_that_would_be_too_large_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    monkeypatch.setattr("shardmill.inspection.troubles.LARGEST_OBJECT", 1000)
    (trouble,) = found(inspect(source, "gs://bucket/out"), "disk")
    assert "nanogpt, megatron" in trouble.message and "-f shards" in trouble.hint
    assert not found(inspect(source, tmp_path / "out"), "disk")


def test_a_url_that_nothing_can_be_written_to_is_refused(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(5))
    with pytest.raises(UsageError, match="nothing can be written"):
        inspect(source, "ftp://host/out")


def test_formats_of_one_file_are_those_whose_files_have_no_end(tmp_path: Path) -> None:
    made = [open_output(name, tmp_path, name="a", dtype=np.dtype("uint16"), shard_tokens=1000) for name in FORMATS]
    assert {output.format for output in made if not output.file_tokens} == {
        name for name in FORMATS if not format_named(name).sharded
    }


def test_memory_that_does_not_suffice_is_told_with_the_least_that_works(tmp_path: Path) -> None:
    report = inspect(write_jsonl(tmp_path / "a.jsonl", documents(5)), memory="50MB")
    assert report.memory_bytes == 50_000_000
    assert "--memory" in found(report, "memory")[0].hint and report.stops


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "csv"])
def test_a_record_that_is_too_large_for_the_memory_is_told_as_prepare_tells_it(tmp_path: Path, kind: str) -> None:
    made = [*documents(50), "many words " * 5_500_000, *documents(50)]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        write_parquet(path, made, 1000)
    elif kind == "csv":
        write_csv(path, made)
    else:
        write_jsonl(tmp_path / "a.jsonl", made)
    if kind.endswith("gz"):
        path.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes(), 1))
        (tmp_path / "a.jsonl").unlink()
    told = metered("inspect", path, "--memory", "200MB", "--workers", "1", "--json")
    assert told.code == 1, told.out
    assert {trouble["what"] for trouble in json.loads(told.out)["troubles"] if trouble["stops"]} <= {"memory", "source"}
    ran = metered("prepare", path, "-o", tmp_path / "out", "--memory", "200MB", "--workers", "1")
    assert ran.code == 1, ran.err


def test_a_damaged_source_is_told_and_the_others_are_counted(tmp_path: Path) -> None:
    good = write_jsonl(tmp_path / "a.jsonl", documents(100))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(good.read_bytes())[:-20])
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more than that")
    report = inspect(tmp_path)
    assert {trouble.place.split(",")[0].rsplit("/")[-1] for trouble in found(report, "source")} == {
        "b.jsonl.gz", "c.parquet",
    }  # fmt: skip
    assert [kind.documents.value for kind in report.kinds if (kind.format, kind.compression) == ("jsonl", "")] == [100]
