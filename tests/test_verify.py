"""`verify` finds every kind of damage, and nothing where there is none."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.errors import UsageError
from shardmill.options import FORMATS
from shardmill.shards import format_named
from tests.corpus import documents, write_jsonl
from tests.datasets import TOGETHER, make_dataset, random_documents
from tests.meter import metered
from tests.tokens.vocabularies import added, gpt2_rules, write_json


@pytest.fixture
def made(tmp_path: Path) -> Path:
    source = write_jsonl(tmp_path / "a.jsonl", documents(600))
    with open(source, "a") as file:
        file.write("not json\n")
    shardmill.prepare(source, tmp_path / "out", val=0.3, format=["shards", "nanogpt"], shard_tokens=10_000)
    return tmp_path / "out"


def test_a_whole_dataset_is_found_whole(made: Path) -> None:
    report = verify(made, sample=50, source=True)
    assert not report.damage
    assert report.compared
    assert report.sampled > 50
    assert report.documents == 2 * json.loads((made / "manifest.json").read_text())["documents"]


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_no_document_is_counted_twice_where_there_are_fewer_than_the_sample(tmp_path: Path, count: int) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" + ", and more of it" * 300 for i in range(count)])
    shardmill.prepare(source, tmp_path / "out", val=0)
    report = verify(tmp_path / "out", sample=1000)  # so many that each is drawn
    assert report.sampled == count - 1
    assert len(report.notes) == 1 and report.notes[0].startswith("1 sampled document was not encoded again (first or")


@pytest.mark.parametrize("form", ["nanogpt", "shards", "megatron"])
def test_texts_that_hold_the_end_of_text_themselves_are_not_damage_where_it_is_parsed(
    tmp_path: Path, form: str
) -> None:
    end = "<|endoftext|>"
    source = write_jsonl(tmp_path / "a.jsonl", [f"a{end}", f"{end}b", f"c{end}{end}d", end, *documents(20)])
    shardmill.prepare(source, tmp_path / "out", val=0.3, format=form, specials="parse")
    report = verify(tmp_path / "out", sample=50, source=True)
    assert not report.damage
    assert report.compared


def _tool(**flags: bool) -> dict[str, Any]:
    end = added(50256, "<|endoftext|>", special=True)
    return {"added_tokens": [end, added(50257, "<tool>", special=False, **flags)]}


LOSSY: dict[str, dict[str, Any]] = {
    "a token that takes the spaces before it": _tool(lstrip=True),
    "a token that takes the spaces after it": _tool(rstrip=True),
    "lower case": {"normalizer": {"type": "Lowercase"}},
    "a normal form": {"normalizer": {"type": "NFC"}},
    "a pattern without newlines": {},
}


@pytest.mark.parametrize("kind", LOSSY)
def test_tokens_that_do_not_give_the_text_back_are_no_damage(tmp_path: Path, kind: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["A  <tool>  b\n\ncafe\u0301", "x <tool>", *documents(30)])
    options: dict[str, Any] = {}
    if LOSSY[kind]:
        options["tokenizer"] = write_json("lossy", {**gpt2_rules(), **LOSSY[kind]})
    else:
        ranks = "".join(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256))
        (tmp_path / "bytes.tiktoken").write_text(ranks)
        options |= {"tokenizer": tmp_path / "bytes.tiktoken", "pattern": "."}
    for i, eot in enumerate(["none", "after"] if LOSSY[kind] else ["none"]):
        shardmill.prepare(source, tmp_path / f"{i}", val=0.3, eot=eot, **options)
        report = verify(tmp_path / f"{i}", source=True)
        assert not report.damage and report.compared


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("val", [0, 0.3, "first:9k"])
def test_every_format_is_found_whole_and_a_flipped_bit_in_it_is_not(
    tmp_path: Path, form: str, val: float | str
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(300))
    out = tmp_path / "out"
    shardmill.prepare(source, out, val=val, format=form, shard_tokens=10_000)
    report = verify(out, sample=20, source=True)
    assert not report.damage
    assert report.compared
    assert report.tokens == sum(s["tokens"] for s in json.loads((out / "manifest.json").read_text())["splits"].values())
    largest = max((path for path in out.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    _flip(largest)
    assert any(largest.name in damage for damage in verify(out).damage)


def _flip(path: Path, at: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": (lambda out: _flip(out / "train_000001.bin"), "train_000001.bin"),
    "a file cut short": (lambda out: (out / "val_000000.bin").write_bytes(b"12"), "val_000000.bin"),
    "a file that is gone": (lambda out: (out / "train_000002.bin").unlink(), "train_000002.bin"),
    "two files exchanged": (lambda out: _exchange(out / "train_000000.bin", out / "train_000001.bin"), "train_000000"),
    "a reject lost": (lambda out: (out / "rejects.jsonl").write_text(""), "rejects.jsonl"),
    "another count": (lambda out: _edit(out, lambda m: m["splits"]["train"].update(tokens=5)), "manifest.json"),
    "rejects listed nowhere": (lambda out: _edit(out, lambda m: m.pop("rejects")), "rejects"),
    "a source left out": (lambda out: _edit(out, lambda m: m["sources"].pop()), "manifest.json"),
    "another count of documents in a source": (lambda out: _edit(out, _one_more("documents")), "manifest.json"),
    "another count of empty ones in a source": (lambda out: _edit(out, _one_more("empty")), "manifest.json"),
    "another count of rejects in a source": (lambda out: _edit(out, _one_more("rejected")), "manifest.json"),
    "a source without counts": (lambda out: _edit(out, lambda m: m["sources"][0].pop("empty")), "manifest.json"),
    "a source that is no object": (lambda out: _edit(out, lambda m: m.update(sources=["a"])), "manifest.json"),
    "other documents": (lambda out: _edit(out, lambda m: m["splits"]["train"].update(documents=5)), "documents"),
}


def _exchange(one: Path, other: Path) -> None:
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)


def _edit(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    for new in ("sha256", "skipped"):  # not in earlier releases, so that the other checks have to find it
        manifest.pop(new, None)
    for source in manifest["sources"]:
        source.pop("odd", None)
    change(manifest)
    (out / "manifest.json").write_text(json.dumps(manifest))


def _one_more(kind: str) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["sources"][0].update({kind: manifest["sources"][0][kind] + 1})


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_the_file_is_named(made: Path, kind: str) -> None:
    harm, name = DAMAGE[kind]
    harm(made)
    report = verify(made)
    assert any(name in damage for damage in report.damage), report.damage


SILENT = r"shardmill|replaced|.*\.role"
"""Entries of a manifest that nothing else in a dataset says: without a checksum their change is not found."""
SILENT_COPY = rf"{SILENT}|fingerprint|options\..*|tokenizer\.(name|sha256|eot)|sources\.\d\.(name|bytes)"
"""The same without its hidden folder."""


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"format": ["shards", "nanogpt"], "val": 0.3, "shard_tokens": 10_000},
        {"format": "megatron", "val": "first:3000"},
        {"format": "llmc", "limit": 100, "eot": "after"},
    ],
    ids=str,
)
def test_a_change_of_any_value_in_a_manifest_is_found(tmp_path: Path, options: dict[str, Any], copied: bool) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(150))
    with open(source, "a") as file:
        file.write("not json\n")
    (tmp_path / "b.txt").write_bytes(b"not all is \xff UTF-8\n" * 5000)
    out = tmp_path / "out"
    shardmill.prepare([source, tmp_path / "b.txt"], out, max_bad="any", **options)
    if copied:  # as tools do that leave hidden folders out; then the files alone have to show it
        shutil.rmtree(out / ".shardmill")
    assert not verify(out, sample=0).damage
    _edit(out, lambda manifest: None)
    whole = (out / "manifest.json").read_text()
    assert not verify(out, sample=0).damage
    for path in _values(json.loads(whole)):
        if re.fullmatch(SILENT_COPY if copied else SILENT, ".".join(map(str, path))):
            continue
        changed = json.loads(whole)
        *way, last = path
        holder = reduce(lambda value, key: value[key], way, changed)
        value = holder[last]
        holder[last] = value + 1 if isinstance(value, int) else f"{value}x"
        (out / "manifest.json").write_text(json.dumps(changed))
        try:
            damage = verify(out, sample=0).damage
        except shardmill.ShardmillError as error:
            damage = [str(error)]
        assert damage, path


def _values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all texts and numbers in nested lists and objects."""
    if not isinstance(value, (dict, list)):
        yield path
        return
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _values(one, (*path, key))


@pytest.mark.parametrize("eot", ["after", "before", "none"])
@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("form", [form for form in FORMATS if format_named(form).indexed])
def test_an_index_that_lists_other_documents_than_the_manifest_counts_is_damage(
    tmp_path: Path, form: str, by: int, eot: str
) -> None:
    out = make_dataset(form, tmp_path / "out", random_documents(1), eot=eot)

    def miscount(manifest: dict[str, Any]) -> None:
        for counts in (manifest, manifest["splits"]["train"], manifest["sources"][0]):
            counts["documents"] += by

    assert not verify(out, sample=0).damage
    _edit(out, miscount)
    assert any("documents" in damage for damage in verify(out, sample=0).damage)


def test_an_index_of_millions_of_documents_is_not_held_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\n" * 3_000_000)
    peaks = []
    for limit in (1000, None):
        out = tmp_path / f"out {limit}"
        formats = ["olmo", "megatron", "datatrove"]
        shardmill.prepare(tmp_path / "a.txt", out, separator="\n", format=formats, eot="none", val=0, limit=limit)
        run = metered("verify", out)
        assert run.code == 0, run.err
        peaks.append(run.peak)
    assert peaks[1] - peaks[0] < 30_000_000, peaks  # the lists have 24 to 60 MB


@pytest.mark.parametrize("val", [0.3, "first:2500", "tail:0.3"])
def test_a_document_that_is_cut_between_two_splits_is_no_damage_of_an_index(tmp_path: Path, val: float | str) -> None:
    sources = [tmp_path / f"{i}.txt" for i in range(3)]
    for source in sources:
        source.write_text("\n".join(documents(600)))
    formats = [form for form in TOGETHER if format_named(form).indexed]
    shardmill.prepare(sources, tmp_path / "out", val=val, format=formats, shard_tokens=30_000)
    assert not verify(tmp_path / "out").damage


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([50256, 50256], "two EOT stand side by side"),
        ([60000, 60000], "outside the vocabulary"),
        ([262, 262], "library gives other tokens|EOT for|do not match"),
    ],
)
def test_wrong_tokens_are_found_even_when_the_checksum_was_made_for_them(
    made: Path, tokens: list[int], said: str
) -> None:
    import hashlib

    import numpy as np

    path = made / "train_000000.bin"
    data = np.fromfile(path, np.uint16)
    for at in range(100, len(data) - 100, 50):
        data[at : at + 2] = tokens
    path.write_bytes(data.tobytes())
    digest = hashlib.sha256(data.tobytes()).hexdigest()
    _edit(made, lambda m: m["splits"]["train"]["files"][0].update(sha256=digest))
    report = verify(made, sample=300)
    assert re.search(said, " ".join(report.damage)), report.damage


def test_a_source_that_gives_other_tokens_is_found(made: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(source.read_text().replace(" the ", " teh ", 1))
    report = verify(made, source=True)
    assert any("the sources give" in damage for damage in report.damage)


def test_the_command_exits_with_1_and_names_the_damaged_file(made: Path) -> None:
    assert metered("verify", made).code == 0
    _flip(made / "val_000000.bin")
    run = metered("verify", made, "--json")
    assert run.code == 1
    assert "val_000000.bin" in json.loads(run.out)["damage"][0]


def test_a_folder_without_a_manifest_is_not_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a dataset"):
        verify(tmp_path)
