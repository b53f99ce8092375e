"""Documents of a dataset as a person reads them, with the boundaries of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from shardmill.errors import UsageError
from shardmill.shards import format_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset.dataset import Dataset, Split

BOUNDARY = "│"


def show(
    data: Dataset,
    split: str | None = None,
    *,
    first: int = 0,
    documents: int = 3,
    tokens: int = 200,
    ids: bool = False,
    paint: Callable[[int, str], str] | None = None,
) -> Iterator[str]:
    """Some documents, a heading and the text of each; `tokens`: of a document at the most.

    `paint` tells tokens apart, given their number and text; without it a line stands between them. UsageError when
    there is no such split or document.
    """
    name = split or next(iter(data))
    if name not in data:
        raise UsageError(f"there is no split `{name}`", hint=f"there are: {', '.join(data)}")
    for heading, some in islice(_documents(data[name], first, tokens), documents):
        yield heading
        pieces = token_texts(data, some[:tokens])
        if ids:
            pieces = [f"{piece}⟨{int(token)}⟩" for piece, token in zip(pieces, some, strict=False)]
        text = BOUNDARY.join(pieces) if paint is None else "".join(paint(i, piece) for i, piece in enumerate(pieces))
        yield text + ("…" if len(some) > tokens else "")
        yield ""


def token_texts(data: Dataset, tokens: NDArray[Any]) -> list[str]:
    """The text of each token; bytes that are no whole character are written as `\\xe4`."""
    decode = data.tokenizer.decode
    return [decode(tokens[i : i + 1]).decode("utf-8", "backslashreplace") for i in range(len(tokens))]


def _documents(split: Split, first: int, tokens: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """(heading, tokens) from a document on; where nothing separates documents, stretches of the whole instead."""
    if split.dataset.eot == "none" and not format_named(split.dataset.format).indexed:
        for start in range(first * tokens, len(split), tokens):
            some = split[start : start + tokens]
            yield f"{split.name}, tokens {start:,} to {start + len(some):,} of {len(split):,}", some
        return
    for i in count(first):
        try:
            document = split.documents[i]
        except IndexError:
            if i == first:
                raise UsageError(
                    f"{split.name} has no document {first:,}", hint=f"it has {len(split.documents):,}, counted from 0"
                ) from None
            return
        yield f"{split.name}, document {i:,}: {len(document):,} tokens", document
