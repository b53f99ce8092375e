"""Amounts as people write and read them: `512MB`, `100M`, `0.1%`."""

from __future__ import annotations

import re

from shardmill.errors import UsageError

_BYTES = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12,
          "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_DIGITS = 30
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def parse_bytes(text: str | int) -> int:
    """`512MB` → 512000000, `1GiB` → 1073741824."""
    return _parse(text, _BYTES, "an amount of memory such as `512MB` or `2GB`")


def parse_count(text: str | int) -> int:
    """`100M` → 100000000."""
    return _parse(text, _COUNTS, "a number such as `100M`")


def parse_share(text: str | float) -> float:
    """`0.1%` and `0.001` → 0.001."""
    written = str(text).strip()
    try:
        value = float(written[:-1]) / 100 if written.endswith("%") else float(written)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"`{text}` is not a share between 0 and 1", hint="write it as `0.001` or `0.1%`")
    return value


def _parse(text: str | int, units: dict[str, int], what: str) -> int:
    match = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", str(text))
    if match is None or match[2].lower() not in units or len(match[1]) > _DIGITS:
        raise UsageError(f"`{text}` is not {what}")
    whole, _, rest = match[1].replace("_", "").replace(",", "").partition(".")
    amount: int
    amount, part = divmod(int(whole + rest) * units[match[2].lower()], 10 ** len(rest))
    if part:
        raise UsageError(f"`{text}` is not {what}: it is no whole number")
    return amount


def show_bytes(amount: float) -> str:
    """1234567 → `1.23 MB`."""
    return _show(amount, (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)), "B")


def show_count(amount: float) -> str:
    """1234567 → `1.23M`."""
    return _show(amount, (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)), "").replace(" ", "")


def show_seconds(seconds: float) -> str:
    """3725 → `1:02:05`; 12.3 → `12.3 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(int(seconds + 0.5), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02} min"


def plural(count: int, word: str) -> str:
    """1 → `1 document`; 2345 → `2,345 documents`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _show(amount: float, units: tuple[tuple[str, int], ...], plain: str) -> str:
    for unit, size in units:
        if amount >= size:
            return f"{amount / size:.3g} {unit}" if amount < 1000 * size else f"{amount / size:,.0f} {unit}"
    return f"{amount:,.0f} {plain}".rstrip()
