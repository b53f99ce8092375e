"""Tokenizers that are a tokenizer.json, the format of Hugging Face's `tokenizers`."""

from __future__ import annotations

import copy
import hashlib
import json
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core import Model
from shardmill.errors import UsageError
from shardmill.extras import needs
from shardmill.tokens import core_backend, gigatoken_backend, schemes, self_check
from shardmill.tokens.cuts import Cut
from shardmill.tokens.engines import Backend, ReferenceBackend
from shardmill.tokens.sentencepiece_files import spelled
from shardmill.tokens.stitch import Stitching
from shardmill.tokens.tokenizers import Reference, Tokenizer, id_type
from shardmill.tokens.unicode_mismatch import Characters, mismatch_of

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
"""What the end of a text is called where no tokenizer_config.json says it, the most likely first."""


_LIBRARY_BYTES = 110  # that `tokenizers` takes for each byte of English in one document: 100 to 106


def from_json(name: str, text: bytes, config: bytes | None, *, specials: str, place: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json, and of the tokenizer_config.json beside it if there is one."""
    file = _JsonFile(text, specials, place)
    rules, scheme = file.rules, file.scheme
    engine, make, mismatch = file.engine()
    # Where special tokens are an error they must be found, so no cut may hide one.
    parsed = [token for token in file.added if specials != "text" or not token.get("special")]
    cut = stitching = None
    normal_form = _normal_form(rules)
    if file.byte_level and scheme and normal_form in ("", "NFC") and not any(map(_reaches_out, parsed)):
        cut = Cut(scheme.family, specials=bool(parsed) or specials == "error")
        stitching = Stitching(
            cut,
            file.lengths,
            scheme.digit_group,
            scheme.looks_past_white,
            normalizes=bool(normal_form),
            specials=bool(parsed),
            little=True,
            large_windows=engine == "core",
        )
    return Tokenizer(
        name=name,
        sha256=hashlib.sha256(text).hexdigest(),
        vocab_size=file.largest_id + 1,
        largest_id=file.largest_id,
        eot=_end_of_text(file.names, config, file.vocab),
        engine_name=engine,
        library_name="tokenizers",
        specials=specials,
        special_tokens=file.special_tokens,
        pattern=scheme.name if scheme else None,
        cut=cut,
        make_primary=make,
        make_fallback=None if engine == "tokenizers" else file.by_library,
        make_reference=file.reference,
        decode_ids=file.decode,
        spell=file.spell,
        stitching=stitching,
        library_bytes=_LIBRARY_BYTES if engine == "tokenizers" and not cut else 0,
        mismatch=mismatch,
        engine_bytes=core_backend.BYTES if engine == "core" else None,
    )


class _JsonFile:
    """The rules of a tokenizer.json, and the libraries that encode by them."""

    def __init__(self, text: bytes, specials: str, place: str) -> None:
        self.rules = _parse(text, place)
        self._specials = specials
        self._library = _load(text, specials, place)
        self.added = [token for token in self.rules.get("added_tokens") or [] if isinstance(token, dict)]
        self.names = {token["content"]: token["id"] for token in self.added}
        self.special_tokens = {token["content"]: token["id"] for token in self.added if token.get("special")}
        self.vocab: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.largest_id = max(self.vocab.values())
        self.scheme = schemes.of_pre_tokenizer(self.rules.get("pre_tokenizer"))
        model = self.rules["model"]
        self._added_ids = set(self.names.values())
        self._building = threading.Lock()
        decoder = self.rules.get("decoder") or {}
        self._decoders = {one.get("type") for one in decoder.get("decoders", [decoder])}
        self.byte_level = self.scheme is not None and model.get("type") == "BPE" and not model.get("dropout")

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        return _token_bytes(self.vocab, self.added, self.largest_id)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array([len(token) for token in self._token_bytes], np.int64)

    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each token, by id."""
        return self._lengths

    def decode(self, ids: list[int]) -> bytes:
        if self.byte_level:
            return b"".join(map(self._token_bytes.__getitem__, ids))
        return str(self._library.decode(ids, skip_special_tokens=False)).encode()

    def spell(self, id_: int) -> bytes:
        """One token's bytes. Decoded alone, it may lose its space, and part of a character becomes U+FFFD."""
        if self.byte_level or "ByteLevel" in self._decoders:
            return self._token_bytes[id_]
        if self._decoders & {"Metaspace", "Replace", "ByteFallback"}:
            return spelled(self._library.id_to_token(id_) or "")
        return self.decode([id_])

    def reference(self) -> Reference:
        return lambda document: list(self._library.encode(document, add_special_tokens=False).ids)

    def by_library(self, separator: bytes = b"") -> Backend:
        encode = self._library.encode_batch_fast
        return ReferenceBackend(lambda texts: [found.ids for found in encode(texts, add_special_tokens=False)])

    def by_gigatoken(self, separator: bytes = b"") -> Backend:
        return gigatoken_backend.of_json(self._stripped, self.largest_id + 1)

    @cached_property
    def _model(self) -> Model:
        """Ordinary tokens alone: a special one is never found in a text here."""
        assert self.scheme is not None
        tokens = [b"" if number in self._added_ids else token for number, token in enumerate(self._token_bytes)]
        whole_first = bool(self.rules["model"].get("ignore_merges"))
        merges = core_backend.merges_of(self.rules, self.vocab)
        return Model(tokens, self.scheme.name, merges, whole_first=whole_first)

    def by_core(self, separator: bytes = b"") -> Backend:
        with self._building:
            model = self._model
        return core_backend.CoreBackend(model, id_type(self.largest_id))

    def engine(self) -> tuple[str, Callable[[bytes], Backend], Characters | None]:
        """The name of the fastest engine that gives the library's tokens, and where it cannot be trusted."""
        names = list(self.names)
        if self.byte_level and self.scheme:
            # The core takes text as it is: nothing is brought into NFC, and no token is looked for in it.
            plain = not _normal_form(self.rules) and all(token.get("special") for token in self.added)
            plain = plain and self._specials != "parse" and core_backend.knows(self.scheme)
            if plain and self_check.trusted(self.by_core, self.reference(), names, None, "tokenizers"):
                return "core", self.by_core, None
            mismatch = mismatch_of(self.scheme.patterns)
            if self_check.trusted(self.by_gigatoken, self.reference(), names, mismatch, "gigatoken", "tokenizers"):
                return "gigatoken", self.by_gigatoken, mismatch
        return "tokenizers", self.by_library, None

    def _stripped(self, more: dict[str, int]) -> bytes:
        return _for_gigatoken(self.rules, self._specials, more)


def _load(text: bytes, specials: str, place: str) -> Any:
    """The library's own tokenizer of these rules."""
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
    """The type of the normalizer, empty if there is none."""
    normalizer = rules.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence" and len(normalizer["normalizers"]) < 2:
        normalizer = next(iter(normalizer["normalizers"]), None)
    return str(normalizer["type"]) if normalizer else ""


def _reaches_out(token: dict[str, Any]) -> bool:
    """Whether a token that is found in texts holds white space, or changes what stands behind it."""
    return bool(token.get("rstrip") or token.get("single_word") or any(map(str.isspace, token["content"])))


def _for_gigatoken(rules: dict[str, Any], specials: str, more: dict[str, int]) -> bytes:
    """The rules with more special tokens, but without what adds tokens at the ends.

    If special tokens are text, those that the rules have are left out.
    """
    kept = copy.copy(rules)
    kept["post_processor"] = kept["truncation"] = kept["padding"] = None
    added = rules.get("added_tokens") or []
    if specials != "parse":
        added = [token for token in added if not token.get("special")]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    kept["added_tokens"] = added + [{"id": i, "content": name, **plain, "special": True} for name, i in more.items()]
    return json.dumps(kept).encode()


def _token_bytes(vocab: dict[str, int], added: list[dict[str, Any]], largest: int) -> list[bytes]:
    """The bytes of each id: ordinary tokens are written with a printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    names = {token["content"] for token in added}
    table = [b""] * (largest + 1)
    for token, id_ in vocab.items():
        ordinary = token not in names and all(character in alphabet for character in token)
        table[id_] = bytes(map(alphabet.__getitem__, token)) if ordinary else token.encode()
    return table


def _end_of_text(names: dict[str, int], config: bytes | None, vocab: dict[str, int]) -> int | None:
    """The id of what ends a text: by the configuration's eos_token, else by the names in use."""
    if config:
        try:
            token = json.loads(config).get("eos_token")
        except (ValueError, AttributeError):
            raise UsageError("the tokenizer_config.json beside the tokenizer is not a JSON object") from None
        token = token.get("content") if isinstance(token, dict) else token
        if token in vocab:
            return vocab[token]
    return next((vocab[name] for name in END_NAMES if name in names or name in vocab), None)
