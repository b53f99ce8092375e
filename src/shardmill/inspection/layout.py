"""An inspection as text for people, in lines of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from shardmill.source_list import Skipped
from shardmill.units import plural, show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from shardmill.inspection.estimate import Amount
    from shardmill.inspection.report import Inspection, ListedKind

_WIDTH, _LABEL = 80, 12  # columns
_KINDS = 12  # kinds of sources that are listed
_LONGEST = 1000  # characters of a sentence


def as_text(report: Inspection, verbose: bool) -> str:
    lines: list[str] = []
    for label, *said in _sections(report, verbose):
        for line in said:
            lines += textwrap.wrap(
                line, _WIDTH, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL,
                break_on_hyphens=False, replace_whitespace=False,
            ) or [label]  # fmt: skip
            label = ""
    return "\n".join(lines).replace("\xa0", " ")


def as_html(report: Inspection) -> str:
    """A table of the sources, and below it the rest, for a notebook."""
    head = "".join(f"<th>{name}</th>" for name in ("format", "sources", "stored", "text", "documents", "tokens"))
    rows = [_cells(_name(kind), kind) for kind in report.kinds[:_KINDS]]
    rows += [_cells("all", report)] if len(report.kinds) > 1 else []
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    lines = [
        f"<b>{escape(label)}</b> {escape(_printable(' · '.join(said)))}"
        for label, *said in _sections(report, verbose=False)
        if label not in ("sources", "tokens", "output")
    ]
    caption = f"<caption><b>{escape(f'{report.out} · {report.tokenizer}')}</b></caption>"
    table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"{table}<p>{'<br>'.join(lines)}</p>"


def _cells(name: str, of: ListedKind | Inspection) -> tuple[str, ...]:
    text = show_bytes(of.text_bytes.value)
    return name, f"{of.sources:,}", show_bytes(of.stored_bytes), text, _amount(of.documents), _amount(of.tokens)


def _sections(report: Inspection, verbose: bool) -> Iterator[tuple[str, ...]]:
    """Yield a label, and the lines beside and below it."""
    yield "sources", *_kinds(report)
    if skipped := list(Skipped.of(report.skipped).lines(names=verbose)):
        yield "skipped", *map(_printable, skipped)
    if report.documents.value:
        yield "documents", *_documents(report)
    if report.separators:
        yield "separators", *_separators(report)
    if report.tokens.value:
        counted = f"{_amount(report.tokens)} with {report.tokenizer}, end-of-text tokens included"
        yield "tokens", counted, f"{report.bytes_per_token:.2f} bytes per token"
        sizes = [f"{name} {show_bytes(size)}" for name, size in report.output_bytes.items()]
        yield "output", "   ".join(size.replace(" ", "\xa0") for size in sizes)  # a name stays with its size
    made = f", where files are made for {report.out}" if report.staging else ""
    yield "disk", f"{show_bytes(report.free_bytes)} free in {report.staging or report.out}{made}"
    yield "memory", f"at most {show_bytes(report.memory_bytes)}, with {plural(report.workers, 'worker')}"
    if report.tokens.value:
        yield "time", *_time(report)
        naive = f"a script that collects tokens in a list would need about {show_bytes(report.naive_bytes)} of RAM"
        yield "naive", f"{naive}; this machine has {show_bytes(report.machine_bytes)}"
    yield "sample", *_sample(report)
    for trouble in report.troubles:
        said = [trouble.message]
        said += [f"place: {trouble.place}"] if trouble.place else []
        said += [f"hint:  {trouble.hint}"] if trouble.hint else []
        yield "would stop:" if trouble.stops else "warning:", *map(_printable, said)


def _printable(line: str) -> str:
    """Write out control characters and cut what is too long: field names may come from a file that is not text."""
    shown = line if len(line) <= _LONGEST else line[:_LONGEST] + " …"
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in shown)


def _time(report: Inspection) -> Iterator[str]:
    rate = show_bytes(report.stored_bytes / report.seconds)
    yield f"about {show_seconds(report.seconds)} ({rate}/s) for the workers, on an idle machine"
    if report.fetched_bytes:
        yield f"{show_bytes(report.fetched_bytes)} to download, which may take longer"


def _sample(report: Inspection) -> Iterator[str]:
    sampled = f"{show_bytes(report.sampled_bytes)} of text, {show_seconds(report.sampled_seconds)}"
    margins = "; ± is three standard errors" if report.tokens.margin else ""
    yield f"{plural(report.sampled_places, 'place')}, {sampled}{margins}"
    for kind in report.kinds:
        if kind.beginnings:
            opened = f"{kind.beginnings:,} of {plural(kind.sources, 'source')}"
            yield f"{_name(kind)}: only the beginning of {opened}; the rest may differ"


def _name(kind: ListedKind) -> str:
    return kind.format + (f" ({kind.compression})" if kind.compression else "")


def _kinds(report: Inspection) -> Iterator[str]:
    yield _row("format", "sources", "stored", "text", "documents")
    for kind in report.kinds[:_KINDS]:
        yield _amounts(_name(kind), kind)
    if len(report.kinds) > _KINDS:
        yield f"and {len(report.kinds) - _KINDS} kinds more"
    if len(report.kinds) > 1:
        yield _amounts("all", report)


def _amounts(name: str, of: ListedKind | Inspection) -> str:
    return _row(*_cells(name, of)[:5])


def _row(name: str, sources: str, stored: str, text: str, documents: str) -> str:
    return f"{name:<15}{sources:>10}{stored:>10}{text:>10}   {documents}"


def _documents(report: Inspection) -> Iterator[str]:
    if not report.written:
        yield "none that has text"
        return
    yield f"{show_bytes(report.text_bytes.value / report.written)} each on average"
    if report.streams:
        streams = "it is" if report.streams == report.sources == 1 else f"{report.streams:,} of the sources are"
        what = "a stream" if streams == "it is" else "streams"
        yield f"{streams} {what} of text: val takes spans of 64 KiB, and each stretch in one split is a document there"


def _separators(report: Inspection) -> Iterator[str]:
    for one in report.separators:
        made = f"about {show_count(one.documents)} documents of {show_bytes(one.apart)}: {one.meaning}"
        option = f"--separator '{one.separator}'"
        yield f"{option:<30}{made}"


def _amount(amount: Amount) -> str:
    """Exact numbers in full, estimates with three digits and their margin, if that is known."""
    if amount.exact:
        return f"{amount.value:,}"
    if amount.margin is None:
        return f"about {show_count(amount.value)}"
    percent = max(0.01, 100 * amount.margin / max(1, amount.value))
    return f"{show_count(amount.value)} ± {f'{percent:.2g}' if percent < 100 else f'{percent:,.0f}'} %"
