"""shardmill turns any pile of text into the token files that a language-model trainer reads, in bounded memory.

import shardmill
shardmill.prepare("corpus/*.parquet", "data/web", tokenizer="gpt2", memory="1GB")
shardmill.open("data/web")["train"][0:1024]
"""

from __future__ import annotations

from shardmill.errors import ShardmillError

TYPE_CHECKING = False  # known to type checkers by its name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from shardmill.dataset import Dataset as Dataset
    from shardmill.dataset import convert as convert
    from shardmill.dataset import open_dataset
    from shardmill.inspection import inspect as inspect
    from shardmill.reporting import card as card
    from shardmill.reporting import report as report
    from shardmill.run import Result, prepare, read
    from shardmill.storage import NamedSource
    from shardmill.tokens import text_tokenizer as tokenizer

    open = open_dataset  # an import under another name would be private to type checkers

__version__ = "0.2.0"
# Without `open` and `inspect`: `from shardmill import *` must not take the place of Python's own.
__all__ = [
    "Dataset",
    "NamedSource",
    "Result",
    "ShardmillError",
    "__version__",
    "card",
    "convert",
    "prepare",
    "read",
    "report",
    "tokenizer",
]

_LAZY = {
    "card": ("reporting", "card"),
    "Dataset": ("dataset", "Dataset"),
    "NamedSource": ("storage", "NamedSource"),
    "Result": ("run", "Result"),
    "convert": ("dataset", "convert"),
    "inspect": ("inspection", "inspect"),
    "open": ("dataset", "open_dataset"),
    "prepare": ("run", "prepare"),
    "read": ("run", "read"),
    "tokenizer": ("tokens", "text_tokenizer"),
    "report": ("reporting", "report"),
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: numpy, pyarrow and the engine take half a second, `import shardmill` none.
    if name in _LAZY:
        from importlib import import_module

        module, attribute = _LAZY[name]
        return getattr(import_module(f"shardmill.{module}"), attribute)
    raise AttributeError(f"module 'shardmill' has no attribute {name!r}")
