"""Tokenizers that are a tokenizer.json, the format of Hugging Face's `tokenizers`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core import Model, merge_rows
from shardmill.errors import OutputError, UsageError
from shardmill.extras import needs
from shardmill.storage import writing_temporary_files
from shardmill.tokens import backends, schemes, self_check
from shardmill.tokens.sentencepiece_files import piece_bytes
from shardmill.tokens.tokenizers import BytePairTokenizer, Reference

END_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<|eot_id|>",
    "[EOS]",
    "[SEP]",
)
"""Names of the end-of-text token where no tokenizer_config.json says it, the most likely first."""


class JsonTokenizer(BytePairTokenizer):
    """The tokenizer of a tokenizer.json, and of the tokenizer_config.json beside it if there is one."""

    library_name = "tokenizers"

    def __init__(self, name: str, text: bytes, config: bytes | None, *, specials: str, place: str) -> None:
        super().__init__(name, text, specials, place)
        self._rules = _parse(text, place)
        self._library = Library(text, self._rules, specials, place)
        model, normal_form = self._rules["model"], _normal_form(self._rules)
        decoder = self._rules.get("decoder") or {}
        self._decoders = {one.get("type") for one in decoder.get("decoders", [decoder])}
        self._added = [token for token in self._rules.get("added_tokens") or [] if isinstance(token, dict)]
        self._names = {token["content"]: token["id"] for token in self._added}
        self._vocab = self._library.vocabulary(self._names)
        self.special_tokens = {token["content"]: token["id"] for token in self._added if token.get("special")}
        self.largest_id = max(self._vocab.values())
        self.eot = _end_of_text(self._names, config, self._vocab)
        self.scheme = schemes.of_pre_tokenizer(self._rules.get("pre_tokenizer"))
        self.pattern = self.scheme.name if self.scheme else None
        self._byte_level = self.scheme is not None and model.get("type") == "BPE" and not model.get("dropout")
        found = [token for token in self._added if specials == "parse" or not token.get("special")]
        self.searched_tokens = {token["content"]: token["id"] for token in found}
        if normal_form:
            self.normalize = self._library.normalize or self._normalized_by_encoding
        self._choose_engine(
            list(self._names),
            possible=self._byte_level
            and normal_form in ("", "NFC")
            and _match_anywhere(found, bool(normal_form))
            and backends.core_knows(self.scheme),
        )
        parsed = [token for token in self._added if specials != "text" or not token.get("special")]
        if (
            self._byte_level
            and self.scheme
            and normal_form in ("", "NFC")
            and not any(map(_affects_neighbours, parsed))
        ):
            self._set_cuts(self.scheme, normalizes=bool(normal_form))
        elif self.engine_name == self.library_name:
            self.library_bytes = 110  # for English in one document: 100 to 106

    @cached_property
    def vocabulary(self) -> list[bytes]:
        return token_bytes(self._vocab, self._names, self.largest_id)

    def decode(self, ids: NDArray[Any]) -> bytes:
        if self._byte_level:
            return super().decode(ids)
        return self._library.decode(ids.tolist()).encode()

    def token_bytes(self, id_: int) -> bytes:
        """Avoid the decoder where possible: alone, a token may lose its space, and half a character becomes U+FFFD."""
        if self._byte_level or "ByteLevel" in self._decoders:
            return self.vocabulary[id_]
        if self._decoders & {"Metaspace", "Replace", "ByteFallback"}:
            return piece_bytes(self._library.token(id_))
        return self.decode(np.array([id_]))

    def reference(self) -> Reference:
        return self._library.encode

    def encode_batch(self, texts: list[str]) -> Iterable[Sequence[int]]:
        return self._library.encode_batch(texts)

    def _normalized_by_encoding(self, text: str) -> str:
        """Return the text that the library encodes. A byte-level vocabulary gives it back unchanged."""
        return super().decode(np.array(self._library.encode(text), np.int64)).decode()

    def _make_model(self) -> Model:
        assert self.scheme is not None
        added, model = set(self._names.values()), self._rules["model"]
        tokens = [b"" if id_ in added else token for id_, token in enumerate(self.vocabulary)]
        # Merges are strings or pairs.
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
        merges = merge_rows(self._vocab, ((left, right) for left, right in pairs))
        return Model(tokens, self.scheme.name, merges, whole_first=bool(model.get("ignore_merges")))


class Library:
    """What is used of `tokenizers`, whose interface is another one since 1.0."""

    def __init__(self, text: bytes, rules: dict[str, Any], specials: str, place: str) -> None:
        """Load the rules. UsageError if the library cannot."""
        factory = needs("tokenizers", "hf", "this tokenizer").Tokenizer
        if rules.get("truncation") or rules.get("padding"):
            text = json.dumps({**rules, "truncation": None, "padding": None}).encode()
        try:
            # There is no `from_str` since 1.0.
            with writing_temporary_files(), tempfile.NamedTemporaryFile(prefix="shardmill-") as file:
                file.write(text)
                file.flush()
                made = factory.from_file(file.name)
        except OutputError:
            raise
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
            release = self_check.version("tokenizers")
            raise UsageError(f"`tokenizers` {release} cannot read this tokenizer.json: {error}", place=place) from None
        self._made, self._rules = made, rules
        settings: dict[str, bool] = {"add_special_tokens": False}
        if hasattr(made, "encode_special_tokens"):
            made.encode_special_tokens = specials != "parse"
        else:
            settings["encode_special_tokens"] = specials != "parse"
        self._encode = partial(made.encode, **settings)
        self._encode_batch = partial(getattr(made, "encode_batch_fast", made.encode_batch), **settings)
        normalizer = getattr(made, "normalizer", None)
        self.normalize: Callable[[str], str] | None = normalizer and normalizer.normalize_str
        """Brings a text into its normal form; None: the library does not offer that, or there is none."""

    def encode(self, text: str) -> list[int]:
        return list(self._encode(text).ids)

    def encode_batch(self, texts: list[str]) -> list[Sequence[int]]:
        return [found.ids for found in self._encode_batch(texts)]

    def decode(self, ids: list[int]) -> str:
        return str(self._made.decode(ids, skip_special_tokens=False))

    def token(self, id_: int) -> str:
        """Return an entry of the vocabulary as it is written there."""
        if hasattr(self._made, "id_to_token"):
            return self._made.id_to_token(id_) or ""
        return str(self._made.decode_tokens([id_])[0])

    def vocabulary(self, added: Mapping[str, int]) -> dict[str, int]:
        """Return all tokens with their ids; those of added tokens may be others than in the file."""
        if hasattr(self._made, "get_vocab"):
            return dict(self._made.get_vocab(with_added_tokens=True))
        listed = self._rules["model"].get("vocab") or {}
        vocab = dict(listed) if isinstance(listed, dict) else {entry[0]: id_ for id_, entry in enumerate(listed)}
        for name, id_ in added.items():
            ids = self._made.encode(name, add_special_tokens=False, encode_special_tokens=False).ids
            vocab[name] = ids[0] if len(ids) == 1 else id_
        return vocab


def _parse(text: bytes, place: str) -> dict[str, Any]:
    try:
        rules = json.loads(text)
    except ValueError as error:
        raise UsageError(f"not a tokenizer.json: {error}", place=place) from None
    if not isinstance(rules, dict) or not isinstance(rules.get("model"), dict):
        raise UsageError(
            "not a tokenizer.json: it has no `model`",
            place=place,
            hint="give the tokenizer.json that `save_pretrained` writes",
        )
    return rules


def _normal_form(rules: dict[str, Any]) -> str:
    """Return the type of the normalizer, empty if there is none."""
    normalizer = rules.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence" and len(normalizer["normalizers"]) < 2:
        normalizer = next(iter(normalizer["normalizers"]), None)
    return str(normalizer["type"]) if normalizer else ""


def _match_anywhere(tokens: list[dict[str, Any]], normalizes: bool) -> bool:
    """Return whether tokens are found wherever their names occur in a text, whatever is beside them, in one pass."""
    flagged = any(token.get(flag) for token in tokens for flag in ("single_word", "lstrip", "rstrip"))
    after_normalising = {bool(token.get("normalized")) for token in tokens}
    return not flagged and len(after_normalising) < 2 and not (normalizes and True in after_normalising)


def _affects_neighbours(token: dict[str, Any]) -> bool:
    """Return whether a token that is searched for contains white space, or changes how the text after it is split."""
    return bool(token.get("rstrip") or token.get("single_word") or any(map(str.isspace, token["content"])))


def token_bytes(vocab: dict[str, int], added: Container[str], largest: int) -> list[bytes]:
    """Return the bytes of each id. Tokens that were not added are written with a printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    table = [b""] * (largest + 1)
    for token, id_ in vocab.items():
        ordinary = token not in added and all(character in alphabet for character in token)
        table[id_] = bytes(map(alphabet.__getitem__, token)) if ordinary else token.encode()
    return table


def _end_of_text(names: dict[str, int], config: bytes | None, vocab: dict[str, int]) -> int | None:
    """Return the id of the end-of-text token: the configuration's eos_token, else one of the usual names."""
    if config:
        try:
            token = json.loads(config).get("eos_token")
        except (ValueError, AttributeError):
            raise UsageError("the tokenizer_config.json beside the tokenizer is not a JSON object") from None
        token = token.get("content") if isinstance(token, dict) else token
        if token in vocab:
            return vocab[token]
    return next((vocab[name] for name in END_NAMES if name in names or name in vocab), None)
