"""Interfaces of folders whose parts are imported when they are asked for, since together they are heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """A package's `__all__` and `__getattr__`. `modules`: the names that each module gives, with a blank between."""
    where = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module '{package}' has no attribute {name!r}")
        return getattr(import_module(f"{package}.{where[name]}"), name)

    return list(where), get
