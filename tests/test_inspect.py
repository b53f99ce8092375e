"""Before a run: what `inspect` tells is exact where it says so, near where it does not, and costs seconds."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import shutil
from collections import namedtuple
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard

import shardmill
from shardmill import preflight
from shardmill.encoding import load_tokenizer
from shardmill.errors import OutputError
from shardmill.inspecting import excerpts, inspect, sampling
from shardmill.inspecting.estimate import output_sizes
from shardmill.options import FORMATS
from shardmill.reading import compressed, storage
from tests.corpus import documents, random_words, write_jsonl
from tests.encoding.vocabularies import rank_file
from tests.meter import metered

Disk = namedtuple("Disk", "total used free")


def texts(size: int, seed: int) -> list[str]:
    """About `size` bytes of documents of very different lengths; nothing is repeated, which would compress too well."""
    made: list[str] = []
    pool = iter(documents(size // 380 + 100, seed))
    rng = np.random.default_rng(seed)
    while size > 0:
        parts = int(rng.integers(1, 4 + 8 * (len(made) % 7 == 0)))
        made.append(" ".join(islice(pool, parts)))
        size -= len(made[-1].encode()) or 1
    return made


def true_tokens(made: list[str]) -> int:
    """With an end-of-text token for each document that has text."""
    joined = [text.encode() for text in made if text]
    ends = np.cumsum([0, *map(len, joined)])
    encoded = load_tokenizer("gpt2").engine().encode(np.frombuffer(b"".join(joined), np.uint8), ends)
    return len(encoded.tokens)


def write_parquet(path: Path, made: list[str], group: int) -> Path:
    table = pa.table({"id": list(range(len(made))), "text": made})
    pq.write_table(table, path, row_group_size=group, compression="zstd", use_dictionary=False)
    return path


def write_csv(path: Path, made: list[str]) -> Path:
    pyarrow.csv.write_csv(pa.table({"id": list(range(len(made))), "text": made}), path)
    return path


def found(report, what):
    return [trouble for trouble in report.troubles if trouble.what == what]


def test_all_of_a_small_source_is_read_and_exact(tmp_path):
    made = documents(300)
    report = inspect(write_jsonl(tmp_path / "a.jsonl", made))
    assert report.documents.exact and report.documents.value == 300
    assert report.tokens.exact and report.tokens.value == true_tokens(made)
    assert report.text_bytes.exact and report.text_bytes.value == sum(len(text.encode()) for text in made)
    assert sum(count for _, count in report.sizes) == sum(1 for text in made if text)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".txt", ".txt.zst", ".log", ".parquet", ".csv"])
def test_what_is_said_to_be_exact_is_what_prepare_makes(tmp_path, ending):
    made = [text for text in documents(4000, seed=3) if text and "\0" not in text and "\r" not in text]
    path = tmp_path / f"a{ending}"
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in made)
    plain = "<|sep|>".join(made).encode()
    options = {}
    if "parquet" in ending:
        write_parquet(path, made, 500)
    elif "csv" in ending:
        write_csv(path, made)
    elif "jsonl" in ending:
        path.write_bytes(gzip.compress(lines) if ending.endswith("gz") else lines)
    else:
        path.write_bytes(zstandard.compress(plain) if ending.endswith("zst") else plain)
        options = {} if ending == ".log" else {"separator": "<|sep|>"}
    report = inspect(path, **options)
    result = shardmill.prepare(path, tmp_path / "out", val="0", **options)
    assert report.tokens.exact and report.documents.exact
    assert report.tokens.value == result.manifest["splits"]["train"]["tokens"]
    assert report.documents.value == result.manifest["documents"]


def test_the_rows_of_parquet_are_exact_though_its_tokens_are_estimated(tmp_path, few_places):
    made = texts(6_000_000, 5)
    report = inspect(write_parquet(tmp_path / "a.parquet", made, 200))
    assert report.documents == report.kinds[0].documents
    assert report.documents.exact and report.documents.value == len(made)
    assert not report.tokens.exact
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.03


@pytest.fixture
def few_places(monkeypatch):
    """Places of 32 kB instead of 512, and blocks to match: so some megabytes are much more than a sample."""
    for module in (excerpts, sampling):
        monkeypatch.setattr(module, "UNIT", 1 << 15)
    monkeypatch.setattr(storage, "BLOCK", storage.BLOCK >> 4)
    monkeypatch.setattr(compressed, "INPUT_BLOCK", compressed.INPUT_BLOCK >> 4)


def test_tokens_of_sources_of_many_kinds_and_sizes_are_within_three_percent(tmp_path, few_places):
    parts = [texts(size, seed) for seed, size in enumerate([9_000_000, 4_000_000, 3_000_000, 2_000_000, 500_000])]
    write_jsonl(tmp_path / "large.jsonl", parts[0])
    write_parquet(tmp_path / "a.parquet", parts[1], 300)
    lines = write_jsonl(tmp_path / "b.jsonl", parts[2]).read_bytes()
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(lines))
    (tmp_path / "b.jsonl").unlink()
    write_csv(tmp_path / "c.csv", parts[3])
    for i, text in enumerate(parts[4]):
        (tmp_path / f"note{i:05}.txt").write_text(text)
    report = inspect(tmp_path)
    truth = sum(map(true_tokens, parts))
    assert {(kind.format, kind.compression) for kind in report.kinds} == {
        ("jsonl", ""), ("jsonl", "zstd"), ("parquet", ""), ("csv", ""), ("text", ""),
    }  # fmt: skip
    assert not report.tokens.exact
    assert abs(report.tokens.value / truth - 1) < 0.03
    assert abs(report.documents.value / sum(map(len, parts)) - 1) < 0.1
    assert report.tokens.margin < 0.1 * truth
    assert report.sampled_bytes < 0.6 * report.text_bytes.value


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "feather"])
def test_rows_that_only_come_in_order_are_estimated_from_the_beginning(tmp_path, few_places, monkeypatch, kind):
    monkeypatch.setattr("shardmill.inspecting.row_windows._BEGINNING", 1 << 20)
    made = [text for text in texts(24_000_000, 8) if text]
    path = tmp_path / f"a.{kind}"
    if kind == "feather":
        pyarrow.feather.write_feather(pa.table({"text": made}), path, chunksize=400)
    else:
        raw = write_csv(tmp_path / "b.csv", made).read_bytes()
        path.write_bytes(gzip.compress(raw, 1) if kind.endswith("gz") else raw)
    report = inspect(path)
    assert not report.troubles
    assert not report.tokens.exact
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.03
    assert abs(report.documents.value / len(made) - 1) < 0.1
    assert report.sampled_bytes < 0.4 * report.text_bytes.value


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2", "xz"])
def test_the_text_of_compressed_sources_is_estimated_by_what_went_in_and_came_out(tmp_path, few_places, ending):
    fast_xz = partial(lzma.compress, preset=0)
    pack = {"gz": gzip.compress, "zst": zstandard.compress, "bz2": bz2.compress, "xz": fast_xz}[ending]
    made = [text.replace("\n", " ") for text in texts(8_000_000, 9)]
    raw = "\n\n".join(made).encode()
    path = tmp_path / f"a.txt.{ending}"
    path.write_bytes(pack(raw))
    report = inspect(path, separator=r"\n\n")
    assert abs(report.text_bytes.value / len(raw) - 1) < 0.03
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.03


def test_the_histogram_adds_up_to_the_documents_that_have_text(tmp_path, few_places):
    made = texts(5_000_000, 2)
    report = inspect(write_parquet(tmp_path / "a.parquet", made, 100))
    assert sum(count for _, count in report.sizes) == pytest.approx(sum(1 for text in made if text), rel=0.01)
    bounds = [up_to for up_to, _ in report.sizes]
    truth = np.array([len(text.encode()) for text in made])
    for up_to, count in zip(bounds, [count for _, count in report.sizes], strict=True):
        inside = int(np.count_nonzero((truth <= up_to) & (truth > up_to // 4)))
        assert abs(count - inside) < 0.1 * len(made), up_to


@pytest.mark.parametrize(
    ("between", "option"), [("<|endoftext|>", "<|endoftext|>"), ("\n\n", r"\n\n"), ("\n\n\n", r"\n\n\n"), ("\n", r"\n")]
)
def test_separators_in_plain_text_are_found_with_the_option_to_use(tmp_path, between, option):
    pieces = [" ".join(["some words of one document"] * 40)] * 2000
    (tmp_path / "a.txt").write_text(between.join(pieces))
    report = inspect(tmp_path / "a.txt")
    assert report.separators[0].separator == option
    assert abs(report.separators[0].documents / 2000 - 1) < 0.1
    assert report.documents.value == 1
    (trouble,) = found(report, "separator")
    assert f"--separator '{option}'" in trouble.hint
    again = inspect(tmp_path / "a.txt", separator=option)
    assert again.documents.value == 2000
    assert not again.troubles and not again.separators


def test_a_folder_of_small_notes_with_blank_lines_needs_no_separator(tmp_path):
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text("A note.\n\nIts second paragraph.\n\nIts end.\n")
    report = inspect(tmp_path)
    assert report.separators[0].separator == r"\n\n"
    assert not report.troubles


def test_a_separator_that_is_not_there_is_said(tmp_path):
    (tmp_path / "a.txt").write_bytes(random_words(1_000_000))
    (trouble,) = found(inspect(tmp_path / "a.txt", separator="<|nowhere|>"), "separator")
    assert "<|nowhere|>" in trouble.message


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "csv"])
def test_a_wrong_field_would_stop_and_the_fields_are_named(tmp_path, kind):
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


def test_rejects_are_told_with_their_share_and_reasons(tmp_path):
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
    allowed = re.search(r"--max-bad (\S+?)`", trouble.hint)[1]
    assert not inspect(path, max_bad=allowed).stops
    shardmill.prepare(path, tmp_path / "out", max_bad=allowed)


def test_invalid_utf8_is_told_with_its_share(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait " * 1000)
    (trouble,) = found(inspect(tmp_path / "a.txt"), "utf8")
    assert "1,000 places" in trouble.message and "6.7 %" in trouble.message
    assert "iconv" in trouble.hint


def test_a_vocabulary_too_large_for_uint16_is_told(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", documents(20))
    report = inspect(source, tokenizer=str(rank_file("cl100k_base.tiktoken")))
    assert report.token_bytes == 4
    assert "uint16" in found(report, "vocabulary")[0].message
    assert report.output_bytes["nanogpt"] == 4 * report.tokens.value


def test_empty_sources_are_named(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", documents(5))
    (tmp_path / "b.txt").touch()
    (tmp_path / "c.jsonl").touch()
    (trouble,) = found(inspect(tmp_path), "empty")
    assert "b.txt" in trouble.place and "c.jsonl" in trouble.place and "a.jsonl" not in trouble.place
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b""))
    assert inspect(tmp_path / "d.txt.gz").tokens.value == 0
    assert "all sources" in found(inspect(tmp_path / "b.txt"), "empty")[0].message


def test_a_disk_that_is_too_small_is_told(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", documents(400))
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or Disk(10**6, 10**6, 1000))
    report = inspect(source, tmp_path / "not" / "yet")
    assert asked == [tmp_path]
    assert report.free_bytes == 1000 and report.stops
    assert "1 kB are free" in found(report, "disk")[0].message


def test_memory_that_does_not_suffice_is_told_with_the_least_that_works(tmp_path):
    report = inspect(write_jsonl(tmp_path / "a.jsonl", documents(5)), memory="50MB")
    assert report.memory_bytes == 50_000_000
    assert "--memory" in found(report, "memory")[0].hint and report.stops


def test_a_damaged_source_is_told_and_the_others_are_counted(tmp_path):
    good = write_jsonl(tmp_path / "a.jsonl", documents(100))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(good.read_bytes())[:-20])
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more than that")
    report = inspect(tmp_path)
    assert {trouble.place.split(",")[0].rsplit("/")[-1] for trouble in found(report, "source")} == {
        "b.jsonl.gz", "c.parquet",
    }  # fmt: skip
    assert [kind.documents.value for kind in report.kinds if (kind.format, kind.compression) == ("jsonl", "")] == [100]


@pytest.mark.parametrize("format", FORMATS)
def test_the_size_of_every_output_format_is_foreseen(tmp_path, format):
    made = [text for text in documents(3000, seed=1) if text]
    source = write_jsonl(tmp_path / "a.jsonl", made)
    report = inspect(source)
    assert set(report.output_bytes) == set(FORMATS)
    result = shardmill.prepare(source, tmp_path / "out", format=format, shard_tokens="100k")
    splits = result.manifest["splits"].values()
    written = sum(file["bytes"] for split in splits for file in split["files"])
    foreseen = output_sizes(report.tokens.value, len(made), 2, report.vocab_size, 100_000)[format]
    assert abs(foreseen / written - 1) < 0.01


@pytest.fixture
def bytes_read(monkeypatch):
    """How many bytes come from files, and how many files are opened."""
    counted = {"bytes": 0, "opened": 0}
    pread, opened = storage._pread, os.open

    def count(descriptor, n, offset):
        got = pread(descriptor, n, offset)
        counted["bytes"] += len(got)
        return got

    def count_open(*arguments, **more):
        counted["opened"] += 1
        return opened(*arguments, **more)

    monkeypatch.setattr(storage, "_pread", count)
    monkeypatch.setattr(os, "open", count_open)
    return counted


@pytest.mark.parametrize("name", ["hole.txt", "hole.jsonl"])
def test_a_terabyte_costs_no_more_than_some_megabytes(tmp_path, bytes_read, name):
    path = tmp_path / name
    block = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts(300_000, 1))
    with path.open("wb") as file:
        for i in range(8):
            file.seek(i << 37)
            file.write(block)
        file.truncate(1 << 40)
    report = inspect(path)
    assert report.stored_bytes == 1 << 40
    assert report.text_bytes.value > 0
    assert 0 < bytes_read["bytes"] < 250_000_000


def test_of_very_many_files_some_are_opened(tmp_path, bytes_read):
    made = texts(3_000_000, 4)
    for i in range(6000):
        folder = tmp_path / f"{i // 1000}"
        folder.mkdir(exist_ok=True)
        (folder / f"{i:05}.txt").write_text(made[i % len(made)] * (1 + i % 3))
    report = inspect(tmp_path)
    assert report.sources == report.documents.value == 6000
    assert bytes_read["opened"] <= 80 * 64 + 10
    truth = true_tokens([made[i % len(made)] * (1 + i % 3) for i in range(6000)])
    assert abs(report.tokens.value / truth - 1) < 0.03


def test_json_holds_what_the_python_call_gives(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", documents(200))
    run = metered("inspect", source, "--json", "-o", tmp_path, "--workers", "1")
    assert (run.code, run.err) == (0, "")
    said, given = json.loads(run.out), json.loads(json.dumps(inspect(source, tmp_path, workers=1).data()))
    passing = {"seconds", "sampled_seconds", "free_bytes"}
    assert {key: said[key] for key in said.keys() - passing} == {key: given[key] for key in given.keys() - passing}
    assert said["documents"] == {"value": 200, "margin": 0}
    assert said["naive_bytes"] == 41 * said["tokens"]["value"] + said["text_bytes"]["value"]


def test_the_text_says_all_of_it_in_a_hundred_columns(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", documents(500))
    (tmp_path / "b.txt").write_text("one\n\ntwo\n\n" * 200_000)
    (tmp_path / "c.txt").write_bytes(b"\xff")
    run = metered("inspect", tmp_path, "-o", tmp_path / ("long" * 40), "--workers", "2", "--memory", "512MB")
    assert run.code == 0
    for word in ("jsonl", "text", "documents", "up to", "separators", "tokens", "bytes a token", "output", "disk",
                 "512 MB at the most", "2 workers", "time", "naive", "warning:", "hint:", *FORMATS):  # fmt: skip
        assert word in run.out, word
    for line in run.out.splitlines():
        assert len(line) <= 100 or "longlong" in line, line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.txt"], 2, "nowhere.txt"),
        (["-"], 2, "only once"),
        (["{good}", "--separator", ""], 2, "separator"),
        (["{good}", "-t", "no-such-tokenizer"], 2, "no-such-tokenizer"),
        (["{good}", "--input-format", "parquet"], 1, "would stop:"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(tmp_path, arguments, code, said):
    good = write_jsonl(tmp_path / "good.jsonl", documents(10))
    run = metered("inspect", *[argument.format(good=good) for argument in arguments])
    assert run.code == code, run.err
    assert said in run.out + run.err
    assert "Traceback" not in run.err


def test_prepare_refuses_a_disk_that_is_too_small_and_writes_nothing(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", documents(2000))
    needed = inspect(source).output_bytes["nanogpt"]
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Disk(10**9, 0, needed - 1))
    with pytest.raises(OutputError, match="the output would take about") as refused:
        shardmill.prepare(source, tmp_path / "out", val="0")
    assert refused.value.hint
    assert not list((tmp_path / "out").glob("*.bin*"))
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Disk(10**9, 0, needed))
    assert shardmill.prepare(source, tmp_path / "out", val="0").manifest["documents"] > 0


def test_two_formats_need_the_space_of_both(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", documents(2000))
    sizes = inspect(source).output_bytes
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: Disk(10**9, 0, int(1.5 * sizes["nanogpt"])))
    with pytest.raises(OutputError):
        shardmill.prepare(source, tmp_path / "out", format=("nanogpt", "npy"))


def test_a_small_file_that_unpacks_to_very_much_is_not_unpacked_whole(tmp_path):
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(b"a bomb " * 150_000)
    report = inspect(path)
    assert report.sampled_bytes < 100_000_000
    assert abs(report.text_bytes.value / (300 * 7 * 150_000) - 1) < 0.1


def test_the_function_is_there_under_the_packages_name(tmp_path):
    assert shardmill.inspect(write_jsonl(tmp_path / "a.jsonl", documents(3))).documents.value == 3
