"""What would go wrong in a run, as far as a sample shows it, and separators that were found in text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from shardmill.core import ODD_KINDS
from shardmill.errors import BudgetError, SourceError
from shardmill.shards import FORMATS, early_warnings, format_named
from shardmill.storage import LARGEST_OBJECT
from shardmill.troubles import (
    FEWEST_BAD,
    NAMES_SHOWN,
    RARE,
    SEPARATORS,
    Trouble,
    empty_sources,
    invalid_utf8,
    not_text,
    percent,
    separator_not_found,
    special_tokens,
)
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from shardmill.inspection.places import Findings
    from shardmill.inspection.report import Inspection
    from shardmill.inspection.sample import Kind
    from shardmill.options import Options
    from shardmill.run import Budget
    from shardmill.storage import Source

_LONG_LINE = 400  # average bytes of a line from which on a line looks like a document


def find_troubles(
    report: Inspection, kinds: list[Kind], findings: Findings, sources: Sequence[Source], options: Options,
    budget: Budget | BudgetError,
) -> list[Trouble]:  # fmt: skip
    """Return all troubles; those that stop a run come first."""
    found = [
        *_damaged(findings.errors),
        *_rejects(report, kinds, findings, options),
        *_disk(report),
        *_memory(findings, budget),
        *_binary(findings.controls),
        *_empty(report, sources),
        *_invalid(report, findings.replaced, options),
        *_separator(report, kinds, options),
        *[Trouble("sources", sentence) for sentence in report.skipped.get("warnings", ())],
        *_tokens(kinds, findings, options),
        *[Trouble("reader", sentence) for sentence in early_warnings(options.format)],
        *_vocabulary(report),
    ]
    return sorted(found, key=lambda trouble: not trouble.stops)


def _damaged(errors: list[SourceError]) -> Iterator[Trouble]:
    """One trouble for each different error, with its first place."""
    for message, count in Counter(error.message for error in errors).most_common(NAMES_SHOWN):
        first = next(error for error in errors if error.message == message)
        more = f" (and {count - 1:,} more of the sources that were looked into)" if count > 1 else ""
        yield Trouble("source", message + more, first.place, first.hint, stops=True)


def _memory(findings: Findings, budget: Budget | BudgetError) -> Iterator[Trouble]:
    """Too little memory for any run, or for a record of the sample."""
    if isinstance(budget, BudgetError):
        yield Trouble("memory", budget.message, None, budget.hint, stops=True)
        return
    size, place, hint = findings.largest
    said = f"a record of {'more than ' if hint else ''}{size:,} bytes is larger than the memory allows"
    if hint:
        yield Trouble("source", said, place, hint, stops=True)
    elif size > max(budget.largest, budget.largest_row):
        error = budget.too_small(said, size, place, row=True)
        yield Trouble("memory", error.message, error.place, error.hint, stops=True)


def _binary(controls: dict[str, float]) -> Iterator[Trouble]:
    """Sources of text that hold control characters which no text has."""
    if controls:
        worst = sorted(controls, key=controls.__getitem__, reverse=True)
        yield not_text(worst, len(controls), f"up to {percent(controls[worst[0]])} of the sampled bytes are")


def _rejects(report: Inspection, kinds: list[Kind], findings: Findings, options: Options) -> Iterator[Trouble]:
    places = [place for kind in kinds for place in kind.places]
    if not any(place.rejected for place in places):
        return
    bad = sum(place.rejected * place.weight for place in places)
    share = min(1.0, bad / max(1e-9, bad, sum(place.documents * place.weight for place in places)))
    reasons = findings.reasons.most_common(NAMES_SHOWN)
    listed = "; ".join(f"{reason} ({count:,})" for reason, count in reasons)
    allowed, documents = options.bad_allowed, report.documents.value
    if isinstance(allowed, float):
        allowed = max(FEWEST_BAD, allowed * documents)
    stops = allowed is not None and share * documents > allowed
    hint = "they will be set aside in `rejects.jsonl`"
    if stops:
        hint = f"add `--max-bad {_above(share)}` to set them aside in `rejects.jsonl`"
    yield Trouble("rejects", f"{percent(share)} of the documents in the sample are bad: {listed}", None, hint, stops)


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
    if first := list(islice(names, NAMES_SHOWN)):
        yield empty_sources(first, len(first) + sum(1 for _ in names), report.sources)


def _invalid(report: Inspection, replaced: int, options: Options) -> Iterator[Trouble]:
    if replaced:
        text = report.sampled_bytes
        all_text, allowed = report.text_bytes.value, options.bad_allowed
        most = max(FEWEST_BAD, allowed * all_text) if isinstance(allowed, float) else allowed
        stops = most is not None and replaced / max(1, text) * all_text > most
        yield replace(invalid_utf8(replaced, text, sampled=True), stops=stops)


def _separator(report: Inspection, kinds: list[Kind], options: Options) -> Iterator[Trouble]:
    texts = [kind for kind in kinds if kind.format == "text" and kind.stored]
    if texts and options.separator is not None:
        if not any(sum(place.documents for place in kind.places) > len(kind.looked) for kind in texts):
            yield separator_not_found(options.separator, sampled=True)
    elif texts and (first := next((one for one in report.separators if one.certain), None)):
        yield special_tokens(first.separator, first.found, None, plain=True, sampled=True)


def _tokens(kinds: list[Kind], findings: Findings, options: Options) -> Iterator[Trouble]:
    """Special tokens in the text of records."""
    odd, text = findings.odd, sum(kind.encoded for kind in kinds if kind.format != "text")
    for token in ODD_KINDS[1:] if options.specials == "text" else ():
        if odd[token] and text / odd[token] <= RARE:
            yield special_tokens(token, odd[token], None, plain=False, sampled=True)


def _vocabulary(report: Inspection) -> Iterator[Trouble]:
    if report.token_bytes > 2:
        yield Trouble(
            "vocabulary",
            f"the {report.vocab_size:,} tokens of `{report.tokenizer}` do not fit in uint16: a token takes "
            f"{report.token_bytes} bytes, and nanoGPT reads uint16 unless you change it",
        )


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
    found: int
    """In the sample."""


def find_separators(excerpts: list[bytes], text_bytes: int) -> list[Separator]:
    """Return the separators in excerpts of a text of so many bytes, the most likely first."""
    seen = sum(map(len, excerpts))
    if not seen:
        return []
    found: list[Separator] = []
    for option, raw, meaning, certain in SEPARATORS:
        counts = [excerpt.count(raw) for excerpt in excerpts]
        count = sum(counts)
        # A text that only some excerpts contain separates nothing.
        if not count or seen / count > RARE or (not certain and 2 * counts.count(0) > len(counts)):
            continue
        # With blank lines between them, lines are paragraphs.
        if raw == b"\n" and (seen / count < _LONG_LINE or any(not one.certain for one in found)):
            continue
        found.append(
            Separator(option, meaning, max(1, round(count / seen * text_bytes)), seen // count, certain, count)
        )
    return found
