"""Lazy interfaces of folders: their modules are heavy, so each is imported when a name of it is first used."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # known to type checkers by its name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazily(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return `__all__` and `__getattr__` of a package. `modules`: the names in each module, separated by blanks.

    `a:b` is called `a` in the module and `b` in the package.
    """
    origin: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for name in names.split():
            attribute, _, alias = name.partition(":")
            origin[alias or attribute] = module, attribute

    def get(name: str) -> Any:
        if name not in origin:
            raise AttributeError(f"module '{package}' has no attribute {name!r}")
        module, attribute = origin[name]
        return getattr(import_module(f"{package}.{module}"), attribute)

    return list(origin), get
