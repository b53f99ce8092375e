"""Checks of the arguments of public functions: each returns the value as the right type, or raises a UsageError.

Callers pass what they have: a `Path`, a number of numpy, `1e8` for a count. Anything else is refused before anything is
read or written.
"""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

from shardmill.errors import UsageError

_LONGEST_NAME, _LONGEST_PATH = 255, 4096  # bytes


def text(name: str, value: Any) -> str:
    """Text that is not empty."""
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    if not value:
        raise UsageError(f"`{name}` is an empty text")
    return str(value)


NO_PATH = "is this a text and no path? Give a list of texts as `shardmill.Source(texts)`"


def path(name: str, value: Any) -> str:
    """A path or a URL: text, or a `Path`."""
    found = text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)
    if "\0" in found:
        raise UsageError(f"`{name}` holds a NUL character", place=repr(found))
    try:
        encoded = os.fsencode(found)
    except UnicodeEncodeError:
        raise UsageError(f"`{name}` is not text that a file can be called by", place=repr(found)) from None
    # No file system has longer names. A URL is not a path, and its signature may be long.
    if "://" not in found and (len(encoded) >= _LONGEST_PATH or max(map(len, encoded.split(b"/"))) > _LONGEST_NAME):
        message, hint = f"`{name}` is longer than the name of a file can be", NO_PATH if name == "sources" else None
        raise UsageError(message, place=f"{found[:60]}…", hint=hint)
    return found


def number(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, also a numpy integer."""
    if isinstance(value, bool):
        raise _wrong(name, value, "a whole number")
    try:
        found = operator.index(value)
    except TypeError:
        raise _wrong(name, value, "a whole number") from None
    if least is not None and found < least:
        raise UsageError(f"`{name}` is {found:,}, and at least {least:,} is needed")
    return found


def amount(name: str, value: Any) -> int | str:
    """A count or a size: a whole number, also written as `1e8`, or text such as `100M`, which is read later."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return text(name, value) if isinstance(value, str) else number(name, value)


def share(name: str, value: Any) -> str:
    """A number of any kind, or text, as text."""
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, value, "a number or text")
    return str(int(value) if isinstance(value, Integral) else float(value))


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def names(name: str, value: Any) -> tuple[str, ...]:
    """One text, or several in order, each once."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise _wrong(name, value, "text, or a list of texts")
    return tuple(dict.fromkeys(text(name, one) for one in value))


def paths(name: str, value: Any) -> list[str]:
    """One path, or several in order."""
    if isinstance(value, (str, os.PathLike)):
        return [path(name, value)]
    if not isinstance(value, Iterable) or isinstance(value, (bytes, bytearray, dict)) or getattr(value, "ndim", 1) == 0:
        raise _wrong(name, value, "a path, or a list of paths")
    return [path(name, one) for one in value]


def sources(name: str, value: Any) -> list[Any]:
    """One source, or several in order: each a path, or text from Python as a PythonSource."""
    from shardmill.python_sources import PythonSource, as_sources

    found = as_sources(value)
    for one in found:
        if not isinstance(one, (str, os.PathLike, PythonSource)):
            raise _wrong(name, one, "a path, text from Python, or a list of these")
    return [one if isinstance(one, PythonSource) else path(name, one) for one in found]


KINDS: dict[str, Callable[[str, Any], Any]] = {
    "text": text, "path": path, "number": number, "amount": amount, "share": share, "flag": flag, "names": names,
}  # fmt: skip


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the beginning of a hint if a known name is similar to this one, else an empty text."""
    near = difflib.get_close_matches(name, known, 1, cutoff)
    return f"did you mean `{near[0]}`? " if near else ""


def _wrong(name: str, value: Any, what: str) -> UsageError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return UsageError(f"`{name}` must be {what}, not {shown} ({type(value).__name__})")
