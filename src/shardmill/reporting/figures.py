"""The plots of a report: what was found in one or two datasets, as figures."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.reporting.plots import Axis, Plot, Series, bars, lines
from shardmill.reporting.survey import PER_OCTAVE, POSITIONS, RATIO_BIN, SplitSurvey
from shardmill.units import show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SOURCES = 12
_RANKS = 120
_POINTS = 160

NamedSurveys = Sequence[tuple[str, SplitSurvey]]
"""What is drawn side by side: splits of one dataset, or two datasets, by their names."""


def figures(named: NamedSurveys, vocab_size: int) -> list[Plot]:
    """The plots of what was found in some splits; none where there are no tokens."""
    named = [(name, found) for name, found in named if found.tokens_read]
    if not named:
        return []
    separated = [(name, found) for name, found in named if found.separated and found.documents_read]
    by_document = [_lengths(separated), _ratios(separated)] if separated else []
    plots = [*by_document, _by_position(named), _zipf(named), _vocabulary(named, vocab_size)]
    return [plot for plot in plots if plot is not None]


def _shares(name: str, documents: int, counts: NDArray[np.int64], x: Callable[[int], float]) -> Series:
    """A histogram as a line: the share of all documents in each bin, from just before the first bin that has any."""
    used = np.flatnonzero(counts)
    bins = range(max(0, int(used[0]) - 1), min(len(counts), int(used[-1]) + 2))
    return Series(name, [(x(i), 100 * int(counts[i]) / documents) for i in bins], filled=True)


def _lengths(named: NamedSurveys) -> Plot:
    series = [
        _shares(name, found.documents_read, found.octaves(), lambda i: 2 ** (i / PER_OCTAVE)) for name, found in named
    ]
    medians = "; ".join(
        f"{name} {found.quantile(0.5):,}, 95th percentile {found.quantile(0.95):,}" for name, found in named
    )
    x = Axis("tokens in a document", log=True)
    return lines("Document length", f"Median tokens: {medians}.", series, x, Axis("% of documents", show=_short))


def _ratios(named: NamedSurveys) -> Plot:
    series = [
        _shares(name, found.documents_read, found.ratios, lambda i: (i + 0.5) * RATIO_BIN) for name, found in named
    ]
    least = min(point[0] for line in series for point in line.points)
    x = Axis("bytes per token of a document", show=_short, least=math.floor(least))
    note = "Left: text that the tokenizer splits into many short tokens. Right: text it knows well, or repetition."
    return lines("Bytes per token", note, series, x, Axis("% of documents", show=_short))


def _by_position(named: NamedSurveys) -> Plot | None:
    series = []
    for name, found in named:
        tokens, text = found.by_position
        points = [((i + 0.5) * 100 / POSITIONS, int(text[i]) / int(tokens[i])) for i in range(POSITIONS) if tokens[i]]
        if len(points) > 1:
            series.append(Series(name, points))
    if not series:
        return None
    note = "A step means that the text changes there, for example to another source or language."
    x = Axis("position in the split, %", show=_short)
    return lines("Bytes per token by position", note, series, x, Axis("bytes per token", show=_short))


def _zipf(named: NamedSurveys) -> Plot:
    series = []
    for name, found in named:
        counts = np.sort(found.counts[found.counts > 0])[::-1]
        if len(counts):
            ranks = np.unique(np.geomspace(1, len(counts), _RANKS).astype(np.int64))
            series.append(Series(name, [(float(rank), float(counts[rank - 1])) for rank in ranks]))
    note = "How often each token occurs, from the most to the least frequent. Natural text is close to a straight line."
    x, y = Axis("rank of the token", log=True), Axis("occurrences", log=True, least=1)
    return lines("Token frequency by rank", note, series, x, y)


def _vocabulary(named: NamedSurveys, vocab_size: int) -> Plot:
    rows = [
        (f"{least:,}+ times" if least > 1 else "at least once", [int((one.counts >= least).sum()) for _, one in named])
        for least in (1, 10, 100, 1000, 10_000, 100_000)
    ]
    used = rows[0][1][0]
    share = f" ({used / vocab_size:.1%} of {vocab_size:,})" if vocab_size else ""
    note = f"{named[0][0]} uses {used:,} different tokens{share}."
    return bars("Vocabulary used", note, rows, [name for name, _ in named], "{:,.0f}".format)


def sources(manifest: dict[str, Any]) -> tuple[list[dict[str, Any]], Plot | None]:
    """The largest sources, and a plot of them."""
    count = len(manifest["sources"])
    exact = count > 0 and "tokens" in manifest["sources"][0]
    key, show = ("tokens", show_count) if exact else ("bytes", show_bytes)

    def size(source: dict[str, Any]) -> int:
        return int(source.get(key) or 0)

    largest = heapq.nlargest(_SOURCES, manifest["sources"], key=size)
    if not any(map(size, largest)):
        return largest, None
    note = "Without end-of-text tokens." if exact else "Stored bytes of each source; tokens by source are not recorded."
    note += f" The {_SOURCES} largest of {count:,}." if count > _SOURCES else ""
    title = "Tokens per source" if exact else "Bytes per source"
    return largest, bars(title, note, [(str(source["name"]), [size(source)]) for source in largest], [key], show)


def run_figures(attempts: list[dict[str, Any]]) -> list[Plot]:
    """How the run went: speed and memory over time. The time between two attempts is left out."""
    if not any(len(attempt["points"]) > 2 for attempt in attempts):
        return []
    text, tokens, memory, budget = (list[tuple[float, float]]() for _ in range(4))
    marks: list[tuple[float, float, str]] = []
    before = 0.0
    for number, attempt in enumerate(attempts):
        points = np.array(attempt["points"], np.float64)
        most = max(2, min(len(points), _POINTS // len(attempts)))
        points = points[np.linspace(0, len(points) - 1, most).astype(np.int64)]
        at = points[:, 0] + before
        if number:
            marks.append((before, before, f"resumed after {show_seconds(before)}"))
        step = np.diff(points, axis=0)
        seconds = np.maximum(step[:, 0], 1e-3)
        text += _steps(at, np.maximum(step[:, 1], 0) / seconds)
        tokens += _steps(at, np.maximum(step[:, 3], 0) / seconds)
        memory += _points(at, points[:, 5])
        budget += [(float(at[0]), float(attempt["memory"])), (float(at[-1]), float(attempt["memory"]))]
        some = np.flatnonzero(step[:, 6] > 0).tolist()
        marks += [(float(at[i]), float(at[i + 1]), f"requests retried: {int(step[i, 6]):,}") for i in some]
        marks += [(a + before, b + before, f"no result for {show_seconds(b - a)}") for a, b in attempt["stalls"]]
        before = float(at[-1])
    marked = f"Marked: {len(marks):,} events (resumes, retries, stalls)."
    events = marked if marks else "No retries, no stalls."
    peak = show_bytes(max(value for _, value in memory))
    resident = [Series("resident", memory, filled=True), Series("budget", budget, limit=True)]

    def plot(title: str, note: str, series: list[Series], y: Axis) -> Plot:
        return lines(title, note, series, Axis("time", show=show_seconds), y, marks)

    return [
        plot("Bytes read per second", f"Bytes of the sources as stored. {events}",
             [Series("bytes per second", text, filled=True)], Axis("bytes per second", show=show_bytes)),
        plot("Tokens written per second", f"End-of-text tokens included. {events}",
             [Series("tokens per second", tokens, filled=True)], Axis("tokens per second")),
        plot("Memory", f"Highest sample: {peak}. The dashed line is the budget.", resident,
             Axis("bytes", show=show_bytes)),
    ]  # fmt: skip


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _steps(ends: NDArray[np.float64], values: NDArray[np.float64]) -> list[tuple[float, float]]:
    """The points of a line that has one value between two ends."""
    return _points(np.repeat(ends, 2)[1:-1], np.repeat(values, 2))


def _short(value: float) -> str:
    return f"{value:.3g}"
