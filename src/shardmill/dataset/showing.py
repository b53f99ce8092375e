"""Documents of a dataset as a person reads them, with the boundaries of their tokens."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import UsageError
from shardmill.shards import format_named
from shardmill.tokens import load_tokenizer
from shardmill.units import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset.dataset import Dataset, Split
    from shardmill.tokens import Tokenizer

BOUNDARY = "│"


def show(
    data: Dataset,
    split: str | None = None,
    *,
    first: int = 0,
    documents: int = 3,
    tokens: int = 200,
    ids: bool = False,
    random: bool = False,
    seed: int | None = None,
    at: int | None = None,
    paint: Callable[[int, str], str] | None = None,
) -> Iterator[str]:
    """Some documents, a heading and the text of each; `tokens`: the most that are shown of a document.

    From the `first` on, or drawn at `random` with a `seed`, or those from the one on that holds the token `at`.
    `paint(number, text)` colours a token; without it a line separates tokens. UsageError when there is no such
    split, document or token.
    """
    name = split or next(iter(data))
    if name not in data:
        raise UsageError(f"there is no split `{name}`", hint=f"choose one of: {', '.join(data)}")
    documents = min(documents, max(1, len(data[name])))  # a document has a token at least
    if random:
        found = _drawn(data[name], documents, tokens, seed)
    elif at is not None:
        found = _around(data[name], at, tokens)
    else:
        found = _documents(data[name], first, tokens)
    shown = False
    for heading, some in islice(found, documents):
        shown = True
        yield heading
        pieces = token_texts(data.tokenizer, some[:tokens])
        if ids:
            pieces = [f"{piece}⟨{int(token)}⟩" for piece, token in zip(pieces, some, strict=False)]
        yield _joined(pieces, paint) + ("…" if len(some) > tokens else "")
        yield ""
    if not shown:
        known = f"it has {len(data[name].documents):,}, counted from 0" if _separated(data[name]) else None
        hint = known or f"it has {len(data[name]):,} tokens, and nothing says where documents end"
        raise UsageError(f"{name} has no document {first:,}", hint=hint)


def show_text(
    text: str, tokenizers: Sequence[str], *, ids: bool = False, paint: Callable[[int, str], str] | None = None
) -> Iterator[str]:
    """How tokenizers split a text: counts, and the tokens; of several, side by side between their common boundaries."""
    known = [load_tokenizer(name) for name in tokenizers]
    size = len(text.encode())
    columns = []
    for tokenizer in known:
        found = np.array(tokenizer.reference()(text), np.int64)
        columns.append((tokenizer, found, [len(tokenizer.token_bytes(id_)) for id_ in found.tolist()]))
        ratio = f", {size / len(found):.2f} bytes per token" if len(found) else ""
        yield f"{tokenizer.name}: {len(found):,} token{'s' * (len(found) != 1)}{ratio}"
    yield ""
    # Where a library's tokens do not add up to the text (SentencePiece adds a space), there are no common boundaries.
    aligned = len(columns) > 1 and all(sum(sizes) == size for _, _, sizes in columns)
    shown = []
    for tokenizer, found, _ in columns:
        pieces = token_texts(tokenizer, found)
        if aligned:  # in the cells of a table
            pieces = [piece.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") for piece in pieces]
        shown.append([f"{piece}⟨{id_}⟩" for piece, id_ in zip(pieces, found.tolist(), strict=True)] if ids else pieces)
    if not aligned:
        for (tokenizer, _, _), pieces in zip(columns, shown, strict=True):
            if len(columns) > 1:
                yield f"{tokenizer.name}:"
            yield _joined(pieces, paint)
        return
    ends = [np.cumsum(sizes).tolist() for _, _, sizes in columns]
    common = sorted(set(ends[0]).intersection(*ends[1:]))
    rows = [[tokenizer.name for tokenizer, _, _ in columns]]
    reached = [0] * len(columns)
    for end in common:
        row = []
        for i, pieces in enumerate(shown):
            stop = bisect_right(ends[i], end)
            row.append(BOUNDARY.join(pieces[reached[i] : stop]))
            reached[i] = stop
        rows.append(row)
    wide = [max(_cells(row[i]) for row in rows) for i in range(len(columns))]
    for number, row in enumerate(rows):
        same = len(set(row)) == 1 or number == 0
        line = "  ".join(cell + " " * (wide[i] - _cells(cell)) for i, cell in enumerate(row))
        yield f"{' ' if same else '≠'} {line.rstrip() if paint is None or same else paint(number, line)}"


def _joined(pieces: Sequence[str], paint: Callable[[int, str], str] | None) -> str:
    return BOUNDARY.join(pieces) if paint is None else "".join(paint(i, piece) for i, piece in enumerate(pieces))


def _cells(text: str) -> int:
    """The columns of a terminal that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def token_texts(tokenizer: Tokenizer, tokens: NDArray[Any]) -> list[str]:
    """The text of each token; bytes that are no whole character are written as `\\xe4`."""
    return [
        "".join(map(visible, tokenizer.token_bytes(id_).decode("utf-8", "backslashreplace"))) for id_ in tokens.tolist()
    ]


def visible(letter: str) -> str:
    """A character of a document, or its escape if it could control a terminal or turn the direction of text."""
    # Cc, Cf, Cs: control and format characters, halves of surrogate pairs. Joiners are part of words and emoji.
    if letter in "\n\t\u200c\u200d" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs"):
        return letter
    return f"\\x{ord(letter):02x}" if ord(letter) < 256 else f"\\u{ord(letter):04x}"


def _documents(split: Split, first: int, tokens: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """(heading, tokens) of each document from `first` on; of stretches of tokens if nothing separates documents."""
    if not _separated(split):
        for start in range(first * tokens, len(split), tokens):
            yield _stretch(split, start, tokens)
        return
    for i in count(first):
        try:
            document = split.documents[i]
        except IndexError:
            return
        yield f"{split.name}, document {i:,}: {plural(len(document), 'token')}{_origin(split, i)}", document


def _separated(split: Split) -> bool:
    """Whether something says where documents end."""
    return split.dataset.eot != "none" or format_named(split.dataset.format).indexed or split.table is not None


def _origin(split: Split, i: int) -> str:
    """Where a document comes from, for its heading."""
    origin = split.documents.origin(i)
    return f" ({origin})" if origin else ""


def _stretch(split: Split, start: int, tokens: int) -> tuple[str, NDArray[Any]]:
    some = split[start : start + tokens]
    return f"{split.name}, tokens {start:,} to {start + len(some):,} of {len(split):,}", some


def _drawn(split: Split, documents: int, tokens: int, seed: int | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """Documents or stretches drawn at random, in the order of the split."""
    random = np.random.default_rng(seed)
    if not _separated(split):
        starts = random.integers(0, max(1, len(split) - tokens), documents if len(split) else 0)
        for start in sorted(starts.tolist()):
            yield _stretch(split, start, tokens)
        return
    count = len(split.documents)
    for i in sorted(random.choice(count, min(count, documents), replace=False).tolist()):
        document = split.documents[i]
        heading = f"{split.name}, document {i:,} of {count:,}: {plural(len(document), 'token')}"
        yield heading + _origin(split, i), document


def _around(split: Split, at: int, tokens: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """The document around a token, from its beginning if that is near, and the documents after it."""
    if not 0 <= at < len(split):
        raise UsageError(f"{split.name} has no token {at:,}", hint=f"it has {len(split):,}, counted from 0")
    start = max(0, at - tokens // 2)
    if not _separated(split):
        yield _stretch(split, start, tokens)
        return
    number = split.documents.holding(at)
    begin, end = split.documents.bounds(number)
    start = max(begin, start)
    if start == begin and split.dataset.eot == "before" and split[start] == split.dataset.eot_id:
        start += 1
    yield (
        f"{split.name}, token {at:,} is token {at - begin:,} of document {number:,}{_origin(split, number)}; from "
        f"token {start:,} on",
        split[start : max(end, at + 1)],
    )
    yield from _documents(split, number + 1, tokens)
