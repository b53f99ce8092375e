"""What can be wrong with an input, and the way out: the same sentences from `inspect` before a run and from `prepare`.

A trouble says what is wrong, where, and what to do. `KINDS` lists all kinds; a test gives each to both commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardmill.errors import SourceError
from shardmill.units import show_bytes

KINDS = (
    "source",
    "sources",
    "empty",
    "rejects",
    "utf8",
    "binary",
    "separator",
    "tokens",
    "reader",
    "vocabulary",
    "disk",
    "memory",
)
"""Values of `Trouble.what`."""
FEWEST_BAD = 100
"""Bad documents, or invalid UTF-8 sequences, up to which no share of them stops a run."""
RARE = 1 << 20
"""Bytes of text from one special token to the next, from which on it separates nothing."""
NAMES_SHOWN = 3
"""Names of sources that a message lists."""


@dataclass(frozen=True)
class Trouble:
    """Something that is wrong or looks wrong, with a hint."""

    what: str
    """For programs: one of `KINDS`."""
    message: str
    place: str | None = None
    hint: str | None = None
    stops: bool = False
    """Whether `prepare` would end with an error."""

    def sentence(self) -> str:
        """All of it in one line."""
        return (f"{self.place}: " if self.place else "") + self.message + (f"; {self.hint}" if self.hint else "")


class KnownSeparator(NamedTuple):
    """A text that may separate documents."""

    option: str
    """As `--separator` takes it."""
    raw: bytes
    meaning: str
    certain: bool = False
    """It does not occur in ordinary text: blank lines also separate paragraphs."""


SEPARATORS = (
    KnownSeparator("<|endoftext|>", b"<|endoftext|>", "the end-of-text token of GPT-2, as text", certain=True),
    KnownSeparator("<|end_of_text|>", b"<|end_of_text|>", "the end-of-text token of Llama 3, as text", certain=True),
    KnownSeparator("<|im_end|>", b"<|im_end|>", "an end-of-turn token, as text", certain=True),
    KnownSeparator("</s>", b"</s>", "an end-of-sentence token, as text", certain=True),
    KnownSeparator(r"\x1e", b"\x1e", "the record separator of ASCII", certain=True),
    KnownSeparator(r"\f", b"\f", "form feeds"),
    KnownSeparator(r"\n---\n", b"\n---\n", "lines of three dashes"),
    KnownSeparator(r"\n===\n", b"\n===\n", "lines of three equals signs"),
    KnownSeparator(r"\n\n\n", b"\n\n\n", "two blank lines"),
    KnownSeparator(r"\n\n", b"\n\n", "blank lines"),
    KnownSeparator(r"\r\n\r\n", b"\r\n\r\n", "blank lines (CRLF)"),
    KnownSeparator(r"\n", b"\n", "line ends, with long lines between them"),
)
"""The best come first."""


def named(names: Sequence[str], count: int) -> str:
    """The first names of `count` sources."""
    more = count - len(names[:NAMES_SHOWN])
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more else "")


def empty_sources(names: Sequence[str], count: int, total: int) -> Trouble:
    """`count` of `total` sources have no bytes."""
    said = f"{count:,} sources are empty" if count > 1 else "a source is empty"
    return Trouble("empty", said if count < total else "all sources are empty", named(names, count))


def no_text() -> Trouble:
    """There are bytes, but no text in them."""
    return Trouble("empty", "the dataset is empty: the sources hold no text")


def invalid_utf8(count: int, text_bytes: int, place: str | None = None, *, sampled: bool = False) -> Trouble:
    """Plain text holds bytes that are not UTF-8."""
    share = count / max(1, text_bytes)
    text = f"{show_bytes(text_bytes)} of {'sampled ' if sampled else ''}text"
    said = f"{count:,} invalid UTF-8 {'sequence' if count == 1 else 'sequences'} in {text} ({percent(share)})"
    said += "" if sampled else " became U+FFFD"
    hint = "each becomes U+FFFD" if sampled else None
    if share > 0.001:
        also = "; if the text is in another encoding, convert it first: `iconv -f latin1 -t utf-8`"
        hint = f"{hint or ''}{also}".removeprefix("; ")
    return Trouble("utf8", said, place, hint)


def too_much_invalid(count: int, text_bytes: int, place: str) -> SourceError:
    """More plain text is not UTF-8 than `--max-bad` allows."""
    name = place.rpartition(", byte ")[0] or place
    file = shlex.quote(name)
    convert = f"`iconv -f latin1 -t utf-8 {file} > {shlex.quote(f'{name}.utf8.txt')}`"
    share = percent(count / max(1, text_bytes))
    return SourceError(
        f"{count:,} sequences of bytes are not UTF-8 ({share} of the text), more than `--max-bad` allows",
        place=place,
        hint=f"convert the text first: {convert} if it is Latin-1; `--max-bad any` replaces what is invalid by U+FFFD",
    )


def not_text(names: Sequence[str], count: int, controls: str) -> Trouble:
    """Sources hold control characters that no text has; `controls` says how many."""
    said = f"{count:,} sources are not text" if count > 1 else "a source is not text"
    said += f": {controls} NUL or other control characters"
    return Trouble("binary", said, named(names, count), "leave it out, or is the download complete?")


def special_tokens(token: str, count: int, place: str | None, *, plain: bool, sampled: bool = False) -> Trouble:
    """A text that certainly separates documents stands in them; `plain`: in plain text."""
    meaning = next(known.meaning for known in SEPARATORS if known.option == token)
    times = "once" if count == 1 else f"{count:,} times"
    seen = f"stands {times} in the {'sampled ' if sampled else ''}text"
    if plain:
        hint = f"add `--separator '{token}'` if it separates documents"
        return Trouble("separator", f"`{token}` {seen} ({meaning})", place, hint)
    hint = "it is read as ordinary text; `--specials parse` makes it the token, if the tokenizer has it"
    return Trouble("tokens", f"`{token}` {seen} ({meaning})", place, hint)


def separator_not_found(separator: str, *, sampled: bool = False) -> Trouble:
    """The separator that was given does not occur."""
    where = "the sampled text" if sampled else "the text"
    return Trouble(
        "separator", f"the separator `{separator}` was not found in {where}", None, "so a file is a document"
    )


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"
