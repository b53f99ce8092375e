"""Room 2: documents to tokens. Tokenizers, their engines, and the places where a text may be cut."""

from shardmill.encoding.cuts import UncuttableError
from shardmill.encoding.engines import Encoded, Engine, EngineError
from shardmill.encoding.loading import Listed, list_tokenizers, load_tokenizer
from shardmill.encoding.tokenizers import Tokenizer

__all__ = [
    "Encoded",
    "Engine",
    "EngineError",
    "Listed",
    "Tokenizer",
    "UncuttableError",
    "list_tokenizers",
    "load_tokenizer",
]
