"""Tokenizers whose vocabulary is a rank file, as tiktoken's are."""

from __future__ import annotations

import hashlib
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.core import Model, parse_ranks
from shardmill.errors import UsageError
from shardmill.tokens import core_backend, gigatoken_backend, self_check, vocabulary
from shardmill.tokens.cuts import Cut
from shardmill.tokens.engines import Backend, ReferenceBackend
from shardmill.tokens.schemes import Scheme
from shardmill.tokens.stitch import Stitching
from shardmill.tokens.tokenizers import Reference, Tokenizer, id_type
from shardmill.tokens.unicode_mismatch import Characters, mismatch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def from_ranks(
    name: str,
    text: bytes,
    scheme: Scheme | str,
    special_tokens: dict[str, int],
    *,
    specials: str,
    place: str,
    published: bool = False,
) -> Tokenizer:
    """The tokenizer of a rank file's text, split by a known scheme or else by a regular expression.

    UsageError where tiktoken refuses the vocabulary or the pattern.
    """
    file = _RankFile(name, text, scheme, special_tokens, specials, place, published)
    known = file.scheme
    file.largest_rank = vocabulary.last_rank(text, place) if published else max(file.ranks.values())
    file.largest_id = max(file.largest_rank, *special_tokens.values(), 0)
    if not published:
        file.reference()  # an error in the vocabulary or the pattern is told now
    engine = _engine_of(file, special_tokens, published)
    # Where special tokens are an error they must be found, so no cut may hide one.
    cut = Cut(known.family, specials=specials != "text") if known else None
    stitching = None
    if known and cut:
        stitching = Stitching(
            cut,
            file.lengths,
            known.digit_group,
            known.looks_past_white,
            specials=bool(file.parsed),
            large_windows=engine.name == "core",
        )
    return Tokenizer(
        name=name,
        sha256=hashlib.sha256(text).hexdigest(),
        vocab_size=file.largest_id + 1,
        largest_id=file.largest_id,
        eot=special_tokens.get(vocabulary.END_OF_TEXT),
        engine_name=engine.name,
        library_name="tiktoken",
        specials=specials,
        special_tokens=special_tokens,
        pattern=known.name if known else file.pattern,
        cut=cut,
        make_primary=engine.make,
        make_fallback=None if engine.name == "tiktoken" else file.by_tiktoken,
        make_reference=file.reference,
        decode_ids=file.decode,
        stitching=stitching,
        separable=specials == "text" and engine.name != "tiktoken",
        mismatch=engine.mismatch,
        engine_bytes=core_backend.BYTES if engine.name == "core" else None,
    )


class _Chosen(NamedTuple):
    """What encodes the documents, and the characters for which it cannot be trusted."""

    name: str
    make: Callable[[bytes], Backend]
    mismatch: Characters | None


def _engine_of(file: _RankFile, special_tokens: dict[str, int], published: bool) -> _Chosen:
    """The fastest engine that gives tiktoken's tokens.

    Published vocabularies were compared at length, in the releases that are tested; all others are compared now.
    """
    names = list(special_tokens)
    if core_backend.knows(file.scheme) and not file.parsed:
        known = published and self_check.tested("tiktoken")
        if known or self_check.trusted(file.by_core, file.reference(), names, None, "tiktoken"):
            return _Chosen("core", file.by_core, None)
    # gigatoken refuses to look for a special token whose id lies among the ranks, as the one of p50k_base does.
    if file.scheme and all(id_ > file.largest_rank for id_ in file.parsed.values()):
        mismatch, releases = mismatch_of([file.pattern]), ("gigatoken", "tiktoken")
        known = published and self_check.tested(*releases)
        if known or self_check.trusted(file.by_gigatoken, file.reference(), names, mismatch, *releases):
            return _Chosen("gigatoken", file.by_gigatoken, mismatch)
    return _Chosen("tiktoken", file.by_tiktoken, None)


class _RankFile:
    """A vocabulary in ranks, and the libraries that encode with it, each made when it is first asked for."""

    def __init__(
        self,
        name: str,
        text: bytes,
        scheme: Scheme | str,
        special_tokens: dict[str, int],
        specials: str,
        place: str,
        published: bool,
    ) -> None:
        self._name, self._text, self._place, self._published = name, text, place, published
        self._special_tokens = special_tokens
        self.scheme = scheme if isinstance(scheme, Scheme) else None
        self.pattern = self.scheme.patterns[0] if self.scheme else str(scheme)
        self.parsed = special_tokens if specials == "parse" else {}
        """Special tokens that are looked for in texts."""
        self.largest_rank = self.largest_id = 0
        self._building = threading.Lock()
        self._reference: Reference | None = None

    @cached_property
    def ranks(self) -> dict[bytes, int]:
        return vocabulary.parse(self._text, self._place, known=self._published)

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        return vocabulary.by_id(self.ranks, self._special_tokens)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array([len(token) for token in self._token_bytes], np.int64)

    @cached_property
    def _dense(self) -> bytes:
        """The file with a token for every rank, as gigatoken wants it."""
        complete = self._text.count(b"\n") == vocabulary.last_rank(self._text, self._place) + 1
        return self._text if complete else vocabulary.without_gaps(self._text, self.ranks)

    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each token, by id."""
        return self._lengths

    def decode(self, ids: list[int]) -> bytes:
        return b"".join(map(self._token_bytes.__getitem__, ids))

    def reference(self) -> Reference:
        # An eighth of a second with the GIL held: not once for each thread.
        with self._building:
            if self._reference is None:
                self._reference = self._encode_with_tiktoken()
            return self._reference

    def _encode_with_tiktoken(self) -> Reference:
        import tiktoken

        try:
            encoding = tiktoken.Encoding(
                self._name, pat_str=self.pattern, mergeable_ranks=self.ranks, special_tokens=self._special_tokens
            )
        except ValueError as error:
            raise UsageError(f"tiktoken refuses this vocabulary or pattern: {error}", place=self._place) from None
        if self.parsed:
            return lambda document: encoding.encode(document, allowed_special="all")
        return encoding.encode_ordinary

    def by_tiktoken(self, separator: bytes = b"") -> Backend:
        encode = self.reference()
        return ReferenceBackend(lambda texts: map(encode, texts))

    def by_gigatoken(self, separator: bytes = b"") -> Backend:
        scheme: Any = self.scheme.gigatoken if self.scheme else ""
        return gigatoken_backend.of_ranks(self._dense, scheme, self.parsed, self.largest_id + 1, separator)

    @cached_property
    def _model(self) -> Model:
        assert self.scheme is not None
        if self._published:
            return Model(parse_ranks(self._text), self.scheme.name)
        # Not `self.ranks`, which would stay: 10 MB that only a library needs.
        return Model(vocabulary.by_id(vocabulary.parse(self._text, self._place), {}), self.scheme.name)

    def by_core(self, separator: bytes = b"") -> Backend:
        with self._building:
            model = self._model
        return core_backend.CoreBackend(model, id_type(self.largest_id))
