"""Documents as a page shows them, token by token, and rejects by reason."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shardmill.dataset import visible
from shardmill.reporting.survey import ChosenDocument

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset import Dataset
    from shardmill.tokens import Tokenizer

_CHARACTER = 4  # tokens that one character may take
_REASONS = 40  # the most reasons that are listed separately
_EXCERPTS = 3
_TEXT_TOKENS = 20_000  # tokens of a document whose text is in the page
_LINES = 200_000  # rejects that are read
_LONG_LINE = 1 << 20


_LINE_BREAK = {"\n": "⏎\n"}
_SPACES = {" ": "␣", "\n": "⏎", "\t": "⇥"}


class Token(NamedTuple):
    """One token as it is shown."""

    id: int
    text: str
    bytes: str
    """In hexadecimal, if the text does not show them: part of a character, or a character that cannot be shown."""


@dataclass(frozen=True)
class Excerpt:
    """A document, or its beginning."""

    name: str
    facts: str
    tokens: list[Token]
    more: int
    """Tokens that are not shown one by one."""
    rest: str = ""
    """The text of the whole document, or of its first `_TEXT_TOKENS` tokens, if not all tokens are shown."""


def tokens_of(tokenizer: Tokenizer, ids: NDArray[Any]) -> list[Token]:
    """Each token by itself, with its spaces marked. Bytes that are not a whole character are written as `\\xe4`."""
    shown = []
    for id_ in ids.tolist():
        data = tokenizer.token_bytes(id_)
        text = "".join(_SPACES.get(c) or visible(c) for c in data.decode("utf-8", "backslashreplace"))
        shown.append(_token(id_, text, data))
    return shown


def running_tokens(tokenizer: Tokenizer, ids: NDArray[Any]) -> list[Token]:
    """The tokens of a running text. A character of several tokens is shown in the first; the others are a dot.

    A line break is marked, since its token could otherwise neither be seen nor pointed at.
    """
    pieces = list(map(tokenizer.token_bytes, ids.tolist()))
    ends = list(itertools.accumulate(map(len, pieces)))
    texts = [""] * len(pieces)
    at = owner = 0
    for letter in b"".join(pieces).decode("utf-8", "surrogateescape"):
        while ends[owner] <= at:
            owner += 1
        stray = "\udc80" <= letter <= "\udcff"  # a byte that is part of no character
        texts[owner] += f"\\x{ord(letter) - 0xDC00:02x}" if stray else _LINE_BREAK.get(letter) or visible(letter)
        at += 1 if stray else len(letter.encode())
    return [
        _token(id_, text or ("·" if data else ""), data)
        for id_, text, data in zip(ids.tolist(), texts, pieces, strict=True)
    ]


def _token(id_: int, text: str, data: bytes) -> Token:
    return Token(id_, text, "" if text.encode() == data else data.hex(" "))


def excerpt(data: Dataset, split: str, chosen: ChosenDocument, max_tokens: int) -> Excerpt:
    """A document of a split, with at most `max_tokens` of its tokens."""
    ids = data[split].tokens.read(chosen.start, min(chosen.stop, chosen.start + max_tokens + _CHARACTER + 1))
    if data.eot != "none":
        ids = ids[ids != data.eot_id]
    name = f"document {chosen.number:,}" if chosen.number is not None else f"at token {chosen.start:,}"
    ratio = f", {chosen.bytes / chosen.tokens:.2f} bytes per token" if chosen.tokens else ""
    facts = (
        f"{chosen.tokens:,} token{'s' * (chosen.tokens != 1)}, {chosen.bytes:,} byte{'s' * (chosen.bytes != 1)}{ratio}"
    )
    tokens = running_tokens(data.tokenizer, ids[: max_tokens + _CHARACTER])[:max_tokens]
    more, rest = chosen.tokens - len(tokens), ""
    if more > 0:
        ids = data[split].tokens.read(chosen.start, min(chosen.stop, chosen.start + _TEXT_TOKENS))
        text = data.decode(ids[ids != data.eot_id] if data.eot != "none" else ids)
        rest = "".join(letter if letter in "\n\t" else visible(letter) for letter in text)
        rest += " …" if chosen.tokens > _TEXT_TOKENS else ""
    return Excerpt(name, facts, tokens, more, rest)


def stretch(data: Dataset, split: str, start: int, max_tokens: int) -> Excerpt:
    """Some tokens of a split whose documents nothing separates."""
    ids = data[split].tokens.read(start, min(start + max_tokens, len(data[split])))
    return Excerpt(f"tokens {start:,} to {start + len(ids):,}", "", running_tokens(data.tokenizer, ids), 0)


@dataclass
class Rejects:
    """Rejects by reason, as `rejects.jsonl` has them."""

    total: int
    read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    excerpts: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def add(self, line: bytes) -> None:
        try:
            parsed = json.loads(line)
        except ValueError:  # cut short, or not one of ours: it is counted
            parsed = None
        reject = parsed if isinstance(parsed, dict) else {}
        reason = _kind(str(reject.get("reason", "unknown")))
        if reason not in self.reasons and len(self.reasons) >= _REASONS:
            reason = "other reasons"
        self.read += 1
        self.reasons[reason] += 1
        some = self.excerpts.setdefault(reason, [])
        if len(some) < _EXCERPTS:
            where = [f"{key} {reject[key]:,}" for key in ("line", "row", "byte") if isinstance(reject.get(key), int)]
            text = str(reject.get("excerpt", ""))[:300]
            some.append(
                {
                    "place": ", ".join([str(reject.get("source", "")), *where]),
                    "reason": str(reject.get("reason", "")),
                    "excerpt": "".join(map(visible, text)),
                }
            )


def rejects(data: Dataset) -> Rejects:
    """The rejects of a dataset by reason, the most frequent first. At most `_LINES` are read."""
    found = Rejects(data.manifest["rejected"])
    path = data.folder / data.manifest["rejects"]["name"] if "rejects" in data.manifest else None
    if path is not None and path.exists():
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(_LONG_LINE), b"")
            for line in itertools.islice(lines, _LINES):
                found.add(line)
    found.reasons = Counter(dict(found.reasons.most_common()))
    return found


def _kind(reason: str) -> str:
    """A reason without what differs from one to the next: what follows a colon, numbers, quoted names."""
    return re.sub(r"\d[\d,]*", "N", reason.partition(":")[0])[:80].strip() or "unknown"
