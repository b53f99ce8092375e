"""Plots as SVG: lines and bars with labelled axes, in the colours of the page's theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from shardmill.units import show_count

_WIDTH, _HEIGHT = 400, 262
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 388, 32, 214
_ROW = 27  # of a bar chart
_TABLE = 24  # rows of a plot's table of numbers


@dataclass(frozen=True)
class Axis:
    """The label of a scale, and how its values are written."""

    label: str
    log: bool = False
    show: Callable[[float], str] = show_count
    least: float | None = None
    """Where it begins; None: at the least value, or at 0 if it is linear."""


@dataclass(frozen=True)
class Series:
    """One line: its name, and its points by x."""

    name: str
    points: Sequence[tuple[float, float]]
    filled: bool = False


@dataclass(frozen=True)
class Plot:
    """A figure: the drawing, a sentence about it, and its numbers as a table for those who cannot see it."""

    title: str
    note: str
    svg: str
    head: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    """Of the series, for the legend; none when there is only one."""


class _Scale:
    def __init__(self, axis: Axis, values: Sequence[float], low: float, high: float) -> None:
        self.axis, self._low, self._high = axis, low, high
        some = [value for value in values if value > 0] if axis.log else list(values)
        least, most = (min(some), max(some)) if some else (1.0, 10.0)
        if axis.log:
            self.least = 10.0 ** math.floor(math.log10(least)) if axis.least is None else axis.least
            self.most = max(most, self.least * 10)
        else:
            self.least = 0.0 if axis.least is None else axis.least
            self.most = max(most, self.least + 1e-9)
        self.ticks = self._decades() if axis.log else self._steps()
        if not axis.log:
            self.most = max(self.most, self.ticks[-1])

    def __call__(self, value: float) -> float:
        if self.axis.log:
            share = math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)
        else:
            share = (value - self.least) / (self.most - self.least)
        return self._low + (self._high - self._low) * share

    def _decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self.least) - 1e-9), math.floor(math.log10(self.most) + 1e-9)
        every = max(1, -(-(last - first) // 6))
        return [10.0**power for power in range(first, last + 1, every)]

    def _steps(self) -> list[float]:
        raw = (self.most - self.least) / 4
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
        count = math.ceil((self.most - self.least) / step - 1e-9)
        return [self.least + step * i for i in range(count + 1)]


def lines(title: str, note: str, series: Sequence[Series], x: Axis, y: Axis) -> Plot:
    """Draw a line for each series."""
    points = [point for line in series for point in line.points]
    across = _Scale(x, [point[0] for point in points], _LEFT, _RIGHT)
    up = _Scale(y, [point[1] for point in points], _BOTTOM, _TOP)
    body = _axes(across, up)
    for colour, line in enumerate(line for line in series if line.points):
        path = "L".join(f"{across(a):.1f},{up(b):.1f}" for a, b in line.points)
        if line.filled:
            ends = f"{across(line.points[0][0]):.1f},{_BOTTOM}", f"{across(line.points[-1][0]):.1f},{_BOTTOM}"
            body.append(f'<path class="s{colour} fill" d="M{ends[0]}L{path}L{ends[1]}Z"/>')
        body.append(f'<path class="s{colour} line" d="M{path}"><title>{escape(line.name)}</title></path>')
        body += [
            f'<circle class="s{colour} hit" cx="{across(a):.1f}" cy="{up(b):.1f}" r="5">'
            f"<title>{escape(f'{line.name}: {x.label} {x.show(a)}, {y.label} {y.show(b)}')}</title></circle>"
            for a, b in line.points
        ]
    names = tuple(line.name for line in series) if len(series) > 1 else ()
    return Plot(title, note, _svg(_HEIGHT, body, f"{title}. {note}"), *_numbers(series, x, y), names)


def bars(
    title: str,
    note: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    names: Sequence[str],
    show: Callable[[float], str] = show_count,
) -> Plot:
    """Draw for each label one horizontal bar for each of `names`."""
    most = max((value for _, values in rows for value in values), default=1) or 1
    thick, left, right = 14, 158, _WIDTH - 56
    alone = len(names) == 1
    step = _ROW if alone else _ROW + 12
    body = []
    for i, (label, values) in enumerate(rows):
        top = 6 + step * i
        shown = label if len(label) <= 20 else f"…{label[-19:]}"
        middle = top + (12 if alone else 19)
        body.append(
            f'<text class="label" x="{left - 8}" y="{middle}" text-anchor="end">{escape(shown)}'
            f"<title>{escape(label)}</title></text>"
        )
        for j, value in enumerate(values):
            width = max(1.0, (right - left) * value / most) if value else 0
            y = top + (1 if alone else j * (thick + 1))
            told = escape(f"{label}, {names[j]}: {show(value)}")
            body.append(
                f'<rect class="s{j} bar" x="{left}" y="{y}" width="{width:.1f}" height="{thick}">'
                f"<title>{told}</title></rect>"
            )
            body.append(
                f'<text class="value" x="{left + width + 5:.1f}" y="{y + thick - 1.5}">{escape(show(value))}</text>'
            )
    table = [(label, *(show(value) for value in values)) for label, values in rows]
    svg = _svg(12 + step * len(rows), body, f"{title}. {note}")
    return Plot(title, note, svg, ("", *names), table, () if alone else tuple(names))


def _axes(across: _Scale, up: _Scale) -> list[str]:
    body = []
    for tick in up.ticks:
        y = up(tick)
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(up.axis.show(tick))}</text>')
    for tick in across.ticks:
        x = across(tick)
        body.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{_BOTTOM}" y2="{_BOTTOM + 4}"/>')
        body.append(
            f'<text x="{x:.1f}" y="{_BOTTOM + 17}" text-anchor="middle">{escape(across.axis.show(tick))}</text>'
        )
    middle = (_LEFT + _RIGHT) / 2
    body.append(f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>')
    body.append(
        f'<text class="name" x="{middle}" y="{_BOTTOM + 38}" text-anchor="middle">{escape(across.axis.label)}</text>'
    )
    body.append(f'<text class="name" x="{_LEFT - 56}" y="{_TOP - 16}">{escape(up.axis.label)}</text>')
    return body


def _numbers(series: Sequence[Series], x: Axis, y: Axis) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The points as a table, thinned; `–` where a series has no point at this x."""
    at = [dict(line.points) for line in series]
    every = sorted({a for line in series for a, _ in line.points})
    every = every[:: max(1, -(-len(every) // _TABLE))]
    rows = [(x.show(a), *(y.show(line[a]) if a in line else "–" for line in at)) for a in every]
    return (x.label, *(line.name for line in series)), rows


def _svg(height: float, body: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )
