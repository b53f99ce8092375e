"""Tokenizers that are a SentencePiece model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shardmill.errors import UsageError
from shardmill.extras import needs
from shardmill.tokens.tokenizers import Reference, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SentencePieceTokenizer(Tokenizer):
    """The tokenizer of a SentencePiece model, which normalises a text as a whole, so no safe places are known."""

    library_name = engine_name = "sentencepiece"
    library_bytes = 50  # 46 for English

    def __init__(self, name: str, model: bytes, *, specials: str, place: str) -> None:
        super().__init__(name, model, specials, place)
        if specials == "parse":
            raise UsageError(
                "SentencePiece never takes text for a special token",
                place=place,
                hint="use `--specials text` or `error`",
            )
        library = needs("sentencepiece", "sentencepiece", "this tokenizer")
        try:
            self._processor: Any = library.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UsageError(f"not a SentencePiece model: {error}", place=place) from None
        # One document, or a list of them; a list is encoded in this thread, without the GIL.
        self._encode: Any = partial(self._processor.encode, out_type=int, add_bos=False, add_eos=False, num_threads=1)
        self.largest_id = self._processor.vocab_size() - 1
        self.eot = self._processor.eos_id() if self._processor.eos_id() >= 0 else None
        controls = filter(self._processor.is_control, range(self.vocab_size))
        self.special_tokens = {self._processor.id_to_piece(id_): id_ for id_ in controls}

    def reference(self) -> Reference:
        encode: Reference = self._encode
        return encode

    def encode_batch(self, texts: list[str]) -> Iterable[Sequence[int]]:
        found: list[list[int]] = self._encode(texts)
        return found

    def decode(self, ids: NDArray[Any]) -> bytes:
        return str(self._processor.decode(ids.tolist())).encode()

    def token_bytes(self, id_: int) -> bytes:
        return piece_bytes(self._processor.id_to_piece(id_))


def piece_bytes(piece: str) -> bytes:
    """Return the bytes of an entry of the vocabulary, where a space is written `▁`, and a single byte `<0xE4>`."""
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()
