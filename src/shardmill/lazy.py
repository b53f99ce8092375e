"""Interfaces of folders whose parts are imported when they are asked for, since together they are heavy."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # known to type checkers by its name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """A package's `__all__` and `__getattr__`. `modules`: the names that each module gives, with a blank between.

    `a:b` is what the module calls `a` and the package `b`.
    """
    where: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for name in names.split():
            given, _, called = name.partition(":")
            where[called or given] = module, given

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module '{package}' has no attribute {name!r}")
        module, given = where[name]
        return getattr(import_module(f"{package}.{module}"), given)

    return list(where), get
