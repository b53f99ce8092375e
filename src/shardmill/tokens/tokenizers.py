"""What is known about a tokenizer, and which engine encodes with it."""

from __future__ import annotations

import copy
import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import UsageError
from shardmill.tokens import backends, self_check
from shardmill.tokens.cuts import Cut
from shardmill.tokens.engines import Engine
from shardmill.tokens.found_tokens import TokenNames
from shardmill.tokens.stitch import LIBRARY_STEP, TEXT_STEP, Stitching

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.core import Model
    from shardmill.tokens.schemes import Scheme

Reference = Callable[[str], list[int]]
_SHOWN = 8


class Tokenizer(ABC):
    """What is known about a tokenizer, and its engines. Threads may share it.

    Each kind of tokenizer file has a subclass, which loads it and sets the attributes that have no value here.
    """

    library_name: str
    """The library whose tokens are right by definition."""
    engine_name: str
    """`core`, or the name of the library."""
    special_tokens: dict[str, int]
    largest_id: int
    eot: int | None
    pattern: str | None = None
    """The split pattern's name, or the pattern."""
    cut: Cut | None = None
    """Finds the places where a text may be cut; None: no such places are known."""
    stitching: Stitching | None = None
    library_bytes = 0
    """Memory that its library takes for each byte of a document, if every document goes to it whole."""

    def __init__(self, name: str, text: bytes, specials: str, place: str) -> None:
        """`text`: the file that holds its vocabulary or rules; `place`: where that is, for errors."""
        self.name, self.specials, self._place = name, specials, place
        self.sha256 = hashlib.sha256(text).hexdigest()
        self._building = threading.Lock()

    @abstractmethod
    def reference(self) -> Reference:
        """Return a function that encodes a text with the tokenizer's own library. UsageError if it is missing."""

    @abstractmethod
    def encode_batch(self, texts: list[str]) -> Iterable[Sequence[int]]:
        """Encode many texts with the tokenizer's own library."""

    @abstractmethod
    def decode(self, ids: NDArray[Any]) -> bytes:
        """Return the text of any ids of this tokenizer; special tokens by their names."""

    @abstractmethod
    def token_bytes(self, id_: int) -> bytes:
        """Return the bytes of one token in a text."""

    def exist(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of these ids, none of which is beyond the largest, stand for something."""
        return np.ones(len(ids), np.bool_)

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Bytes of text that each token stands for, by id; None: tokens do not give exactly the text back."""
        return None

    @property
    def vocab_size(self) -> int:
        return self.largest_id + 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that ids are stored as: the narrowest that fits, of the two that trainers read."""
        return np.dtype(np.uint16 if self.largest_id < 1 << 16 else np.uint32)

    @property
    def engine_bytes(self) -> int:
        """Memory that each engine takes, whatever it encodes."""
        return backends.CORE_BYTES if self.engine_name == "core" else backends.LIBRARY_BYTES

    def describe(self) -> dict[str, Any]:
        """Return what can change the tokens, for the fingerprint and the manifest."""
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
        """Return which libraries encode, with their releases, and a hash of the engine's tokens for a hard text."""
        text = np.frombuffer(self_check.hard_text(), np.uint8)
        encoded = engine.encode(text, np.array([0, len(text)], np.int64))
        digest = hashlib.sha256(encoded.tokens.astype("<u4").tobytes())
        names = dict.fromkeys([self.engine_name, self.library_name])
        libraries = ", ".join(f"{name} {self_check.version(name)}" for name in names)
        return {"libraries": libraries, "sha256": digest.hexdigest()}

    def with_delimiter(self, token: str | None) -> Tokenizer:
        """Return the same with another special token between documents; UsageError if there is no such token."""
        if token is None:
            return self
        if token not in self.special_tokens:
            known = ", ".join(f"`{name}`" for name in list(self.special_tokens)[:_SHOWN]) or "none"
            raise UsageError(f"`{token}` is no special token of `{self.name}`", hint=f"choose one of: {known}")
        other = copy.copy(self)
        other.eot = self.special_tokens[token]
        return other

    @cached_property
    def forbidden(self) -> TokenNames | None:
        """Finds the special tokens that a text must not contain."""
        return TokenNames(self.special_tokens) if self.specials == "error" and any(self.special_tokens) else None

    def engine(self) -> Engine:
        """Return a new engine, for one thread."""
        return Engine(self)

    def backend(self, name: str) -> backends.Backend:
        """Return a new encoder of the core, or the library, by its name."""
        return backends.ReferenceBackend(self.encode_batch)


class BytePairTokenizer(Tokenizer):
    """A tokenizer that the core encodes instead of its library, if it splits text by a known scheme."""

    scheme: Scheme | None = None
    searched_tokens: Mapping[str, int] = MappingProxyType({})
    """Tokens that are searched for in texts, with their ids."""
    normalize: Callable[[str], str] | None = None
    """Brings a text into the normal form that its library encodes; None: the text as it is."""

    @property
    @abstractmethod
    def vocabulary(self) -> list[bytes]:
        """The bytes of every id in order; empty for ids that do not exist."""

    @abstractmethod
    def _make_model(self) -> Model:
        """Make the core's tables, of ordinary tokens only: others are never made by merging."""

    def decode(self, ids: NDArray[Any]) -> bytes:
        return b"".join(map(self.vocabulary.__getitem__, ids.tolist()))

    def token_bytes(self, id_: int) -> bytes:
        return self.vocabulary[id_]

    def exist(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self._lengths[ids] > 0
        return known

    def backend(self, name: str) -> backends.Backend:
        if name == "core":
            with self._building:
                model = self._model
            return backends.CoreBackend(model, self.dtype, self._token_names, self.normalize)
        return super().backend(name)

    @cached_property
    def _model(self) -> Model:
        return self._make_model()

    @cached_property
    def _token_names(self) -> TokenNames | None:
        return TokenNames(self.searched_tokens) if self.searched_tokens else None

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """Bytes of each token, by id."""
        return np.array([len(token) for token in self.vocabulary], np.int64)

    def _choose_engine(self, names: list[str], *, possible: bool, published: bool = False) -> None:
        """Choose the core if that is possible and it gives the library's tokens, else the library.

        Published vocabularies were compared at length, with the releases that are tested; others are compared now, on
        texts that contain the given names of tokens.
        """
        trusted = possible and (
            (published and self_check.tested(self.library_name))
            or self_check.trusted(
                partial(self.backend, "core"),
                self.reference(),
                names,
                self.library_name,
                normalizes=self.normalize is not None,
            )
        )
        self.engine_name = "core" if trusted else self.library_name

    def _set_cuts(self, scheme: Scheme, *, normalizes: bool = False) -> None:
        """Set where texts may be cut."""
        # Where special tokens are an error they must be found, so no cut may hide one.
        forbidden = self.special_tokens if self.specials == "error" else {}
        names = {**self.searched_tokens, **forbidden}
        self.cut = Cut(scheme.family, specials=bool(names) or self.specials == "error")
        step = TEXT_STEP if self.engine_name == "core" else LIBRARY_STEP
        self.stitching = Stitching(self.cut, TokenNames(names) if any(names) else None, normalizes, step)
