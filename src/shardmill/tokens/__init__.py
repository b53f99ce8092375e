"""Documents → tokens: tokenizers, their engines, and where a text may be cut."""

from shardmill.tokens.cuts import UncuttableError
from shardmill.tokens.engines import Encoded, Engine, EngineError
from shardmill.tokens.loading import ListedTokenizer, list_tokenizers, load_tokenizer
from shardmill.tokens.objects import options_of
from shardmill.tokens.texts import TextTokenizer, text_tokenizer
from shardmill.tokens.tokenizers import Tokenizer

__all__ = [
    "Encoded",
    "Engine",
    "EngineError",
    "ListedTokenizer",
    "TextTokenizer",
    "Tokenizer",
    "UncuttableError",
    "list_tokenizers",
    "load_tokenizer",
    "options_of",
    "text_tokenizer",
]
