"""What a token format provides. Nobody outside this folder knows one by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardmill.errors import DamageError
from shardmill.shards import SPLITS
from shardmill.shards.output import Output
from shardmill.shards.token_files import DocumentIndex, TokenFile, TokenFiles


@dataclass(frozen=True)
class Order:
    """What an output may need to know before it begins."""

    folder: Path
    name: str
    """Prefix of file names, where the format has one."""
    dtype: np.dtype[Any]
    shard_tokens: int
    eot: str | None = None
    """None: as the format's readers expect it."""
    tail: str = "keep"
    tokenizer: str = "unknown"
    vocab_size: int = 0
    """0: as large as the type of the tokens allows."""
    splits: tuple[str, ...] = SPLITS
    first: int = 0
    """The number of the first file, where the files of a split are numbered."""


class Recognised(NamedTuple):
    """A file of tokens, as its own header describes it."""

    dtype: np.dtype[Any]
    file: TokenFile


class Format(ABC):
    """One kind of token files."""

    name: str
    eot: str
    """Where its readers expect the end-of-text token: after, before or none."""
    sharded: bool = True
    """False: the tokens of a split are one file, however many they are."""
    indexed: bool = False
    """Its files say where documents end."""
    claims: tuple[str, ...] = ()
    """Names of its files that another format may use too."""
    contiguous: bool = True
    """The tokens of a file are side by side, after a header."""

    @abstractmethod
    def output(self, order: Order) -> Output:
        """Return what writes the files. UsageError if the format's readers could not take them."""

    def tokens(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> TokenFiles:
        """Return the tokens of some files, by their position."""
        return TokenFiles(files, dtype)

    def index(self, tokens: TokenFiles) -> DocumentIndex | None:
        """Return where documents are, from the files' own index; None: there is none. DamageError if it is wrong."""
        return None

    def recognise(self, path: Path, raw: np.dtype[Any]) -> Recognised | None:
        """Describe a file that another tool may have made; None: it is not of this format.

        `raw`: the type of the tokens in files that do not say it. DamageError if the file is not whole.
        """
        return None

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        """Estimate the bytes of all files for so many tokens of `width` bytes."""
        return tokens * width

    def foreseen(self, *, alone: bool) -> list[str]:
        """Return sentences about problems that are known before the run; `alone`: in a folder of its own."""
        return []

    def warnings(self, splits: dict[str, dict[str, Any]], dtype: np.dtype[Any], eot: str) -> list[str]:
        """Return sentences about problems that its readers will have; `splits` as in the manifest."""
        return []


def whole(dtype: np.dtype[Any], file: TokenFile) -> Recognised:
    """Describe a file that holds a header and tokens and nothing else; DamageError if its size is another."""
    size, expected = file.path.stat().st_size, file.head + file.tokens * dtype.itemsize
    if size != expected:
        raise DamageError(f"the file has {size:,} bytes where its head says {expected:,}", place=str(file.path))
    return Recognised(dtype, file)


def headless(dtype: np.dtype[Any], path: Path) -> Recognised:
    """Describe a file that holds nothing but tokens; DamageError if the last of them is not whole."""
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DamageError(f"{size:,} bytes are not whole tokens of {dtype.itemsize} bytes", place=str(path))
    return Recognised(dtype, TokenFile(path, size // dtype.itemsize))
