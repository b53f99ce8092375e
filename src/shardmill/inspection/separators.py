"""What seems to stand between documents in plain text."""

from __future__ import annotations

from dataclasses import dataclass

# The option that splits there, what it is, and whether it stands there for no other reason: blank lines also part
# paragraphs. In the order in which they are to be preferred.
_KNOWN: tuple[tuple[str, bytes, str, bool], ...] = (
    ("<|endoftext|>", b"<|endoftext|>", "the end-of-text token of GPT-2, as text", True),
    ("<|end_of_text|>", b"<|end_of_text|>", "the end-of-text token of Llama 3, as text", True),
    ("<|im_end|>", b"<|im_end|>", "an end-of-turn token, as text", True),
    ("</s>", b"</s>", "an end-of-sentence token, as text", True),
    (r"\x1e", b"\x1e", "the record separator of ASCII", True),
    (r"\f", b"\f", "form feeds", False),
    (r"\n---\n", b"\n---\n", "lines of three dashes", False),
    (r"\n===\n", b"\n===\n", "lines of three equals signs", False),
    (r"\n\n\n", b"\n\n\n", "two blank lines", False),
    (r"\n\n", b"\n\n", "blank lines", False),
    (r"\r\n\r\n", b"\r\n\r\n", "blank lines (CRLF)", False),
    (r"\n", b"\n", "line ends, with long lines between them", False),
)
_RARE = 1 << 20  # bytes from one to the next
_LONG_LINE = 400  # bytes a line, on average, from which on a line looks like a document


@dataclass(frozen=True)
class Separator:
    """Something that may stand between documents."""

    separator: str
    """As `--separator` takes it."""
    meaning: str
    documents: int
    """That it would make of all text, about."""
    apart: int
    """Bytes from one to the next."""
    certain: bool
    """It is no part of ordinary text."""


def find_separators(excerpts: list[bytes], text_bytes: int) -> list[Separator]:
    """The separators in excerpts of a text of so many bytes, the most likely first."""
    seen = sum(map(len, excerpts))
    if not seen:
        return []
    found: list[Separator] = []
    for option, raw, meaning, certain in _KNOWN:
        counts = [excerpt.count(raw) for excerpt in excerpts]
        count = sum(counts)
        # What only a page here and there mentions separates nothing.
        if not count or seen / count > _RARE or (not certain and 2 * counts.count(0) > len(counts)):
            continue
        if raw == b"\n" and seen / count < _LONG_LINE:
            continue
        if raw == b"\n" and any(not one.certain for one in found):
            continue  # with blank lines between them, lines are paragraphs
        found.append(Separator(option, meaning, max(1, round(count / seen * text_bytes)), seen // count, certain))
    return found
