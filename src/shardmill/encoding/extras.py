"""Libraries that not everybody needs, imported when they are."""

from __future__ import annotations

import importlib
from typing import Any

from shardmill.errors import UsageError


def needs(library: str, extra: str) -> Any:
    """The library, or a UsageError that says how to get it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise UsageError(
            f"this tokenizer needs the library `{library}`, which is not installed",
            hint=f'pip install "shardmill[{extra}]"',
        ) from None
