"""What a caller passes: every argument of every public function, with values of every wrong kind.

A wrong one is a UsageError that names it, before anything is written; never a traceback, never accepted.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import shardmill
from shardmill.errors import UsageError
from shardmill.options import Options
from tests.corpus import documents, write_jsonl
from tests.meter import metered
from tests.reference import check, twin

LONG = "9" * 5000
VALUES = {
    "None": None, "True": True, "False": False, "0": 0, "-1": -1, "2": 2, "1.5": 1.5, "2.0": 2.0, "nan": math.nan,
    "inf": math.inf, "bytes": b"2", "bytearray": bytearray(b"2"), "empty": "", "NUL": "a\0b", "newline": "a\nb",
    "surrogate": "a\ud800", "slash": "a/b", "dots": "..", "minus": "-1", "nothing": "0", "point": "1.5", "digits": LONG,
    "object": object(), "list": [], "dict": {}, "numbers": [1, 2], "of None": [None], "of bytes": [b"text"],
    "set": {"text"}, "class": int, "complex": 1j, "numpy": np.int64(2), "numpy float": np.float32(1.5),
    "numpy bool": np.bool_(True), "array": np.arange(3), "array of none": np.array(1.5), "Path": Path("nowhere/at/all"),
}  # fmt: skip
ANY_TEXT = {"newline", "slash", "dots", "minus", "nothing", "point", "digits"}
NUMBERS = {"0", "-1", "2", "numpy"}
COUNTS = {"2", "2.0", "numpy"}
# What of all this an option takes. Whatever is not here is refused.
RIGHT = {
    "tokenizer": ANY_TEXT - {"digits"} | {"Path"},
    "pattern": ANY_TEXT | {"NUL", "surrogate"},
    "include": ANY_TEXT - {"dots"} | {"surrogate", "list"},
    "exclude": ANY_TEXT - {"dots"} | {"surrogate", "list"},
    "text_field": ANY_TEXT | {"NUL", "surrogate"},
    "separator": ANY_TEXT | {"NUL"},
    "val": {"0", "nothing"},
    "seed": NUMBERS,
    "shard_tokens": COUNTS,
    "name": {"minus", "nothing", "point"},
    "limit": COUNTS,
    "max_bad": {"0", "2", "numpy", "nothing"},
    "memory": COUNTS,
    "workers": {"2", "numpy"},
    "recipe": ANY_TEXT - {"digits"} | {"Path"},
    "cache": ANY_TEXT - {"digits"} | {"Path"},
    "overwrite": {"True", "False"},
    "shuffle": {"True", "False"},
    "progress": {"True", "False"},
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return write_jsonl(tmp_path / "a.jsonl", documents(20))


@pytest.mark.parametrize("option", [option.name for option in dataclasses.fields(Options)])
def test_an_option_of_a_wrong_kind_is_refused_by_its_name_before_anything_is_written(source: Path, option: str) -> None:
    default = getattr(Options, option)
    for name, value in VALUES.items():
        if name in RIGHT.get(option, ()) or (value is None and default is None):
            Options.of({option: value})
            continue
        for call in (
            lambda value=value: shardmill.prepare(source, "out", **{option: value}),
            lambda value=value: shardmill.inspect(source, **{option: value}),
        ):
            with pytest.raises(UsageError) as error:
                call()
            said = error.value.message
            assert option in said.replace("-", "_").replace(" ", "_") or "`" in said, name
            assert os.listdir() == [], name


WRONG_PATHS = set(VALUES) - ANY_TEXT - {"Path"} | {"digits"}


@pytest.mark.parametrize("value", sorted(WRONG_PATHS))
def test_a_source_or_an_output_of_a_wrong_kind_is_refused_before_anything_is_written(source: Path, value: str) -> None:
    wrong: Any = VALUES[value]
    calls: list[Callable[[], object]] = [
        lambda: shardmill.prepare(wrong, "out"),
        lambda: shardmill.prepare([source, wrong], "out"),
        lambda: shardmill.prepare(source, wrong),
        lambda: shardmill.inspect(wrong),
        lambda: shardmill.open(wrong),
        lambda: shardmill.convert(wrong, "out"),
    ]
    if wrong is not None:
        calls.append(lambda: shardmill.inspect(source, wrong))
    for number, call in enumerate(calls):
        with pytest.raises(UsageError):
            call()
        assert os.listdir() == [], number


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    shardmill.prepare(write_jsonl(folder / "a.jsonl", documents(200)), folder / "data")
    return folder / "data"


CONVERTED = ("format", "eot", "shard_tokens", "tail", "name", "tokenizer", "overwrite", "progress")


@pytest.mark.parametrize("option", CONVERTED)
def test_convert_refuses_what_prepare_refuses(dataset: Path, tmp_path: Path, option: str) -> None:
    for name, value in VALUES.items():
        if name not in RIGHT.get(option, ()) and not (value is None and getattr(Options, option, None) is None):
            with pytest.raises(UsageError):
                shardmill.convert(dataset, tmp_path / "out", **{option: cast(Any, value)})
            assert list(tmp_path.iterdir()) == [], name


@pytest.mark.parametrize(
    ("argument", "right"),
    [
        ("batch_size", {"2", "numpy"}), ("block_size", {"2", "numpy"}), ("rank", {"0"}), ("world_size", {"2", "numpy"}),
        ("seed", NUMBERS), ("order", set()), ("epochs", {"None", "0", "2", "numpy"}), ("last", set()),
        ("documents", {"True", "False"}), ("tensors", {"False"}),
    ],
)  # fmt: skip
def test_batches_refuse_what_is_of_a_wrong_kind(dataset: Path, argument: str, right: set[str] | set[Any]) -> None:
    train = shardmill.open(dataset)["train"]
    for name, value in VALUES.items():
        given: dict[str, Any] = {"batch_size": 2, "block_size": 4, argument: value}
        if name in right:
            train.batches(**given)
        elif argument != "tensors" or value is not True:  # that one needs torch
            with pytest.raises(UsageError):
                train.batches(**given)


@pytest.mark.parametrize(("argument", "right"), [("sample", {"0", "2", "numpy"}), ("source", {"True", "False"}),
                                                 ("folder", set())])  # fmt: skip
def test_verify_refuses_what_is_of_a_wrong_kind(dataset: Path, argument: str, right: set[str] | set[Any]) -> None:
    from shardmill.dataset import verify

    for name, value in VALUES.items():
        given: dict[str, Any] = {"folder": dataset, argument: value}
        if name in right:
            assert not verify(**given).damage
        else:
            with pytest.raises(UsageError):
                verify(**given)


def test_right_values_of_other_kinds_make_the_same_dataset(source: Path) -> None:
    plain: dict[str, Any] = {
        "tokenizer": "gpt2", "format": ("shards",), "val": "0.25", "seed": 3, "shard_tokens": 1000, "limit": 10,
        "max_bad": "0.001", "memory": "6GB", "workers": 1,
    }  # fmt: skip
    other: dict[str, Any] = {
        "tokenizer": "gpt2", "format": ["shards", "shards"], "val": np.float64(0.25), "seed": np.uint8(3),
        "shard_tokens": 1e3, "limit": np.int32(10), "max_bad": np.float64(0.001), "memory": 6e9, "workers": np.int16(1),
    }  # fmt: skip
    shardmill.prepare(str(source), "plain", **plain)
    shardmill.prepare([Path(source)], Path("other"), **other)
    assert (Path("plain") / "manifest.json").read_bytes() == (Path("other") / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("option", "ways"),
    [
        ("limit", [10, "10", " 10", "10 documents", np.int64(10), 10.0]),
        ("limit", ["2000000 tokens", "2M tokens", "2,000,000 tokens", "2m TOKENS"]),
        ("val", ["0.1", 0.1, "10%", ".1", "0.10", "1e-1", np.float64(0.1)]),
        ("val", [0, "0", 0.0, "0%", "0.0"]),
        ("val", ["first:1000000", "first:1M", "first:1_000k"]),
        ("val", ["first:500", "first:0.5k"]),
        ("separator", ["\n\n", "\\n\\n", "\\x0a\n", "\\u000a\\n"]),
        ("separator", ["é|", "\\xe9|", "\\u00e9\\x7c"]),
        ("shard_tokens", [1_000_000, "1M", "1,000k", 1e6]),
    ],
)
def test_what_means_the_same_has_the_same_fingerprint(source: Path, option: str, ways: list[Any]) -> None:
    found = {}
    for way in ways:
        shardmill.prepare(source, "out", overwrite=True, **{option: way})
        found[repr(way)] = (Path("out") / "manifest.json").read_bytes()
    assert len(set(found.values())) == 1


@pytest.mark.parametrize("size", ["6GB", "6000 MB", "6.5gb", "6_000M", "6.0GB", "6,000,000,000", 6_000_000_000])
def test_memory_may_be_written_in_many_ways(source: Path, size: str | int) -> None:
    shardmill.prepare(source, "out", memory=size, val=0)
    check("out", twin(source))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--memory", "0"], ["--memory", "0MB"], ["--memory", "-1"], ["--memory", ""], ["--memory", "lots"],
        ["--name", ""], ["--name", "a\nb"], ["--name", "a/b"], ["--name", ".."], ["--name", "a\\b"],
        ["--name", "a\x1b[1m"], ["--name", "é" * 101],
        ["--limit", "0"],["--limit", "1.5"], ["--limit", "-1"], ["--limit", "0 tokens"],
        ["--workers", "0"], ["--workers", "two"], ["--seed", "x"], ["--seed", "1.5"], ["--shard-tokens", "0"],
        ["--shard-tokens", "1.5"], ["--cache", ""], ["--recipe", ""], ["--tokenizer", ""], ["--text-field", ""],
        ["--val", "first:1.5"], ["--val", "nan"], ["--max-bad", "-1"], ["--max-bad", "some"], ["--separator", ""],
        ["--out", ""], ["--format", ""],
    ],
)  # fmt: skip
def test_the_command_refuses_a_wrong_value_before_anything_is_written(
    source: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    from shardmill.cli import main

    with pytest.raises(SystemExit) as end:
        main(["prepare", str(source), "-o", "out", *arguments])
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    assert said.startswith("error: ")
    assert os.listdir() == []


HUGE = "9" * 26


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ["verify", "{data}", "--sample", HUGE]), (0, ["show", "{data}", "-n", HUGE]),
        (0, ["show", "{data}", "--random", "-n", HUGE]), (2, ["show", "{data}", "-d", HUGE]),
        (2, ["show", "{data}", "--at", HUGE]), (2, ["show", "{data}", "--random", "--seed", "-5"]),
        (2, ["prepare", "{source}", "-o", "out", "--memory", HUGE]),
        (2, ["plan", "{source}", "-o", "out", "--parts", HUGE]),
        (2, ["prepare", "{source}", "-o", "out", "--workers", HUGE]),
    ],
)  # fmt: skip
def test_a_number_beyond_all_reason_is_no_traceback(
    source: Path, dataset: Path, capsys: pytest.CaptureFixture[str], code: int, arguments: list[str]
) -> None:
    from shardmill.cli import main

    with pytest.raises(SystemExit) as end:
        main([part.format(data=dataset, source=source) for part in arguments])
    assert end.value.code == code, capsys.readouterr().err
    assert os.listdir() == []


SECRETS = ["s3://KEY:SEC/RET@bucket/x", "https://me:SEC@127.0.0.1:1/x?RET", "https://127.0.0.1:1/x?sig=SECRET",
           "http://SECRET@127.0.0.1:1/x"]  # fmt: skip


@pytest.mark.parametrize("written", SECRETS)
@pytest.mark.parametrize("argument", ["sources", "out", *(option.name for option in dataclasses.fields(Options))])
def test_no_error_shows_the_secret_of_a_url_whichever_argument_it_was_given_in(
    source: Path, monkeypatch: pytest.MonkeyPatch, argument: str, written: str
) -> None:
    monkeypatch.setenv("SHARDMILL_TRIES", "1")
    given: dict[str, Any] = {"sources": source, "out": "out", argument: written}
    if argument in ("separator", "cache"):  # these take any text
        shardmill.prepare(**given)
        return
    with pytest.raises(shardmill.ShardmillError) as error:
        shardmill.prepare(**given)
    assert "SEC" not in str(error.value)
    assert "RET" not in str(error.value)


def test_an_empty_name_for_the_output_is_not_this_folder(source: Path) -> None:
    run = metered("prepare", source, "-o", "")
    assert run.code == 2
    assert "`out` is an empty text" in run.err
    assert os.listdir() == []


@pytest.mark.parametrize(
    "text", ["a text in two\nlines", "x" * 300, "many words " * 2000], ids=["lines", "long", "longer"]
)
def test_a_list_of_texts_is_an_error_that_says_how_texts_are_given(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        shardmill.prepare([text, "another"], tmp_path / "out")
    assert "Source(texts)" in str(caught.value.hint)
