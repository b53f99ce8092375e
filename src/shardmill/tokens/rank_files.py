"""Tokenizers whose vocabulary is a rank file, as tiktoken's are: a line per token, its bytes in base64 and its rank."""

from __future__ import annotations

import base64
import binascii
import functools
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.core import Model, parse_ranks
from shardmill.errors import UsageError
from shardmill.tokens import backends
from shardmill.tokens.schemes import Scheme
from shardmill.tokens.tokenizers import BytePairTokenizer, Reference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

END_OF_TEXT = "<|endoftext|>"


class RankTokenizer(BytePairTokenizer):
    """The tokenizer of a rank file's text, split by a known scheme or else by a regular expression."""

    library_name = "tiktoken"

    def __init__(
        self,
        name: str,
        text: bytes,
        scheme: Scheme | str,
        special_tokens: dict[str, int],
        *,
        specials: str,
        place: str,
        published: bool = False,
    ) -> None:
        """Raise UsageError if tiktoken refuses the vocabulary or the pattern."""
        super().__init__(name, text, specials, place)
        self._text, self._published = text, published
        if isinstance(scheme, Scheme):
            self.scheme, self.pattern, self._regex = scheme, scheme.name, scheme.patterns[0]
        else:
            self.pattern = self._regex = scheme
        self.special_tokens = special_tokens
        self.eot = special_tokens.get(END_OF_TEXT)
        self.searched_tokens = special_tokens if specials == "parse" else {}
        largest_rank = last_rank(text, place) if published else max(self._ranks.values())
        self.largest_id = max(largest_rank, *special_tokens.values(), 0)
        if not published:
            self.reference()  # so that an error in the vocabulary or the pattern is raised now
        self._choose_engine(list(special_tokens), possible=backends.core_knows(self.scheme), published=published)
        if self.scheme:
            self._set_cuts(self.scheme)

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        return parse(self._text, self._place)

    @cached_property
    def vocabulary(self) -> list[bytes]:
        return by_id(self._ranks, self.special_tokens)

    @cached_property
    def _tiktoken(self) -> Any:
        import tiktoken

        try:
            return tiktoken.Encoding(
                self.name, pat_str=self._regex, mergeable_ranks=self._ranks, special_tokens=self.special_tokens
            )
        except ValueError as error:
            raise UsageError(f"tiktoken refuses this vocabulary or pattern: {error}", place=self._place) from None

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        return None if self.scheme is None else self._lengths  # a pattern of the user's may leave out some text

    def reference(self) -> Reference:
        # It takes an eighth of a second with the GIL held: not once for each thread.
        with self._building:
            encoding = self._tiktoken
        if self.searched_tokens:
            return lambda document: list(encoding.encode(document, allowed_special="all"))
        encode: Reference = encoding.encode_ordinary
        return encode

    def encode_batch(self, texts: list[str]) -> Iterable[Sequence[int]]:
        return map(self.reference(), texts)

    def _make_model(self) -> Model:
        assert self.scheme is not None
        tokens = parse_ranks(self._text) if self._published else by_id(self._ranks, {})
        return Model(tokens, self.scheme.name)


@functools.cache
def gpt2_ranks() -> bytes:
    """Return GPT-2's rank file (the same as tiktoken's r50k_base), from this package."""
    return zlib.decompress(Path(__file__).with_name("gpt2.ranks").read_bytes())


def p50k_ranks() -> bytes:
    """Return the rank file of p50k_base: GPT-2's, a gap for the end of text, and runs of 2 to 25 spaces."""
    spaces = [f"{base64.b64encode(b' ' * (2 + n)).decode('ascii')} {50257 + n}\n" for n in range(24)]
    return gpt2_ranks() + "".join(spaces).encode("ascii")


def parse(text: bytes, place: str) -> dict[bytes, int]:
    """Return ranks by token bytes. UsageError if the text is not a rank file."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise UsageError(
                "not a rank file (each line: base64, a space, a number)", place=f"{place}, line {number}"
            ) from None
    return ranks


def by_id(ranks: dict[bytes, int], special_tokens: dict[str, int]) -> list[bytes]:
    """Return the bytes of every id in order; empty for ids that do not exist."""
    tokens = {rank: token for token, rank in ranks.items()} | {
        id_: name.encode() for name, id_ in special_tokens.items()
    }
    return [tokens.get(id_, b"") for id_ in range(max(tokens) + 1)]


def last_rank(text: bytes, place: str) -> int:
    """Return the largest rank, which is in the last line."""
    line = text.rstrip().rpartition(b"\n")[2]
    return max(parse(line, place).values(), default=-1)
