"""Tokenizers whose vocabulary is a rank file, as tiktoken's are."""

from __future__ import annotations

import functools
import hashlib
import threading

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import UsageError
from shardmill.tokens import gigatoken_backend, self_check, vocabulary
from shardmill.tokens.cuts import Cut
from shardmill.tokens.engines import Backend, ReferenceBackend
from shardmill.tokens.schemes import Scheme
from shardmill.tokens.stitch import Stitching
from shardmill.tokens.tokenizers import Reference, Tokenizer
from shardmill.tokens.unicode_mismatch import drift_of


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

    A published one has been compared with tiktoken at length; any other is compared now, on a hard text.
    """
    known = scheme if isinstance(scheme, Scheme) else None
    pattern = known.patterns[0] if known else str(scheme)
    parsed = special_tokens if specials == "parse" else {}

    @functools.cache
    def ranks() -> dict[bytes, int]:
        return vocabulary.parse(text, place)

    largest_rank = vocabulary.last_rank(text, place) if published else max(ranks().values())

    @functools.cache
    def token_bytes() -> list[bytes]:
        return vocabulary.by_id(ranks(), special_tokens)

    @functools.cache
    def lengths() -> NDArray[np.int64]:
        return np.array([len(token) for token in token_bytes()], np.int64)

    building = threading.Lock()

    def reference() -> Reference:
        # An eighth of a second with the GIL held: not once for each thread.
        with building:
            return build_reference()

    @functools.cache
    def build_reference() -> Reference:
        import tiktoken

        try:
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks(), special_tokens=special_tokens)
        except ValueError as error:
            raise UsageError(f"tiktoken refuses this vocabulary or pattern: {error}", place=place) from None
        if parsed:
            return lambda document: encoding.encode(document, allowed_special="all")
        return encoding.encode_ordinary

    @functools.cache
    def dense() -> bytes:
        return text if text.count(b"\n") == largest_rank + 1 else vocabulary.without_gaps(text, ranks())

    def by_tiktoken(separator: bytes = b"") -> Backend:
        return ReferenceBackend(reference())

    def by_gigatoken(separator: bytes = b"") -> Backend:
        return gigatoken_backend.of_ranks(dense(), known.gigatoken if known else "", parsed, largest + 1, separator)

    largest = max(largest_rank, *special_tokens.values(), 0)
    if not published:
        reference()  # an error in the vocabulary or the pattern is told now
    # gigatoken refuses to look for a special token whose id lies among the ranks, as the one of p50k_base does.
    fast = known is not None and all(id_ > largest_rank for id_ in parsed.values())
    fast = fast and (published or self_check.trusted(by_gigatoken, reference(), list(special_tokens)))
    # Where special tokens are an error they must be found, so no cut may hide one.
    cut = Cut(known.family, specials=specials != "text") if known else None
    stitching = None
    if known and cut:
        stitching = Stitching(cut, lengths, known.digit_group, known.looks_past_white, specials=bool(parsed))
    return Tokenizer(
        name=name,
        sha256=hashlib.sha256(text).hexdigest(),
        vocab_size=largest + 1,
        largest_id=largest,
        eot=special_tokens.get(vocabulary.END_OF_TEXT),
        engine_name="gigatoken" if fast else "tiktoken",
        specials=specials,
        special_tokens=special_tokens,
        pattern=known.name if known else pattern,
        cut=cut,
        make_primary=by_gigatoken if fast else by_tiktoken,
        make_fallback=by_tiktoken if fast else None,
        make_reference=reference,
        decode_ids=lambda ids: b"".join(map(token_bytes().__getitem__, ids)),
        stitching=stitching,
        separable=fast and specials == "text",
        drift=drift_of([pattern]),
    )
