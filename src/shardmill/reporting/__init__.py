"""A finished dataset for people: a page with plots, two datasets side by side, a card for the hub.

Not called `report`: `shardmill.report` is a function, and Python binds a submodule's name in its package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmill.reporting.dataset_card import card as card
    from shardmill.reporting.page import report as report

_LAZY = {"card": "dataset_card", "report": "page"}
__all__ = ["card", "report"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"shardmill.reporting.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'shardmill.reporting' has no attribute {name!r}")
