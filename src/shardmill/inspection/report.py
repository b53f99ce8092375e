"""The report of `inspect`: what the sources hold, what a run will take, and what would go wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.documents import STREAM_BYTES
from shardmill.inspection.estimate import (
    Amount,
    Expected,
    expected,
    output_sizes,
    table_size,
    working_seconds,
)  # fmt: skip
from shardmill.inspection.troubles import Separator, find_separators, find_troubles
from shardmill.shards import format_named

if TYPE_CHECKING:
    from shardmill.errors import BudgetError
    from shardmill.inspection.places import Findings
    from shardmill.inspection.sample import Kind
    from shardmill.options import Options
    from shardmill.run import Budget
    from shardmill.source_list import Sources
    from shardmill.tokens import Tokenizer
    from shardmill.troubles import Trouble

_STARTING = 0.5  # seconds from the command to the first chunk, and from the last chunk to the manifest
# Bytes of a token in a growing Python list of ints: 8 for the pointer, 28 for the int, and the slack.
_NAIVE = 41


@dataclass(frozen=True)
class ListedKind:
    """The sources of one format and compression."""

    format: str
    compression: str
    sources: int
    stored_bytes: int
    text_bytes: Amount
    documents: Amount
    tokens: Amount
    sampled_sources: int
    """Sources that were opened."""
    beginnings: int
    """Sources of which only the beginning was read, because they cannot be entered elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of `inspect`.

    An amount with a margin of 0 is exact. The truth is nearly always within another margin. If the margin is None, the
    error is unknown: only the beginning of a source was read, or very few places.
    """

    out: str
    """The folder or URL that the dataset is meant for."""
    staging: str
    """The folder of this machine where files are made that go to an object store; empty: `out` is a folder."""
    free_bytes: int
    """Where files are made."""
    machine_bytes: int
    memory_bytes: int
    workers: int
    sources: int
    stored_bytes: int
    tokenizer: str
    vocab_size: int
    token_bytes: int
    kinds: list[ListedKind]
    text_bytes: Amount
    documents: Amount
    """Empty and rejected ones included. A stream of text is one here, and several where val takes spans of it."""
    streams: int
    """Sources that are streams of text: without a separator, and the only source or large."""
    written: int
    """Documents that have text and are not rejected."""
    separators: list[Separator]
    skipped: dict[str, Any]
    """What was found and will not be read: counts by kind, the first names, and notes."""
    tokens: Amount
    """With the end-of-text tokens."""
    bytes_per_token: float
    output_bytes: dict[str, int]
    """By output format."""
    disk_bytes: dict[str, int]
    """By output format: what a run needs there at once."""
    seconds: float
    """That `prepare` will take at the speed of the sample times the workers, if no download is slower."""
    fetched_bytes: int
    """That will be downloaded."""
    naive_bytes: int
    """What a script needs that holds the text and collects tokens in a list."""
    sampled_places: int
    sampled_bytes: int
    sampled_seconds: float
    troubles: list[Trouble]

    @property
    def stops(self) -> bool:
        """Whether `prepare` would stop with an error."""
        return any(trouble.stops for trouble in self.troubles)

    def data(self) -> dict[str, Any]:
        """As JSON-able data."""
        return asdict(self)

    def _repr_html_(self) -> str:
        from shardmill.inspection.layout import as_html

        return as_html(self)

    def text(self, *, verbose: bool = False) -> str:
        """For people; `verbose`: with the names of what is skipped."""
        from shardmill.inspection.layout import as_text

        return as_text(self, verbose)


def make_report(
    kinds: list[Kind], findings: Findings, sources: Sources, options: Options, tokenizer: Tokenizer,
    budget: Budget | BudgetError,
    *, sampled_seconds: float, busy_workers: int, staged_bytes: int, **machine: Any,
) -> Inspection:  # fmt: skip
    """Return what a sample says of the sources, of a run on this machine, and of what would go wrong.

    `budget`: of a run, or why the memory is too small. `busy_workers`: those that have a CPU. `staged_bytes`: of
    shards in the staging folder at a time. `machine`: the first six fields of the report.
    """
    separated, eot = options.separator is not None, tokenizer.eot is not None and options.eot != "none"
    width = tokenizer.dtype.itemsize
    expects = [expected(kind, separated=separated, eot=eot) for kind in kinds]
    total = sum(expects, Expected())
    without_eot = total.tokens.value - total.written.value * eot
    tokens_alone = output_sizes(total, width, tokenizer.vocab_size, options.tokens_per_shard)
    sizes = {name: size + table_size(total) for name, size in tokens_alone.items()}
    # Shards leave the staging folder when they are complete.
    staged = {name: min(size, staged_bytes) if format_named(name).sharded else size for name, size in sizes.items()}
    fetched = round(sum(kind.column * kind.stored for kind in kinds if kind.remote))
    plain = [(kind, holds) for kind, holds in zip(kinds, expects, strict=True) if kind.format == "text"]
    streams = sum(int(np.count_nonzero(kind.sizes >= STREAM_BYTES)) for kind, _ in plain)
    plain_bytes = sum(holds.text.value for _, holds in plain)
    report = Inspection(
        **machine,
        sources=len(sources),
        stored_bytes=sources.total_bytes or 0,
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        token_bytes=width,
        kinds=[
            ListedKind(
                kind.format or "unknown", kind.compression, len(kind.members), kind.stored,
                holds.text, holds.documents, holds.tokens, len(kind.looked), sum(one.begun for one in kind.looked),
            )
            for kind, holds in zip(kinds, expects, strict=True)
        ],
        text_bytes=total.text,
        documents=total.documents,
        streams=0 if separated else len(plain) if len(sources) == 1 else streams,
        written=total.written.value,
        separators=[] if separated else find_separators(findings.excerpts, plain_bytes),
        skipped=sources.skipped.data(),
        tokens=total.tokens,
        bytes_per_token=total.text.value / without_eot if without_eot > 0 else 0.0,
        output_bytes=sizes,
        disk_bytes=staged if machine["staging"] else sizes,
        seconds=_STARTING + working_seconds(kinds, expects, busy_workers),
        fetched_bytes=fetched,
        naive_bytes=_NAIVE * total.tokens.value + total.text.value,
        sampled_places=sum(len(kind.places) for kind in kinds),
        sampled_bytes=sum(kind.encoded for kind in kinds),
        sampled_seconds=sampled_seconds,
        troubles=[],
    )  # fmt: skip
    return replace(report, troubles=find_troubles(report, kinds, findings, sources, options, budget))
