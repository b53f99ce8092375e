"""Libraries that only some sources need, imported when they do."""

from __future__ import annotations

import importlib
from typing import Any

from shardmill.errors import UsageError


def needs(library: str, extra: str, what: str) -> Any:
    """The library, or a UsageError that says how to get it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise UsageError(
            f"{what} need the library `{library}`, which is not installed",
            hint=f'pip install "shardmill[{extra}]"',
        ) from None
