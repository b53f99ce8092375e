"""The page of `shardmill report`: what it says, that text stays text, and where it may be written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shardmill
from shardmill.cli import shardmill as command
from shardmill.errors import OutputError, UsageError
from shardmill.options import FORMATS
from shardmill.reporting.excerpts import Token, running_tokens, tokens_of
from shardmill.tokens import load_tokenizer
from tests.corpus import documents, write_jsonl
from tests.datasets import make_dataset, random_documents
from tests.test_golden_bytes import TOKENIZERS, _tokenizer

HOSTILE = [
    "<script>document.title='owned'</script>",
    "</span></div><img src=x onerror=\"document.title='owned'\">",
    "\"'><svg onload=alert(1)> {{ 7*7 }} {% raw %} --> ]]> </style></script>",
    "\u202eright to left\u2066 \x00 \x1b[31m \ufeff bell \x07",
]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.ids: list[int] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [int(value or "") for name, value in attributes if name == "data-i"]
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name, value)
            assert name not in ("src", "srcset", "action") and not (name == "href" and "://" in value), (tag, value)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(path: Path) -> _Tags:
    parsed = _Tags()
    parsed.feed(path.read_text(encoding="utf-8"))
    return parsed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose documents, rejects and source's name try to get out of the page."""
    folder = tmp_path_factory.mktemp("made")
    source = write_jsonl(folder / "a<b>&.jsonl", [*HOSTILE, *documents(80)])
    with open(source, "a", encoding="utf-8") as file:
        file.write('{"text": 5}\n{"txt": "<script>alert(5)</script>"}\nnot <b>json</b>\n')
    shardmill.prepare(source, folder / "<i>set", val=0.3, max_bad="any")
    return folder / "<i>set"


def test_a_report_says_what_the_manifest_says_and_lets_no_text_become_html(made: Path, tmp_path: Path) -> None:
    path = shardmill.report(made, out=tmp_path / "report.html", documents=50)
    parsed = read(path)
    assert parsed.tags.count("script") == 1 and "img" not in parsed.tags and "i" not in parsed.tags
    text = "".join(parsed.texts)
    manifest = json.loads((made / "manifest.json").read_text())
    for split in manifest["splits"].values():
        assert f"{split['tokens']:,}" in text and f"{split['documents']:,}" in text
    assert f"{manifest['documents']:,}" in text and "3 rejects" not in text
    assert "<i>set" in text and "a<b>&.jsonl" in text
    assert HOSTILE[0] in text and "document.title='owned'\">" in text and "{{ 7*7 }}" in text
    assert "\\u202eright to left\\u2066 \\x00 \\x1b[31m" in text.replace("·", "")
    for reason in ("not valid JSON", "is missing", "not a string"):
        assert reason in text
    assert path.stat().st_size < 3_000_000


def test_the_same_seed_draws_the_same_documents_and_another_one_others(made: Path, tmp_path: Path) -> None:
    pages = [
        shardmill.report(made, out=tmp_path / f"{i}.html", seed=seed, documents=3).read_bytes()
        for i, seed in enumerate((0, 0, 1))
    ]
    assert pages[0] == pages[1] != pages[2]


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_a_report(format: str, tmp_path: Path) -> None:
    folder = make_dataset(format, tmp_path / "one", random_documents(5, 20, 60), shard_tokens=500)
    assert "random with seed" in "".join(read(shardmill.report(folder, out=tmp_path / "a.html")).texts)


def test_without_end_of_text_stretches_are_shown(tmp_path: Path) -> None:
    folder = make_dataset("nanogpt", tmp_path / "one", random_documents(5, 20, 60), eot="none")
    assert re.search(r"tokens \d+ to \d+", "".join(read(shardmill.report(folder, out=tmp_path / "a.html")).texts))


@pytest.mark.parametrize("made", [{"train": [], "val": []}, {"train": [], "val": [[5, 6]]}, {"train": [[7]]}])
def test_next_to_nothing_has_a_report_too(made: dict[str, list[list[int]]], tmp_path: Path) -> None:
    documents = {split: [np.array(one, np.uint16) for one in some] for split, some in made.items()}
    folder = make_dataset("nanogpt", tmp_path / "one", documents)
    assert "No document was rejected" in "".join(read(shardmill.report(folder, out=tmp_path / "a.html")).texts)
    count = sum(map(len, made.values()))
    counted = rf"of {count} document{'s' * (count != 1)}( \([^)]*\))?, tokenized"
    assert re.search(counted, shardmill.card(folder))


def test_the_last_character_that_is_shown_is_whole(tmp_path: Path) -> None:
    shardmill.prepare(write_jsonl(tmp_path / "a.jsonl", ["你好世界，" * 300]), tmp_path / "out", val=0)
    page = shardmill.report(tmp_path / "out", out=tmp_path / "a.html").read_text(encoding="utf-8")
    assert "more tokens" in page and "\\x" not in re.sub(r"(?s)<section id=.tokens.*?</section>", "", page)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_token_is_shown_with_its_spaces_and_bytes(name: str) -> None:
    """Decoded alone, tokens of SentencePiece lose their space, and parts of a character become U+FFFD."""
    tokenizer = load_tokenizer(_tokenizer(name))
    text = "the quick brown fox, 你好 🎉 and the lazy dog"
    ids = tokenizer.reference()(text)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().lstrip() == text
    assert "".join(one.text for one in running_tokens(tokenizer, np.array(ids))).replace("·", "").lstrip() == text


def test_what_was_only_sampled_is_said(made: Path, tmp_path: Path) -> None:
    page = "".join(read(shardmill.report(made, out=tmp_path / "a.html", tokens=500)).texts)
    assert "a sample of" in page
    assert "a sample of" not in "".join(read(shardmill.report(made, out=tmp_path / "b.html")).texts)


def test_a_character_over_several_tokens_is_shown_once_and_every_byte_is_told() -> None:
    tokenizer = load_tokenizer("gpt2")
    text = "你好 a\n🎉\x00é\u202e"
    ids = np.array(tokenizer.reference()(text))
    shown = running_tokens(tokenizer, ids)
    assert "".join(token.text for token in shown).replace("·", "") == "你好 a⏎\n🎉\\x00é\\u202e"
    told = b"".join(bytes.fromhex(token.bytes) if token.bytes else token.text.encode() for token in shown)
    assert told == text.encode() and [token.id for token in shown] == ids.tolist()
    alone = tokens_of(tokenizer, ids)
    assert [bytes.fromhex(one.bytes) if one.bytes else one.text.encode() for one in alone] == [
        tokenizer.decode(ids[i : i + 1]) for i in range(len(ids))
    ]
    assert running_tokens(tokenizer, ids[1:2])[0].text.startswith("\\x")
    assert Token(0, "!", "") == tokens_of(tokenizer, np.array([0]))[0]


def test_a_file_of_another_making_is_not_overwritten_and_a_report_is(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    place.write_text("mine")
    with pytest.raises(OutputError, match="not a shardmill report"):
        shardmill.report(made, out=place)
    with pytest.raises(OutputError, match="not a shardmill report"):
        shardmill.report(made, out=tmp_path)
    assert place.read_text() == "mine"
    place.unlink()
    shardmill.report(made, out=place, seed=1)
    shardmill.report(made, out=place)


def test_a_library_that_is_missing_is_named_with_its_extra(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        UsageError, match="the package `jinja2`, which is required for a report, is not installed"
    ) as caught:
        shardmill.report(made, out=tmp_path / "a.html")
    assert caught.value.hint == "pip install 'jinja2>=3.1'"


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"tokens": "many"}, {"tokens": 0}, {"documents": 0}])
def test_a_wrong_argument_is_named_before_anything_is_read(wrong: dict[str, Any], made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="|".join([*wrong, "many"])):
        shardmill.report(made, out=tmp_path / "a.html", **wrong)
    assert not (tmp_path / "a.html").exists()


def test_the_command_writes_the_page_and_says_where(made: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["report", str(made), "-o", str(tmp_path / "a.html"), "-n", "2"])
    assert done.exit_code == 0 and str(tmp_path / "a.html") in done.stderr and done.stdout == ""
    wrong = CliRunner().invoke(command, ["report", str(tmp_path), "-o", str(tmp_path / "b.html")])
    assert isinstance(wrong.exception, UsageError) and not (tmp_path / "b.html").exists()


@pytest.mark.slow
def test_a_report_of_many_tokens_takes_little_memory(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder = make_dataset("nanogpt", tmp_path / "big", {"train": [random.integers(0, 50000, 1000).astype(np.uint16)]})
    block = random.zipf(1.3, 20_000_000) % 50257
    tokens = np.tile(block.astype(np.uint16), 5)
    tokens.tofile(folder / "train.bin")
    manifest = json.loads((folder / "manifest.json").read_text())
    file = {"tokens": len(tokens), "bytes": 2 * len(tokens)}
    manifest["splits"]["train"] |= {"tokens": len(tokens)}
    manifest["splits"]["train"]["files"][0] |= file
    (folder / "manifest.json").write_text(json.dumps(manifest))
    code = f"""
import shardmill
from shardmill.run.machine import most_resident
shardmill.report({str(folder)!r}, out={str(tmp_path / "a.html")!r})
print(most_resident())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) < 190_000_000  # the tokens alone are 200,000,000 bytes


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_kind_of_tokenizer_has_a_report(tokenizer: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*documents(30), HOSTILE[0]])
    shardmill.prepare(source, tmp_path / "out", tokenizer=_tokenizer(tokenizer), val=0, workers=1)
    parsed = read(shardmill.report(tmp_path / "out", out=tmp_path / "a.html", documents=50))
    train = shardmill.open(tmp_path / "out")["train"]
    assert parsed.tags.count("script") == 1
    assert set(parsed.ids) <= set(train[:].tolist()) and len(parsed.ids) > 100
