"""What would go wrong in a run, as far as a sample shows it, and separators that were found in text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from shardmill.errors import BudgetError
from shardmill.sampling import NO_TEXT
from shardmill.shards import FORMATS, early_warnings, format_named
from shardmill.storage import LARGEST_OBJECT
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from shardmill.inspection.inspection import Inspection
    from shardmill.options import Options
    from shardmill.run import Budget
    from shardmill.sampling import Kind
    from shardmill.storage import Source

_SHOWN = 3
_FEWEST_BAD = 100  # bad documents, up to which no share of them stops a run
# The option, its bytes, what it is, and whether it certainly separates documents: blank lines also separate
# paragraphs. The best come first.
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
_RARE = 1 << 20  # bytes from one separator to the next, from which on it separates nothing
_LONG_LINE = 400  # average bytes of a line from which on a line looks like a document
_LARGE = 1_000_000  # average bytes of a text file from which on blank lines may well separate documents


@dataclass(frozen=True)
class Trouble:
    """Something that would go wrong, with a hint."""

    what: str
    """For programs: source, empty, rejects, utf8, binary, separator, reader, vocabulary, disk or memory."""
    message: str
    place: str | None = None
    hint: str | None = None
    stops: bool = False
    """Whether `prepare` would end with an error."""


def find_troubles(
    report: Inspection, kinds: list[Kind], sources: Sequence[Source], options: Options, budget: Budget | BudgetError
) -> list[Trouble]:
    """Return all troubles; those that stop a run come first."""
    found = [
        *_damaged(kinds),
        *_rejects(report, kinds, options),
        *_disk(report),
        *_memory(kinds, budget),
        *_binary(kinds),
        *_empty(report, sources),
        *_invalid(kinds),
        *_separator(report, kinds, options),
        *[Trouble("reader", sentence) for sentence in early_warnings(options.format)],
        *_vocabulary(report),
    ]
    return sorted(found, key=lambda trouble: not trouble.stops)


def _damaged(kinds: list[Kind]) -> Iterator[Trouble]:
    """One trouble for each different error, with its first place."""
    errors = [one.error for kind in kinds for one in kind.looked if one.error is not None]
    for message, count in Counter(error.message for error in errors).most_common(_SHOWN):
        first = next(error for error in errors if error.message == message)
        yield Trouble("source", message + _more(count), first.place, first.hint, stops=True)


def _more(count: int) -> str:
    return f" (and {count - 1:,} more of the sources that were looked into)" if count > 1 else ""


def _memory(kinds: list[Kind], budget: Budget | BudgetError) -> Iterator[Trouble]:
    """Too little memory for any run, or for a record of the sample."""
    if isinstance(budget, BudgetError):
        yield Trouble("memory", budget.message, None, budget.hint, stops=True)
        return
    found = [(one.too_large, one.format != "jsonl") for kind in kinds for one in kind.looked]
    (size, place, hint), row = max(found, default=((0, "", ""), False))
    said = f"a record of {'more than ' if hint else ''}{size:,} bytes is larger than the memory allows"
    if hint:
        yield Trouble("source", said, place, hint, stops=True)
    elif size > max(budget.largest, budget.largest_row) if row else size > budget.largest and not budget.largest_row:
        error = budget.too_small(said, size, place, row=row)
        yield Trouble("memory", error.message, error.place, error.hint, stops=True)


def _binary(kinds: list[Kind]) -> Iterator[Trouble]:
    """Sources of text that hold control characters which no text has."""
    odd = {one.source.name: one.controls for kind in kinds for one in kind.looked if one.controls > NO_TEXT}
    if odd:
        first = max(odd, key=odd.__getitem__)
        said = f"a source is not text: {_percent(odd[first])} of its sampled bytes are NUL or other control characters"
        yield Trouble("binary", said + _more(len(odd)), first, "leave it out, or is the download complete?")


def _rejects(report: Inspection, kinds: list[Kind], options: Options) -> Iterator[Trouble]:
    places = [place for kind in kinds for place in kind.places]
    if not any(place.rejected for place in places):
        return
    # The number of places of a kind is its share of the bytes, so all places count alike.
    bad = sum(place.rejected * place.weight for place in places)
    share = min(1.0, bad / max(1e-9, bad, sum(place.begun * place.weight for place in places)))
    reasons = sum((kind.reasons for kind in kinds), Counter[str]()).most_common(_SHOWN)
    listed = "; ".join(f"{reason} ({count:,})" for reason, count in reasons)
    allowed, documents = options.bad_allowed, report.documents.value
    if isinstance(allowed, float):
        allowed = max(_FEWEST_BAD, allowed * documents)
    stops = allowed is not None and share * documents > allowed
    hint = "they will be set aside in `rejects.jsonl`"
    if stops:
        hint = f"add `--max-bad {_above(share)}` to set them aside in `rejects.jsonl`"
    yield Trouble("rejects", f"{_percent(share)} of the documents in the sample are bad: {listed}", None, hint, stops)


def _disk(report: Inspection) -> Iterator[Trouble]:
    large = {name: size for name, size in report.disk_bytes.items() if size > report.free_bytes}
    if large:
        which = "" if len(large) == len(report.disk_bytes) else f" as {', '.join(large)}"
        said = f"the output{which} does not fit on the disk: it takes about {show_bytes(min(large.values()))}"
        hint = "choose another folder with `-o`, or prepare a part of it with `--limit`"
        if report.staging:
            said += " there until it is in the store"
            hint = "choose another folder with `--cache`, or smaller files with `--shard-tokens`"
            if which:
                hint = "a format with shards needs little space there, such as `-f shards`"
        said += f", and {show_bytes(report.free_bytes)} are free"
        yield Trouble("disk", said, report.staging or report.out, hint, stops=not which)
    whole = [name for name in FORMATS if not format_named(name).sharded]
    if large_objects := [
        name for name in whole if report.staging and report.output_bytes.get(name, 0) > LARGEST_OBJECT
    ]:
        said = f"as {', '.join(large_objects)} the tokens are one object, and one may have {show_bytes(LARGEST_OBJECT)}"
        yield Trouble("disk", said, report.out, "choose a format with shards, such as `-f shards`")


def _empty(report: Inspection, sources: Sequence[Source]) -> Iterator[Trouble]:
    names = (source.name for source in sources if not source.size)
    first = list(islice(names, _SHOWN))
    more = sum(1 for _ in names)
    if first:
        shown = ", ".join(first) + (f" and {more:,} more" if more else "")
        count = len(first) + more
        said = f"{count:,} sources are empty" if count > 1 else "a source is empty"
        yield Trouble("empty", said if count < report.sources else "all sources are empty", shown)


def _invalid(kinds: list[Kind]) -> Iterator[Trouble]:
    replaced, text = sum(kind.replaced for kind in kinds), sum(place.text for kind in kinds for place in kind.places)
    if replaced:
        share = replaced / max(1, text)
        places = "place" if replaced == 1 else "places"
        said = f"{replaced:,} {places} in {show_bytes(text)} of sampled text ({_percent(share)}) are not UTF-8"
        hint = "each becomes U+FFFD"
        if share > 0.001:
            hint += "; if the text is in another encoding, convert it first: `iconv -f latin1 -t utf-8`"
        yield Trouble("utf8", said, None, hint)


def _separator(report: Inspection, kinds: list[Kind], options: Options) -> Iterator[Trouble]:
    texts = [kind for kind in kinds if kind.format == "text" and kind.stored]
    if texts and options.separator is not None:
        if not any(sum(place.begun for place in kind.places) > len(kind.looked) for kind in texts):
            said = f"the separator `{options.separator}` was not found in the sampled text"
            yield Trouble("separator", said, None, "without one, a file is a document")
    elif texts:
        average = sum(kind.stored for kind in texts) / sum(len(kind.members) for kind in texts)
        first = next((one for one in report.separators if one.certain or average > _LARGE), None)
        if first is not None:
            said = f"without `--separator` a text file is one document; `{first.separator}` stands in it"
            hint = f"add `--separator '{first.separator}'` if it separates documents"
            yield Trouble("separator", f"{said} ({first.meaning})", None, hint)


def _vocabulary(report: Inspection) -> Iterator[Trouble]:
    if report.token_bytes > 2:
        yield Trouble(
            "vocabulary",
            f"the {report.vocab_size:,} tokens of `{report.tokenizer}` do not fit in uint16: a token takes "
            f"{report.token_bytes} bytes, and nanoGPT reads uint16 unless you change it",
        )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def _above(share: float) -> str:
    """A round share that is larger than this one, for `--max-bad`."""
    step = 0.001
    while step < share * 1.2 and step < 1:
        step *= 10**0.5
    return "any" if step >= 0.5 else f"{100 * step:.2g}%"


@dataclass(frozen=True)
class Separator:
    """A text that may separate documents."""

    separator: str
    """As `--separator` takes it."""
    meaning: str
    documents: int
    """About how many documents it would make of all text."""
    apart: int
    """Bytes from one to the next."""
    certain: bool
    """It does not occur in ordinary text."""


def find_separators(excerpts: list[bytes], text_bytes: int) -> list[Separator]:
    """Return the separators in excerpts of a text of so many bytes, the most likely first."""
    seen = sum(map(len, excerpts))
    if not seen:
        return []
    found: list[Separator] = []
    for option, raw, meaning, certain in _KNOWN:
        counts = [excerpt.count(raw) for excerpt in excerpts]
        count = sum(counts)
        # A text that only some excerpts contain separates nothing.
        if not count or seen / count > _RARE or (not certain and 2 * counts.count(0) > len(counts)):
            continue
        # With blank lines between them, lines are paragraphs.
        if raw == b"\n" and (seen / count < _LONG_LINE or any(not one.certain for one in found)):
            continue
        found.append(Separator(option, meaning, max(1, round(count / seen * text_bytes)), seen // count, certain))
    return found
