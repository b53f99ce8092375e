"""Tokenizers that are a SentencePiece model."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from typing import Any

from shardmill.errors import UsageError
from shardmill.extras import needs
from shardmill.tokens.engines import Backend, ReferenceBackend
from shardmill.tokens.tokenizers import Tokenizer


def from_model(name: str, model: bytes, *, specials: str, place: str) -> Tokenizer:
    """The tokenizer of a SentencePiece model. Such a text is normalised as a whole, so it has no known safe places."""
    if specials == "parse":
        raise UsageError(
            "SentencePiece never takes text for a special token", place=place, hint="use `--specials text` or `error`"
        )
    library = needs("sentencepiece", "sentencepiece", "this tokenizer")
    try:
        processor: Any = library.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UsageError(f"not a SentencePiece model: {error}", place=place) from None
    # One document, or a list of them; a list is encoded in this thread, without the GIL.
    encode = partial(processor.encode, out_type=int, add_bos=False, add_eos=False, num_threads=1)

    def by_library(separator: bytes = b"") -> Backend:
        return ReferenceBackend(encode)

    size = processor.vocab_size()
    return Tokenizer(
        name=name,
        sha256=hashlib.sha256(model).hexdigest(),
        vocab_size=size,
        largest_id=size - 1,
        eot=processor.eos_id() if processor.eos_id() >= 0 else None,
        engine_name="sentencepiece",
        library_name="sentencepiece",
        specials=specials,
        special_tokens={processor.id_to_piece(id_): id_ for id_ in range(size) if processor.is_control(id_)},
        pattern=None,
        cut=None,
        make_primary=by_library,
        make_fallback=None,
        make_reference=lambda: encode,
        decode_ids=lambda ids: str(processor.decode(ids)).encode(),
        spell=lambda id_: spelled(processor.id_to_piece(id_)),
        stitching=None,
        library_bytes=50,  # 46 for English
    )


def spelled(piece: str) -> bytes:
    """The bytes that a piece of a vocabulary stands for: a space is written `▁`, a byte by itself `<0xE4>`."""
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()
