"""An estimate before a run: what the sources hold, what the run will take, and what would go wrong."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardmill import arguments
from shardmill.documents import STREAM_BYTES, Reading
from shardmill.errors import BudgetError, SourceError, UsageError
from shardmill.inspection.troubles import Separator, find_separators, find_troubles
from shardmill.options import Options
from shardmill.run import (
    SHARDS_HERE,
    Budget,
    check_memory,
    dataset_files,
    default_memory,
    settle_allocator,
    staging_folder,
    usable_cpus,
    usable_memory,
)
from shardmill.sampling import (
    Amount,
    Expected,
    Kind,
    download_speed,
    expected,
    histogram,
    looking_fetcher,
    output_sizes,
    take_sample,
)
from shardmill.shards import format_named
from shardmill.source_list import Sources
from shardmill.sources import apply_recipes, find_sources
from shardmill.storage import ROOM, is_url
from shardmill.tokens import Tokenizer, load_tokenizer
from shardmill.troubles import Trouble

_SECONDS, _REMOTE_SECONDS = 5.0, 8.0  # that a sample may take
_STARTING = 0.5  # seconds from the command to the first chunk, and from the last chunk to the manifest
_LOADING = 2  # places during which libraries are loaded: their time says nothing about the speed of a run
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


@dataclass
class Inspection:
    """The result of `inspect`. An amount with a margin of 0 is exact; other margins are 95 % confidence intervals."""

    sources: int
    stored_bytes: int
    tokenizer: str
    vocab_size: int
    token_bytes: int
    kinds: list[ListedKind] = field(default_factory=list)
    text_bytes: Amount = Amount()
    documents: Amount = Amount()
    """Empty and rejected ones included. A stream of text is one here, and several where val takes spans of it."""
    streams: int = 0
    """Sources that are streams of text: without a separator, and the only source or large."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """(bytes, documents of up to so many bytes and more than the entry before), of those that will be written."""
    separators: list[Separator] = field(default_factory=list)
    skipped: dict[str, Any] = field(default_factory=dict)
    """What was found and will not be read: counts by kind, the first names, and notes."""
    tokens: Amount = Amount()
    """With the end-of-text tokens."""
    bytes_per_token: float = 0.0
    output_bytes: dict[str, int] = field(default_factory=dict)
    """By output format."""
    out: str = "."
    """The folder or URL that the dataset is meant for."""
    staging: str = ""
    """The folder of this machine where files are made that go to an object store; empty: `out` is a folder."""
    free_bytes: int = 0
    """Where files are made."""
    disk_bytes: dict[str, int] = field(default_factory=dict)
    """By output format: what a run needs there at once."""
    memory_bytes: int = 0
    workers: int = 1
    seconds: float = 0.0
    """That `prepare` will take, at the speed of the sample."""
    bound: str = ""
    """What limits the speed: `workers`, `feeder` or `download`."""
    fetched_bytes: int = 0
    """That will be downloaded, at `fetched_per_second` as measured; 0 if that could not be measured."""
    fetched_per_second: int = 0
    naive_bytes: int = 0
    """What a script needs that holds the text and collects tokens in a list."""
    machine_bytes: int = 0
    sampled_places: int = 0
    sampled_bytes: int = 0
    sampled_seconds: float = 0.0
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def stops(self) -> bool:
        """Whether `prepare` would stop with an error."""
        return any(trouble.stops for trouble in self.troubles)

    def data(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {**asdict(self), "sizes": [{"up_to": up_to, "documents": count} for up_to, count in self.sizes]}

    def text(self, *, verbose: bool = False) -> str:
        """For people; `verbose`: with the names of what is skipped."""
        from shardmill.inspection.layout import as_text

        return as_text(self, verbose)


def inspect(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Inspection:
    """Estimate what `prepare` would find, write and need with these options. Nothing is written.

    Raise UsageError for a wrong call; problems of the sources are in `troubles`.
    """
    out = None if out is None else arguments.path("out", out)
    specs, options = apply_recipes(arguments.paths("sources", sources), Options.typed(options))
    chosen = Options.of(options)
    is_url(out or "")  # raises for one where nothing can be written
    found = find_sources(
        specs, chosen.input_format, cache=chosen.cache, out=out, owned=dataset_files,
        include=chosen.include, exclude=chosen.exclude, text_field=chosen.text_field,
    )  # fmt: skip
    if found.total_bytes is None:
        stream = next(source.name for source in found if source.size is None)
        raise UsageError("a stream can be read only once", place=stream, hint="store it in a file, and inspect that")
    tokenizer = load_tokenizer(chosen.tokenizer, pattern=chosen.pattern, specials=chosen.specials)
    tokenizer = tokenizer.with_delimiter(chosen.delimiter)
    report = Inspection(
        len(found), found.total_bytes, tokenizer.name, tokenizer.vocab_size,
        tokenizer.dtype.itemsize, out=out or ".", skipped=found.skipped.data(),
    )  # fmt: skip
    budget = _describe_machine(report, chosen, found.remote, tokenizer)
    kinds = _sample(report, chosen, found, tokenizer)
    eot = tokenizer.eot is not None and chosen.eot != "none"
    expects = [expected(kind, separated=chosen.separator is not None, eot=eot) for kind in kinds]
    _describe(report, kinds, expects, chosen, eot)
    download = report.fetched_bytes / report.fetched_per_second if report.fetched_per_second else 0.0
    report.seconds, report.bound = _seconds(kinds, expects, min(report.workers, usable_cpus()), download)
    report.troubles = find_troubles(report, kinds, found, chosen, budget)
    return report


def _describe_machine(report: Inspection, options: Options, remote: bool, tokenizer: Tokenizer) -> Budget | BudgetError:
    """Put disk, memory and workers into the report. Return the budget of a run, or why the memory is too small."""
    if is_url(report.out):
        report.staging = str(staging_folder(Path(options.cache) if options.cache else None))
    folder = Path(report.staging or report.out).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    report.free_bytes = shutil.disk_usage(folder).free
    report.machine_bytes = usable_memory()
    settle_allocator()  # as in a run, or the sample would be slower
    budget: Budget | BudgetError
    try:
        check_memory(options.memory_bytes, options.workers)
        budget = Budget(
            options.memory_bytes,
            options.workers,
            report.token_bytes,
            engine_bytes=tokenizer.engine_bytes,
            library_bytes=tokenizer.library_bytes,
            remote=remote,
            beside=ROOM if report.staging else 0,
            cuts=tokenizer.cut is not None,
        )
        report.workers = budget.workers
    except BudgetError as error:
        budget = error
        report.workers = options.workers or usable_cpus()
    report.memory_bytes = options.memory_bytes or default_memory(report.workers)
    return budget


def _sample(report: Inspection, options: Options, sources: Sources, tokenizer: Tokenizer) -> list[Kind]:
    """Take the sample; of remote sources also try the download."""
    # Where no place is known to be safe for the tokenizer, one after a space is near enough for an estimate.
    cut = tokenizer.cut or (lambda window, at: window.find(b" ", at) + 1 or -1)
    started = time.monotonic()
    with looking_fetcher() as fetcher:
        reading = Reading(
            options.text_field, options.separator_bytes, cut, fetcher=fetcher if sources.remote else None
        )  # fmt: skip
        seconds = _REMOTE_SECONDS if sources.remote else _SECONDS
        kinds = take_sample(sources, reading, tokenizer.engine(), seconds=seconds)
        report.sampled_seconds = time.monotonic() - started
        if sources.remote:
            report.fetched_bytes = round(sum(kind.column * kind.stored for kind in kinds if kind.remote))
            try:
                report.fetched_per_second = round(download_speed(sources, fetcher))
            except SourceError as error:
                kinds[0].looked[0].error = error
    report.sampled_places = sum(len(kind.places) for kind in kinds)
    report.sampled_bytes = sum(place.encoded for kind in kinds for place in kind.places)
    return kinds


def _seconds(kinds: list[Kind], expects: list[Expected], workers: int, download: float) -> tuple[float, str]:
    """The time of a run at the speed of the sample, times the workers that have a CPU; and what limits it.

    The one thread that finds and decompresses the text may be slower than the workers, and the download than both.
    """
    feeding = working = 0.0
    for kind, holds in zip(kinds, expects, strict=True):
        places = kind.places[_LOADING:] or kind.places
        share = holds.text.value / max(1, sum(place.text for place in places))
        feeding += share * sum(place.feeding for place in places)
        encoding = sum(place.encoding / max(1, place.encoded) * place.text for place in places)
        working += share * (sum(place.reading for place in places) + encoding)
    ways = {"download": download, "feeder": feeding, "workers": (feeding + working) / workers}
    bound = max(ways, key=ways.__getitem__)
    return _STARTING + ways[bound], bound


def _describe(report: Inspection, kinds: list[Kind], expects: list[Expected], options: Options, eot: bool) -> None:
    """Put into the report what the kinds hold, and the size of the output."""
    separated = options.separator is not None
    report.kinds = [
        ListedKind(kind.format or "unknown", kind.compression, len(kind.members), kind.stored,
                   holds.text, holds.documents, holds.tokens)
        for kind, holds in zip(kinds, expects, strict=True)
    ]  # fmt: skip
    total = sum(expects, Expected())
    report.text_bytes, report.documents, report.tokens = total.text, total.documents, total.tokens
    without_eot = total.tokens.value - total.written.value * eot
    report.bytes_per_token = total.text.value / without_eot if without_eot > 0 else 0.0
    report.naive_bytes = _NAIVE * total.tokens.value + total.text.value
    found = [histogram(kind, holds, separated=separated) for kind, holds in zip(kinds, expects, strict=True)]
    sizes = np.sum(found, axis=0)
    if len(full := np.flatnonzero(sizes)):
        report.sizes = [(4**i, int(sizes[i])) for i in range(int(full[0]), int(full[-1]) + 1)]
    if not separated:
        large = sum(int(np.count_nonzero(kind.sizes >= STREAM_BYTES)) for kind in kinds if kind.format == "text")
        report.streams = 1 if report.sources == 1 and kinds[0].format == "text" else large
        text = sum(one.text_bytes.value for one in report.kinds if one.format == "text")
        texts = [source for kind in kinds if kind.format == "text" for source in kind.looked]
        report.separators = find_separators([excerpt for source in texts for excerpt in source.excerpts], text)
    report.output_bytes = output_sizes(total, report.token_bytes, report.vocab_size, options.tokens_per_shard)
    report.disk_bytes = report.output_bytes
    if report.staging:  # files leave it when they are whole
        most = SHARDS_HERE * options.tokens_per_shard * report.token_bytes
        report.disk_bytes = {
            name: min(size, most) if format_named(name).sharded else size for name, size in report.output_bytes.items()
        }
