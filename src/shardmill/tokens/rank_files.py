"""Tokenizers whose vocabulary is a rank file, as tiktoken's are."""

from __future__ import annotations

import hashlib
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import UsageError
from shardmill.tokens import gigatoken_backend, self_check, vocabulary
from shardmill.tokens.cuts import Cut
from shardmill.tokens.engines import Backend, ReferenceBackend
from shardmill.tokens.schemes import Scheme
from shardmill.tokens.stitch import Stitching
from shardmill.tokens.tokenizers import Reference, Tokenizer
from shardmill.tokens.unicode_mismatch import mismatch_of

if TYPE_CHECKING:
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

    A published one has been compared with tiktoken at length, in the releases that are tested; any other is compared
    now, on a hard text.
    """
    file = _RankFile(name, text, scheme, special_tokens, specials, place)
    known, mismatch = file.scheme, mismatch_of([file.pattern])
    largest_rank = vocabulary.last_rank(text, place) if published else max(file.ranks.values())
    file.largest_id = max(largest_rank, *special_tokens.values(), 0)
    if not published:
        file.reference()  # an error in the vocabulary or the pattern is told now
    # gigatoken refuses to look for a special token whose id lies among the ranks, as the one of p50k_base does.
    fast = known is not None and all(id_ > largest_rank for id_ in file.parsed.values())
    if fast and not (published and self_check.tested("gigatoken", "tiktoken")):
        fast = self_check.trusted(file.by_gigatoken, file.reference(), list(special_tokens), mismatch, "tiktoken")
    # Where special tokens are an error they must be found, so no cut may hide one.
    cut = Cut(known.family, specials=specials != "text") if known else None
    stitching = None
    if known and cut:
        stitching = Stitching(
            cut, file.lengths, known.digit_group, known.looks_past_white, specials=bool(file.parsed)
        )
    return Tokenizer(
        name=name,
        sha256=hashlib.sha256(text).hexdigest(),
        vocab_size=file.largest_id + 1,
        largest_id=file.largest_id,
        eot=special_tokens.get(vocabulary.END_OF_TEXT),
        engine_name="gigatoken" if fast else "tiktoken",
        library_name="tiktoken",
        specials=specials,
        special_tokens=special_tokens,
        pattern=known.name if known else file.pattern,
        cut=cut,
        make_primary=file.by_gigatoken if fast else file.by_tiktoken,
        make_fallback=file.by_tiktoken if fast else None,
        make_reference=file.reference,
        decode_ids=file.decode,
        stitching=stitching,
        separable=fast and specials == "text",
        mismatch=mismatch,
    )


class _RankFile:
    """A vocabulary in ranks, and the libraries that encode with it, each made when it is first asked for."""

    def __init__(
        self, name: str, text: bytes, scheme: Scheme | str, special_tokens: dict[str, int], specials: str, place: str
    ) -> None:
        self._name, self._text, self._place = name, text, place
        self._special_tokens = special_tokens
        self.scheme = scheme if isinstance(scheme, Scheme) else None
        self.pattern = self.scheme.patterns[0] if self.scheme else str(scheme)
        self.parsed = special_tokens if specials == "parse" else {}
        """Special tokens that are looked for in texts."""
        self.largest_id = 0
        self._building = threading.Lock()
        self._reference: Reference | None = None

    @cached_property
    def ranks(self) -> dict[bytes, int]:
        return vocabulary.parse(self._text, self._place)

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
