"""shardmill tokenizes text of any size for LLM training, within a memory limit you set.

import shardmill
shardmill.prepare("corpus/*.parquet", "data/web", tokenizer="gpt2", memory="1GB")
shardmill.open("data/web")["train"][0:1024]
"""

from __future__ import annotations

from shardmill.errors import ShardmillError
from shardmill.lazy import lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shardmill.arrange import convert as convert
    from shardmill.arrange import mix as mix
    from shardmill.arrange import pack as pack
    from shardmill.arrange import shuffle as shuffle
    from shardmill.dataset import Dataset as Dataset
    from shardmill.dataset import open_dataset
    from shardmill.dataset import verify as verify
    from shardmill.preparing import prepare
    from shardmill.python_sources import PythonSource
    from shardmill.reporting import card as card
    from shardmill.reporting import publish as publish
    from shardmill.reporting import report as report
    from shardmill.run import inspect as inspect
    from shardmill.run import read
    from shardmill.tokens import text_tokenizer as tokenizer
    from shardmill.write import Result

    # An import under another name would be private to type checkers.
    open, Source = open_dataset, PythonSource

__version__ = "0.2.0"
# Imported when asked for: numpy, pyarrow and the engine take half a second, `import shardmill` none.
_names, __getattr__ = lazily(
    "shardmill",
    {
        "arrange": "convert mix pack shuffle",
        "dataset": "Dataset open_dataset:open verify",
        "preparing": "prepare",
        "python_sources": "PythonSource:Source",
        "reporting": "card publish report",
        "run": "inspect read",
        "write": "Result",
        "tokens": "text_tokenizer:tokenizer",
    },
)
# Without `open` and `inspect`: `from shardmill import *` must not take the place of Python's own.
__all__ = [
    "Dataset", "Result", "ShardmillError", "Source", "__version__", "card", "convert", "mix", "pack", "prepare",
    "publish", "read", "report", "shuffle", "tokenizer", "verify",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*_names, *__all__})
