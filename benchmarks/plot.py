"""Two kinds of plot as SVG, drawn here: bars on a logarithmic scale, and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

COLOURS = ("#1f6feb", "#d1242f", "#2da44e", "#9a6700", "#8250df", "#57606a")
STYLE = "font-family='system-ui, sans-serif' font-size='13' fill='#24292f'"


def bars(rows: Sequence[tuple[str, float, bool]], unit: str) -> str:
    """A horizontal bar for each (label, value, ours), on a logarithmic scale."""
    left, right, step = 330, 760, 26
    least = 10 ** math.floor(math.log10(min(value for _, value, _ in rows)))
    most = max(value for _, value, _ in rows)
    span = max(math.log10(most / least), 1.0)
    height = step * len(rows) + 40
    body = []
    for i, (label, value, ours) in enumerate(rows):
        y = 10 + step * i
        width = max(2.0, (right - left) * math.log10(value / least) / span)
        body.append(
            f"<text x='{left - 8}' y='{y + 15}' text-anchor='end'>{escape(label)}</text>"
            f"<rect x='{left}' y='{y}' width='{width:.1f}' height='20' fill='{COLOURS[0] if ours else COLOURS[5]}'/>"
            f"<text x='{left + width + 6:.1f}' y='{y + 15}'>{value:,.3g}</text>"
        )
    body.append(f"<text x='{left}' y='{height - 10}'>{escape(unit)}, logarithmic from {least:g}</text>")
    return _svg(right + 80, height, body)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_unit: str, y_unit: str) -> str:
    """A line for each series of (x, y); x on a logarithmic scale, y from zero."""
    left, right, top, bottom = 70, 640, 20, 320
    points = [point for line in series.values() for point in line]
    low, high = (f(math.log10(x) for x, _ in points) for f in (min, max))
    peak = _ceiling(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low) / ((high - low) or 1)
        return left + across * (right - left), bottom - y / peak * (bottom - top)

    body = [f"<path d='M{left},{top}V{bottom}H{right}' fill='none' stroke='#57606a'/>"]
    for i in range(5):
        y = peak * i / 4
        at = place(points[0][0], y)[1]
        body.append(f"<path d='M{left},{at:.1f}H{right}' stroke='#d0d7de'/>")
        body.append(f"<text x='{left - 8}' y='{at + 4:.1f}' text-anchor='end'>{y:,.4g}</text>")
    body += [
        f"<text x='{place(x, 0)[0]:.1f}' y='{bottom + 18}' text-anchor='middle'>{x:,.3g}</text>"
        for x in sorted({x for x, _ in points})
    ]
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        body.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        body.append(f"<text x='{right + 10}' y='{top + 14 + 20 * i}' style='fill:{colour}'>{escape(name)}</text>")
    body.append(f"<text x='{(left + right) / 2}' y='{bottom + 40}' text-anchor='middle'>{escape(x_unit)}</text>")
    body.append(f"<text x='{left}' y='{top - 6}'>{escape(y_unit)}</text>")
    return _svg(right + 180, bottom + 55, body)


def _ceiling(value: float) -> float:
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * k for k in (1, 2, 4, 5, 8, 10) if step * k >= value)


def _svg(width: float, height: float, body: list[str]) -> str:
    inside = "\n".join(body)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' {STYLE}>\n"
        f"<rect width='100%' height='100%' fill='white'/>\n{inside}\n</svg>\n"
    )
