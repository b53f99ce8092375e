"""Optional libraries, imported when they are needed."""

from __future__ import annotations

import importlib
import shlex
from importlib import metadata
from typing import Any

from shardmill.errors import UsageError


def packages(extra: str) -> list[str]:
    """Return what an extra installs: to name these works wherever shardmill itself came from."""
    wanted = f"extra == '{extra}'"
    listed = (one.partition(";") for one in metadata.requires("shardmill") or ())
    return [name.strip() for name, _, when in listed if when.strip().replace('"', "'") == wanted]


def needs(library: str, extra: str, what: str) -> Any:
    """Import the library that `what` needs, or raise a UsageError that says how to install it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise UsageError(
            f"the package `{library.partition('.')[0]}`, which is required for {what}, is not installed",
            hint=f"pip install {' '.join(map(shlex.quote, packages(extra)))}",
        ) from None
