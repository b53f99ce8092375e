"""Tokenizers that are a tokenizer.json, the format of Hugging Face's `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core import Model, merge_rows
from shardmill.errors import UsageError
from shardmill.extras import needs
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
        self._library = _load(text, specials, place)
        model, normal_form = self._rules["model"], _normal_form(self._rules)
        decoder = self._rules.get("decoder") or {}
        self._decoders = {one.get("type") for one in decoder.get("decoders", [decoder])}
        self._added = [token for token in self._rules.get("added_tokens") or [] if isinstance(token, dict)]
        self._names = {token["content"]: token["id"] for token in self._added}
        self._vocab: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.special_tokens = {token["content"]: token["id"] for token in self._added if token.get("special")}
        self.largest_id = max(self._vocab.values())
        self.eot = _end_of_text(self._names, config, self._vocab)
        self.scheme = schemes.of_pre_tokenizer(self._rules.get("pre_tokenizer"))
        self.pattern = self.scheme.name if self.scheme else None
        self._byte_level = self.scheme is not None and model.get("type") == "BPE" and not model.get("dropout")
        found = [token for token in self._added if specials == "parse" or not token.get("special")]
        self.searched_tokens = {token["content"]: token["id"] for token in found}
        if normal_form:
            self.normalize = self._library.normalizer.normalize_str
        self._choose_engine(
            list(self._names),
            self.scheme.patterns if self.scheme else (),
            published=False,
            core=self._byte_level
            and (not normal_form or (normal_form == "NFC" and self_check.tested(self.library_name)))
            and _match_anywhere(found, bool(normal_form))
            and backends.core_knows(self.scheme),
            gigatoken=self._byte_level,
        )
        parsed = [token for token in self._added if specials != "text" or not token.get("special")]
        if (
            self._byte_level
            and self.scheme
            and normal_form in ("", "NFC")
            and not any(map(_affects_neighbours, parsed))
        ):
            self._set_cuts(self.scheme, parsed=bool(parsed), normalizes=bool(normal_form), small_steps=True)
        elif self.engine_name == self.library_name:
            self.library_bytes = 110  # for English in one document: 100 to 106

    @cached_property
    def vocabulary(self) -> list[bytes]:
        return token_bytes(self._vocab, self._names, self.largest_id)

    def decode(self, ids: NDArray[Any]) -> bytes:
        if self._byte_level:
            return super().decode(ids)
        return str(self._library.decode(ids.tolist(), skip_special_tokens=False)).encode()

    def token_bytes(self, id_: int) -> bytes:
        """Avoid the decoder where possible: alone, a token may lose its space, and half a character becomes U+FFFD."""
        if self._byte_level or "ByteLevel" in self._decoders:
            return self.vocabulary[id_]
        if self._decoders & {"Metaspace", "Replace", "ByteFallback"}:
            return piece_bytes(self._library.id_to_token(id_) or "")
        return self.decode(np.array([id_]))

    def reference(self) -> Reference:
        return lambda document: list(self._library.encode(document, add_special_tokens=False).ids)

    def encode_batch(self, texts: list[str]) -> Iterable[Sequence[int]]:
        return [found.ids for found in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def _make_model(self) -> Model:
        assert self.scheme is not None
        added, model = set(self._names.values()), self._rules["model"]
        tokens = [b"" if id_ in added else token for id_, token in enumerate(self.vocabulary)]
        # Merges are strings or pairs.
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
        merges = merge_rows(self._vocab, ((left, right) for left, right in pairs))
        return Model(tokens, self.scheme.name, merges, whole_first=bool(model.get("ignore_merges")))

    def _make_gigatoken(self, more: dict[str, int]) -> Any:
        from gigatoken import Tokenizer

        return Tokenizer.from_json(_for_gigatoken(self._rules, self.specials, more))


def _load(text: bytes, specials: str, place: str) -> Any:
    """Load the rules with the library. UsageError if it cannot."""
    factory = needs("tokenizers", "hf", "this tokenizer").Tokenizer
    try:
        made = factory.from_str(text.decode())
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise UsageError(f"`tokenizers` cannot read this tokenizer.json: {error}", place=place) from None
    made.no_truncation()
    made.no_padding()
    made.encode_special_tokens = specials != "parse"
    return made


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


def _for_gigatoken(rules: dict[str, Any], specials: str, more: dict[str, int]) -> bytes:
    """Return the rules with more special tokens, and without what adds tokens at the ends.

    If special tokens are to be text, those in the rules are left out.
    """
    added = rules.get("added_tokens") or []
    if specials != "parse":
        added = [token for token in added if not token.get("special")]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = added + [{"id": i, "content": name, **plain, "special": True} for name, i in more.items()]
    none = dict.fromkeys(("post_processor", "truncation", "padding"))
    return json.dumps({**rules, **none, "added_tokens": added}).encode()


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
