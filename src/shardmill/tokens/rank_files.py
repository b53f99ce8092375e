"""Tokenizers whose vocabulary is a rank file, as tiktoken's are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from shardmill.core import Model, parse_ranks
from shardmill.errors import UsageError
from shardmill.tokens import backends, vocabulary
from shardmill.tokens.schemes import Scheme
from shardmill.tokens.tokenizers import Reference, Tokenizer


class RankTokenizer(Tokenizer):
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
        """UsageError where tiktoken refuses the vocabulary or the pattern."""
        super().__init__(name, text, specials, place)
        self._text, self._published = text, published
        if isinstance(scheme, Scheme):
            self.scheme, self.pattern, self._regex = scheme, scheme.name, scheme.patterns[0]
        else:
            self.pattern = self._regex = scheme
        self.special_tokens = special_tokens
        self.eot = special_tokens.get(vocabulary.END_OF_TEXT)
        self.found = special_tokens if specials == "parse" else {}
        largest_rank = vocabulary.last_rank(text, place) if published else max(self._ranks.values())
        self.largest_id = max(largest_rank, *special_tokens.values(), 0)
        if not published:
            self.reference()  # an error in the vocabulary or the pattern is told now
        self._choose_engine(
            list(special_tokens),
            [self._regex],
            published,
            core=backends.core_knows(self.scheme),
            # It refuses to look for a special token whose id lies among the ranks, as the one of p50k_base does.
            gigatoken=self.scheme is not None and all(id_ > largest_rank for id_ in self.found.values()),
        )
        if self.scheme:
            self._set_cuts(self.scheme, parsed=specials == "parse")

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        return vocabulary.parse(self._text, self._place, known=self._published)

    @cached_property
    def vocabulary(self) -> list[bytes]:
        return vocabulary.by_id(self._ranks, self.special_tokens)

    @cached_property
    def _dense(self) -> bytes:
        """The file with a token for every rank, as gigatoken wants it."""
        complete = self._text.count(b"\n") == vocabulary.last_rank(self._text, self._place) + 1
        return self._text if complete else vocabulary.without_gaps(self._text, self._ranks)

    @cached_property
    def _tiktoken(self) -> Any:
        import tiktoken

        try:
            return tiktoken.Encoding(
                self.name, pat_str=self._regex, mergeable_ranks=self._ranks, special_tokens=self.special_tokens
            )
        except ValueError as error:
            raise UsageError(f"tiktoken refuses this vocabulary or pattern: {error}", place=self._place) from None

    def reference(self) -> Reference:
        # An eighth of a second with the GIL held: not once for each thread.
        with self._building:
            encoding = self._tiktoken
        if self.found:
            return lambda document: list(encoding.encode(document, allowed_special="all"))
        encode: Reference = encoding.encode_ordinary
        return encode

    def encode_batch(self, texts: list[str]) -> Iterable[Sequence[int]]:
        return map(self.reference(), texts)

    @cached_property
    def _model(self) -> Model:
        assert self.scheme is not None
        tokens = parse_ranks(self._text) if self._published else vocabulary.by_id(self._ranks, {})
        return Model(tokens, self.scheme.name)

    def _gigatoken(self, more: dict[str, int]) -> Any:
        assert self.scheme is not None
        return backends.from_ranks(self._dense, self.scheme.gigatoken, {**self.found, **more})
