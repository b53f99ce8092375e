"""A bar chart as SVG, for pages with a light or a dark ground."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

_LEFT, _RIGHT, _STEP, _WIDTH = 210, 640, 28, 720
_STYLE = """<style>
svg { font: 14px system-ui, sans-serif; } text { fill: #24292f; } .other { fill: #8b949e; } .ours { fill: #1f6feb; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .other { fill: #6e7681; } .ours { fill: #58a6ff; } }
</style>"""


def bars(rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Draw a horizontal bar for each (label, value), from zero; the first in another colour."""
    most = max(value for _, value in rows)
    height = _STEP * len(rows) + 34
    body = []
    for i, (label, value) in enumerate(rows):
        y, width = 6 + _STEP * i, max(1.0, (_RIGHT - _LEFT) * value / most)
        colour = "other" if i else "ours"
        body.append(
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="{colour}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="20"/>'
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 15}">{value:,.3g}</text>'
        )
    body.append(f'<text x="{_LEFT}" y="{height - 10}">{escape(unit)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">\n'
        f"{_STYLE}\n" + "\n".join(body) + "\n</svg>\n"
    )
