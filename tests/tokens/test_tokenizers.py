"""A tokenizer by its name, its file or its folder: the facts about it, and what is said when it cannot be had."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import shardmill
from shardmill.errors import UsageError
from shardmill.tokens import Tokenizer, load_tokenizer, rank_files, self_check
from shardmill.tokens.loading import PUBLISHED
from shardmill.write import as_text
from tests.tokens.hard import lists, rows, run
from tests.tokens.vocabularies import added, gpt2_rules, package, rank_file, split, tokenizer, write_json

pytestmark = pytest.mark.thorough


def same_as_library(made: Tokenizer, documents: list[str]) -> None:
    assert lists(made.engine().encode(*rows(documents))) == [made.reference()(document) for document in documents]


def test_gpt2_needs_nothing_from_outside() -> None:
    made = load_tokenizer("gpt2")
    assert (made.name, made.vocab_size, made.largest_id, made.eot) == ("gpt2", 50257, 50256, 50256)
    assert (made.engine_name, made.dtype) == ("core", np.dtype(np.uint16))
    assert made.describe() == {
        "name": "gpt2",
        "sha256": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        "vocab_size": 50257,
        "eot": 50256,
        "pattern": "gpt2",
        "specials": "text",
        "bos_eos": "none added",
    }


@pytest.mark.parametrize("name", ["gpt2", "r50k_base", "p50k_base"])
def test_the_vocabulary_in_the_package_is_the_published_file_byte_for_byte(name: str) -> None:
    ranks = rank_files.p50k_ranks() if name == "p50k_base" else rank_files.gpt2_ranks()
    assert hashlib.sha256(ranks).hexdigest() == PUBLISHED[name].sha256 == load_tokenizer(name).sha256


def test_gpt2_has_the_ids_of_the_original_files() -> None:
    rules = gpt2_rules()
    made = load_tokenizer("gpt2")
    table = tokenizer("gpt2-json")
    ids = np.arange(50257)
    assert [made.decode(ids[i : i + 1]) for i in range(50257)] == [table.decode(ids[i : i + 1]) for i in range(50257)]
    assert max(rules["model"]["vocab"].values()) == 50256


@pytest.mark.parametrize(("name", "largest", "eot"), [("cl100k", 100276, 100257), ("o200k", 200018, 199999)])
def test_a_published_file_is_known_by_its_content(tmp_path: Path, name: str, largest: int, eot: int) -> None:
    path = tmp_path / "renamed.model"
    path.write_bytes(rank_file(f"{name}_base.tiktoken").read_bytes())
    made = load_tokenizer(str(path))
    assert (made.name, made.largest_id, made.eot, made.dtype) == (f"{name}_base", largest, eot, np.dtype(np.uint32))
    assert made.decode(np.array([eot])) == b"<|endoftext|>"


def test_a_name_is_found_in_tiktokens_cache_and_without_it_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        load_tokenizer("cl100k_base")
    assert "cl100k_base.tiktoken" in str(caught.value.hint)
    url = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
    cached = tmp_path / hashlib.sha1(url.encode()).hexdigest()
    cached.write_bytes(rank_file("cl100k_base.tiktoken").read_bytes())
    assert load_tokenizer("cl100k_base").largest_id == 100276


def test_a_rank_file_of_ones_own_needs_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "own.tiktoken"
    path.write_bytes(b"".join(rank_files.gpt2_ranks().splitlines(keepends=True)[:1000]))
    with pytest.raises(UsageError, match="does not say how it splits"):
        load_tokenizer(str(path))
    for pattern, engine in (("llama3", "core"), (r"\s+|\S+", "tiktoken")):
        made = load_tokenizer(str(path), pattern=pattern)
        assert (made.engine_name, made.largest_id, made.eot) == (engine, 999, None)
        same_as_library(made, ["hello  world\n 12345", run("words", 500)])
    with pytest.raises(UsageError, match="refuses"):
        load_tokenizer(str(path), pattern="(")


@pytest.mark.parametrize(
    ("content", "name"),
    [(b"IQ== 0\n!! 1\n", "a.tiktoken"), (b"{", "tokenizer.json"), (b"[]", "tokenizer.json"), (b"{}", "x.json")],
)
def test_a_file_that_is_no_tokenizer_is_an_error_with_its_place(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_tokenizer(str(path), pattern="gpt2" if name.endswith("tiktoken") else None)
    assert str(path) in str(caught.value.place)


@pytest.mark.parametrize("spec", ["nothing", "missing.json", "missing/file.tiktoken", ""])
def test_an_unknown_name_is_an_error_that_says_what_there_is(spec: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_tokenizer(spec or str(tmp_path))


def test_a_hub_id_that_cannot_be_reached_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # else it tries again for half a minute
    with pytest.raises(UsageError, match="cannot be fetched") as caught:
        load_tokenizer("some-org/some-model")
    assert "tokenizer.json" in str(caught.value.hint)


def test_an_unknown_policy_for_special_tokens_is_an_error() -> None:
    with pytest.raises(UsageError, match="special tokens cannot be `drop`"):
        load_tokenizer("gpt2", specials="drop")


def test_the_end_of_text_is_what_the_configuration_says_and_else_a_known_name() -> None:
    tokens = [added(50256, "<|endoftext|>", special=True), added(50300, "<|done|>", special=True)]
    rules = {**gpt2_rules(), "added_tokens": tokens}
    made = load_tokenizer(str(write_json("plain", rules)))
    assert (made.eot, made.largest_id) == (50256, 50257)
    configured = write_json("configured", rules, {"eos_token": {"content": "<|done|>"}})
    assert load_tokenizer(str(configured)).eot == 50257


def test_the_width_counts_added_tokens() -> None:
    tokens = [added(50257 + n, f"<|extra{n}|>", special=True) for n in range(16_000)]
    rules = gpt2_rules()
    rules = {**rules, "added_tokens": tokens}
    made = load_tokenizer(str(write_json("wide", rules)))
    assert made.largest_id == 66256 and made.dtype == np.dtype(np.uint32)


def test_an_added_token_that_is_not_special_is_found_in_the_text_and_never_cut() -> None:
    tokens = [added(50257, "<tool>", special=False), added(50256, "<|endoftext|>", special=True)]
    made = load_tokenizer(str(write_json("tool", {**gpt2_rules(), "added_tokens": tokens})))
    same_as_library(made, ["call <tool>now<tool> <|endoftext|>", "<tool"])
    text = b"aa<tool>bb cc"
    assert made.cut is not None and made.cut(text, 1) == text.index(b" ")


@pytest.mark.parametrize("flags", [{"rstrip": True}, {"single_word": True}])
def test_an_added_token_that_reaches_out_leaves_no_safe_places(flags: dict[str, bool]) -> None:
    tokens = [added(50257, "<tool>", special=False, **flags)]
    made = load_tokenizer(str(write_json("reaching", {**gpt2_rules(), "added_tokens": tokens})))
    assert made.cut is None
    same_as_library(made, ["call <tool>  now", "x<tool>x"])


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": split(r"\w+|[^\w\s]+|\s+")},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
    ],
)
def test_rules_that_are_not_known_have_no_safe_places_and_the_librarys_tokens(changes: dict[str, object]) -> None:
    made = load_tokenizer(str(write_json("unknown", {**gpt2_rules(), **changes})))
    assert made.cut is None
    same_as_library(made, ["Hello World, it's 12345", "", "ÀÉ x\n\n y", run("words", 3_000)])


def test_word_pieces_and_unigrams_run_in_their_own_library(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    text = [run("words", 500, seed) for seed in range(20)]
    for kind in ("WordPiece", "Unigram"):
        model = getattr(tokenizers.models, kind)
        made = tokenizers.Tokenizer(model(unk_token="[UNK]") if kind == "WordPiece" else model())
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        trainer = getattr(tokenizers.trainers, f"{kind}Trainer")(
            vocab_size=60,
            special_tokens=["[UNK]", "[SEP]"],
            show_progress=False,
            **({"unk_token": "[UNK]"} if kind == "Unigram" else {}),
        )
        made.train_from_iterator(text, trainer)
        path = tmp_path / f"{kind}.json"
        made.save(str(path))
        loaded = load_tokenizer(str(path))
        assert (loaded.engine_name, loaded.cut, loaded.eot) == ("tokenizers", None, made.token_to_id("[SEP]"))
        same_as_library(loaded, text[:5])
        expected = made.decode(made.encode(text[0], add_special_tokens=False).ids).encode()
        assert loaded.decode(np.array(loaded.reference()(text[0]))) == expected


def test_truncation_padding_and_added_ends_are_left_out() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_str(json.dumps(gpt2_rules()))
    made.enable_truncation(4)
    made.enable_padding(length=10)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 50256)]
    )
    loaded = load_tokenizer(str(write_json("ends", json.loads(made.to_str()))))
    document = "one two three four five six seven"
    expected = load_tokenizer("gpt2").reference()(document)
    assert loaded.reference()(document) == expected
    same_as_library(loaded, [document])


def test_a_sentencepiece_model_runs_in_its_own_library() -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    path = package("mistral_common") / "data" / "tokenizer.model.v1"
    made = load_tokenizer(str(path))
    assert (made.engine_name, made.cut, made.eot, made.vocab_size) == ("sentencepiece", None, 2, 32000)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    documents = ["Hello wörld", " x\n\n y", "</s> is text", "", run("emoji", 100)]
    assert lists(made.engine().encode(*rows(documents))) == [processor.encode(document) for document in documents]
    assert made.decode(np.array(processor.encode("Hello wörld"))) == "Hello wörld".encode()
    strict = load_tokenizer(str(path), specials="error").engine().encode(*rows(documents))
    assert [row for row, _ in strict.failed] == [2]
    with pytest.raises(UsageError):
        load_tokenizer(str(path), specials="parse")


def test_any_tokens_decode_to_the_text_that_they_came_from() -> None:
    made = load_tokenizer("gpt2")
    text = run("words", 5_000) + run("emoji", 500) + run("cjk", 500)
    tokens = made.engine().encode(*rows([text])).tokens[:-1]
    assert made.decode(tokens) == text.encode()
    assert made.decode(np.array([50256, 0], np.uint16)) == b"<|endoftext|>!"


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "gpt2-json", "qwen2-json"])
def test_releases_that_no_test_has_seen_are_compared_in_every_character(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "TESTED", dict.fromkeys(self_check.TESTED, "99."))
    assert tokenizer.__wrapped__(name).engine_name == "core"
    # A release that classes one character differently encodes everything itself.
    library = tokenizer.__wrapped__(name)
    reference = library.reference()
    different = lambda document: reference(document.replace("\u2ff0", "a"))  # noqa: E731
    monkeypatch.setattr(type(library), "reference", lambda self: different)
    made = tokenizer.__wrapped__(name)
    assert made.engine_name == made.library_name


@pytest.mark.parametrize("library", ["tiktoken", "tokenizers", "sentencepiece", "numpy", "nosuchlibrary"])
def test_the_version_of_a_library_is_that_of_its_package(library: str) -> None:
    try:
        expected = metadata.version(library)
    except metadata.PackageNotFoundError:
        expected = ""
    assert self_check.version(library) == expected


def test_provenance_is_the_same_for_two_engines_and_changes_with_the_tokens() -> None:
    made, other = tokenizer("gpt2"), tokenizer("p50k")
    assert made.provenance(made.engine()) == made.provenance(made.engine())
    assert "core 0." in made.provenance(made.engine())["libraries"]
    assert made.provenance(made.engine())["sha256"] != other.provenance(other.engine())["sha256"]


@pytest.mark.parametrize("slow", [False, True])
def test_the_summary_says_which_engine_encoded_and_when_it_is_the_slow_one(tmp_path: Path, slow: bool) -> None:
    rules = {**gpt2_rules(), "normalizer": {"type": "Lowercase"}} if slow else gpt2_rules()
    (tmp_path / "a.txt").write_text("Some words, and some more of them.")
    result = shardmill.prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer=write_json("said", rules), val=0)
    summary = as_text(result)
    assert f"(said, by {'tokenizers' if slow else 'core'})" in summary
    assert ("encoded by tokenizers, at less than a tenth of the usual speed" in summary) is slow
