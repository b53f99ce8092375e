"""What a token format provides. Nobody outside this folder knows one by its name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from shardmill.errors import DamageError, UsageError
from shardmill.output_formats import FORMATS, OUTPUT_FORMATS, SPLITS
from shardmill.shards.output import FileOutput, Output
from shardmill.shards.token_files import DocumentIndex, TokenFile, TokenFiles


@dataclass(frozen=True)
class OutputSettings:
    """The settings of an output."""

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


class Format:
    """One kind of token files."""

    name: str
    eot: str
    """Where its readers expect the end-of-text token: after, before or none."""
    sharded: bool = True
    """False: the tokens of a split are one file, however many they are."""
    indexed: bool = False
    """Its files say where documents end."""
    writer: ClassVar[type[FileOutput]]
    """The class of its outputs."""
    stem: str
    """The name of a file without its ending, with `{name}`, `{split}` and `{index}`, or `{index:06}` for six digits."""
    stem_of_one_split: str = ""
    """The same for a dataset that has only one split, where it differs."""
    endings: tuple[str, ...]
    """Endings of the token file, and of the other files with the same stem."""
    train_from: int = 0
    """The number of the first train file."""
    shared_names: tuple[str, ...] = ()
    """File names that another format may use too; two such formats cannot share a folder."""
    contiguous: bool = True
    """The tokens of a file are side by side, after a header."""

    def output(self, settings: OutputSettings) -> FileOutput:
        """Return the output that writes the files. UsageError if the format's readers could not read them."""
        return self.writer(self, settings)

    def file_names(self, name: str | None = None) -> re.Pattern[str]:
        """Return a pattern that matches every file name of an output with this prefix; None: with any prefix."""
        fields = {"{name}": "[^/]+" if name is None else re.escape(name), "{split}": f"(?:{'|'.join(SPLITS)})"}
        fields |= {"{index}": r"\d+", "{index:05}": r"\d{5,}", "{index:06}": r"\d{6,}"}
        parts = [re.split(r"({.*?})", stem) for stem in (self.stem, self.stem_of_one_split) if stem]
        stems = ["".join(fields.get(part, re.escape(part)) for part in stem) for stem in parts]
        names = [stem + re.escape(ending) for stem in stems for ending in self.endings]
        return re.compile("|".join([*names, *map(re.escape, self.shared_names)]))

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
        """Estimate the bytes of all files, for tokens of `width` bytes."""
        return tokens * width

    def early_warnings(self, *, alone: bool) -> list[str]:
        """Return warnings that are known before the run. `alone`: the format has a folder of its own."""
        return []

    def warnings(self, splits: dict[str, dict[str, Any]], dtype: np.dtype[Any], eot: str) -> list[str]:
        """Return warnings about what its readers cannot handle; `splits` as in the manifest."""
        return []


def recognised(dtype: np.dtype[Any], file: TokenFile) -> Recognised:
    """Describe a file that holds a header and tokens and nothing else; DamageError if its size is another."""
    size, expected = file.path.stat().st_size, file.header_bytes + file.tokens * dtype.itemsize
    if size != expected:
        raise DamageError(f"the file has {size:,} bytes where its head says {expected:,}", place=str(file.path))
    return Recognised(dtype, file)


def recognised_raw(dtype: np.dtype[Any], path: Path) -> Recognised:
    """Describe a file that holds nothing but tokens; DamageError if the last of them is not whole."""
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise DamageError(f"{size:,} bytes are not whole tokens of {dtype.itemsize} bytes", place=str(path))
    return Recognised(dtype, TokenFile(path, size // dtype.itemsize))


def format_named(name: str) -> Format:
    """Return the format of this name."""
    found: Format = import_module(f"shardmill.shards.{OUTPUT_FORMATS[name]}").FORMAT
    return found


def unlisted_files(formats: Sequence[str], names: Iterable[str], listed: Collection[str]) -> Iterator[str]:
    """Yield the names that a reader of these formats could take for shards, and that are not `listed`.

    Those are names of files that any format with the same ending makes, with any prefix.
    """
    endings = tuple(ending for name in formats for ending in format_named(name).endings)
    shards = [format_named(name).file_names() for name in FORMATS]
    for name in names:
        if name not in listed and name.endswith(endings) and any(shard.fullmatch(name) for shard in shards):
            yield name


def open_output(format: str, folder: Path, **settings: Any) -> Output:
    """Return the output of a format; nothing is written yet. `order`: the other fields of `Order`.

    Raise UsageError if the format's readers could not read such files.
    """
    return format_named(format).output(OutputSettings(folder, **settings))


def check_together(formats: Sequence[str]) -> None:
    """Raise UsageError if two formats would write files of one name into one folder."""
    claimed: dict[str, str] = {}
    for name in formats:
        for file in format_named(name).shared_names:
            if file in claimed:
                raise UsageError(
                    f"`{claimed[file]}` and `{name}` both write a file `{file}`", hint="give each a folder of its own"
                )
            claimed[file] = name


def early_warnings(formats: Sequence[str]) -> list[str]:
    """Return warnings that follow from the choice of formats, if they are made in one folder."""
    return [sentence for name in formats for sentence in format_named(name).early_warnings(alone=len(formats) == 1)]
