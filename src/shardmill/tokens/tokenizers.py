"""A tokenizer by its name or its file."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import UsageError
from shardmill.tokens import self_check
from shardmill.tokens.engines import Backend, Engine, EngineParts
from shardmill.tokens.gigatoken_backend import MARK
from shardmill.tokens.stitch import Stitching
from shardmill.tokens.unicode_mismatch import WITH_SYMBOLS, Characters

if TYPE_CHECKING:
    from numpy.typing import NDArray

Reference = Callable[[str], list[int]]
_SHOWN = 8


def id_type(largest_id: int) -> np.dtype[Any]:
    """The narrowest unsigned type that the largest id fits in, of the two that trainers read."""
    return np.dtype(np.uint16 if largest_id < 1 << 16 else np.uint32)


@dataclass(frozen=True)
class Tokenizer:
    """The facts about a tokenizer, and ways to make engines for it. Safe to share between threads."""

    name: str
    sha256: str
    """Of the file that holds its vocabulary or rules."""
    vocab_size: int
    largest_id: int
    eot: int | None
    engine_name: str
    library_name: str
    """The library that says what is right."""
    specials: str
    """What a special token in the text is: `text`, `parse` or `error`."""
    special_tokens: dict[str, int]
    pattern: str | None
    """The split pattern's name, or the pattern."""
    cut: Callable[[bytes, int], int] | None
    make_primary: Callable[[bytes], Backend] = field(repr=False)
    """Given the separator that may stand between its rows, or nothing."""
    make_fallback: Callable[[], Backend] | None = field(repr=False)
    make_reference: Callable[[], Reference] = field(repr=False)
    decode_ids: Callable[[list[int]], bytes] = field(repr=False)
    stitching: Stitching | None = field(repr=False)
    separable: bool = False
    """Its engine can be told of a separator: no other special token is looked for, with which one could overlap."""
    library_bytes: int = 0
    """Memory that its library takes for each byte of a document, where every document goes to it whole."""
    mismatch: Characters | None = WITH_SYMBOLS
    """Characters that its engine and its library may take for different things; None: there are none."""
    engine_bytes: int | None = None
    """Memory that each engine takes, whatever it encodes; None: its caches grow with the text."""
    spell: Callable[[int], bytes] | None = field(default=None, repr=False)
    """The bytes of one token, where decoding it alone would lose its space or a part of a character."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """What ids are stored as."""
        return id_type(self.largest_id)

    def describe(self) -> dict[str, Any]:
        """What can change the tokens, for the fingerprint and the manifest."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "vocab_size": self.vocab_size,
            "eot": self.eot,
            "pattern": self.pattern,
            "specials": self.specials,
            "bos_eos": "none added",
        }

    def provenance(self, engine: Engine) -> dict[str, str]:
        """Which libraries encode, in which releases, and a hash of what the engine gives for a hard text."""
        text = np.frombuffer(self_check.hard_text(), np.uint8)
        encoded = engine.encode(text, np.array([0, len(text)], np.int64))
        digest = hashlib.sha256(encoded.tokens.astype("<u4").tobytes())
        names = dict.fromkeys([self.engine_name, self.library_name])
        libraries = ", ".join(f"{name} {self_check.version(name)}" for name in names)
        return {"libraries": libraries, "sha256": digest.hexdigest()}

    def with_delimiter(self, token: str | None) -> Tokenizer:
        """The same with another special token between documents; UsageError when there is no such one."""
        if token is None:
            return self
        if token not in self.special_tokens:
            known = ", ".join(f"`{name}`" for name in list(self.special_tokens)[:_SHOWN]) or "none"
            raise UsageError(f"`{token}` is no special token of `{self.name}`", hint=f"there are: {known}")
        return replace(self, eot=self.special_tokens[token])

    def takes(self, separator: bytes) -> bool:
        """Whether engines can be made for rows that have this separator between them."""
        return self.separable and bool(separator) and not set(separator) & set(MARK.encode())

    def engine(self, separator: bytes = b"") -> Engine:
        """A new engine with empty caches: one for each thread, dropped when its caches have grown too large.

        `separator`: what may stand between rows, of which `takes` says that it can be had.
        """
        forbidden = None
        if self.specials == "error" and self.special_tokens:
            names = sorted(self.special_tokens, key=len, reverse=True)
            forbidden = re.compile(rb"(?=(" + b"|".join(re.escape(name.encode()) for name in names) + rb"))")
        return Engine(
            EngineParts(
                self.dtype,
                self.largest_id,
                functools.partial(self.make_primary, separator),
                self.make_fallback,
                self.stitching,
                forbidden,
                self.mismatch,
            )
        )

    def decode(self, ids: NDArray[Any]) -> bytes:
        """The bytes of any ids of this tokenizer, special tokens by their names."""
        return self.decode_ids(ids.tolist())

    def token_bytes(self, id_: int) -> bytes:
        """The bytes that one token stands for in a text."""
        return self.spell(id_) if self.spell is not None else self.decode_ids([id_])

    def reference(self) -> Reference:
        """Encodes a text with the tokenizer's own library. UsageError if that is not installed."""
        return self.make_reference()
