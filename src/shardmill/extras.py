"""Optional libraries, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from shardmill.errors import UsageError


def needs(library: str, extra: str, what: str) -> Any:
    """Import the library that `what` needs, or raise a UsageError that says how to install it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise UsageError(
            f"the package `{library.partition('.')[0]}`, which is required for {what}, is not installed",
            hint=f'pip install "shardmill[{extra}]"',
        ) from None
