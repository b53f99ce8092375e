"""The plots of a report."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardmill.reporting.plots import Axis, Plot, Series, bars, lines
from shardmill.reporting.survey import PER_OCTAVE, POSITIONS, RATIO_BIN, SplitSurvey
from shardmill.units import show_bytes, show_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.write import Manifest, SourceEntry

FEWEST_DOCUMENTS = 30  # of a split whose lengths are plotted
FEWEST_TOKENS = 10_000  # of a split whose tokens are plotted
_SOURCES = 12
_RANKS = 120


def figures(splits: Sequence[SplitSurvey], vocab_size: int) -> list[Plot]:
    """The plots of what was found in the splits; none where there are no tokens."""
    splits = [found for found in splits if found.tokens_read]
    if not splits:
        return []
    separated = [found for found in splits if found.separated and found.documents_read >= FEWEST_DOCUMENTS]
    by_document = [_lengths(separated), _ratios(separated)] if separated else []
    long = [found for found in splits if found.tokens_read >= FEWEST_TOKENS]
    by_token = [_by_position(long), _zipf(long), _vocabulary(long, vocab_size)] if long else []
    return [plot for plot in [*by_document, *by_token] if plot is not None]


def _shares(found: SplitSurvey, counts: NDArray[np.int64], x: Callable[[int], float]) -> Series:
    """A histogram as a line: the share of all documents in each bin, from just before the first bin that has any."""
    used = np.flatnonzero(counts)
    bins = range(max(0, int(used[0]) - 1), min(len(counts), int(used[-1]) + 2))
    return Series(found.name, [(x(i), 100 * int(counts[i]) / found.documents_read) for i in bins], filled=True)


def _lengths(splits: Sequence[SplitSurvey]) -> Plot:
    series = [_shares(found, found.octaves(), lambda i: 2 ** (i / PER_OCTAVE)) for found in splits]
    medians = "; ".join(
        f"{found.name} {found.quantile(0.5):,}, 95th percentile {found.quantile(0.95):,}" for found in splits
    )
    x = Axis("tokens in a document", log=True)
    return lines("Document length", f"Median tokens: {medians}.", series, x, Axis("% of documents", show=_short))


def _ratios(splits: Sequence[SplitSurvey]) -> Plot:
    series = [_shares(found, found.ratios, lambda i: (i + 0.5) * RATIO_BIN) for found in splits]
    least = min(point[0] for line in series for point in line.points)
    x = Axis("bytes per token of a document", show=_short, least=math.floor(least))
    note = "Left: text that the tokenizer splits into many short tokens. Right: text it knows well, or repetition."
    return lines("Bytes per token", note, series, x, Axis("% of documents", show=_short))


def _by_position(splits: Sequence[SplitSurvey]) -> Plot | None:
    series = []
    for found in splits:
        tokens, text = found.by_position
        points = [((i + 0.5) * 100 / POSITIONS, int(text[i]) / int(tokens[i])) for i in range(POSITIONS) if tokens[i]]
        if len(points) > 1:
            series.append(Series(found.name, points))
    if not series:
        return None
    note = "A step means that the text changes there, for example to another source or language."
    x = Axis("position in the split, %", show=_short)
    return lines("Bytes per token by position", note, series, x, Axis("bytes per token", show=_short))


def _zipf(splits: Sequence[SplitSurvey]) -> Plot:
    series = []
    for found in splits:
        counts = np.sort(found.counts[found.counts > 0])[::-1]
        if len(counts):
            ranks = np.unique(np.geomspace(1, len(counts), _RANKS).astype(np.int64))
            series.append(Series(found.name, [(float(rank), float(counts[rank - 1])) for rank in ranks]))
    note = "How often each token occurs, from the most to the least frequent. Natural text is close to a straight line."
    x, y = Axis("rank of the token", log=True), Axis("occurrences", log=True, least=1)
    return lines("Token frequency by rank", note, series, x, y)


def _vocabulary(splits: Sequence[SplitSurvey], vocab_size: int) -> Plot:
    rows = [
        (f"{least:,}+ times" if least > 1 else "at least once", [int((one.counts >= least).sum()) for one in splits])
        for least in (1, 10, 100, 1000, 10_000, 100_000)
    ]
    used = rows[0][1][0]
    share = f" ({used / vocab_size:.1%} of {vocab_size:,})" if vocab_size else ""
    note = f"{splits[0].name} uses {used:,} different tokens{share}."
    return bars("Vocabulary used", note, rows, [found.name for found in splits], "{:,.0f}".format)


def sources(manifest: Manifest) -> tuple[list[SourceEntry], Plot | None]:
    """The largest sources, and a plot of them."""
    count = len(manifest["sources"])
    exact = count > 0 and "tokens" in manifest["sources"][0]
    key, show = ("tokens", show_count) if exact else ("bytes", show_bytes)

    def size(source: SourceEntry) -> int:
        return (source.get("tokens") if exact else source["bytes"]) or 0

    largest = heapq.nlargest(_SOURCES, manifest["sources"], key=size)
    if not any(map(size, largest)) or count == 1:
        return largest, None
    note = "Without end-of-text tokens." if exact else "Stored bytes of each source; tokens by source are not recorded."
    note += f" The {_SOURCES} largest of {count:,}." if count > _SOURCES else ""
    title = "Tokens per source" if exact else "Bytes per source"
    return largest, bars(title, note, [(str(source["name"]), [size(source)]) for source in largest], [key], show)


def _short(value: float) -> str:
    return f"{value:.3g}"
