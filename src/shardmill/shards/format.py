"""What a token format provides. Nobody outside this folder knows one by its name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.errors import DamageError, UsageError
from shardmill.output_formats import FORMATS, OUTPUT_FORMATS, SPLITS
from shardmill.shards.borders import ShardLimit
from shardmill.shards.token_files import DocumentIndex, TokenFile, TokenFiles
from shardmill.storage import AnyPath

if TYPE_CHECKING:
    from shardmill.shards.writer import Shard
    from shardmill.storage import Written

_STEP = 524_288 + 1  # tokens of one step of GPT-2's training, over all processes, and one more


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
    row: int = 0
    """The tokens of a row of a packed dataset; 0: it is not packed."""


class ShardLayout(NamedTuple):
    """How a format stores the tokens of a run."""

    dtype: np.dtype[Any]
    limit: ShardLimit
    """When a shard is full."""
    longest: int = (1 << 63) - 1
    """Tokens that a document may have."""


class Recognised(NamedTuple):
    """A file of tokens, as its own header describes it."""

    dtype: np.dtype[Any]
    file: TokenFile


class Format:
    """One kind of token files: how `ShardWriter` writes them, and how they are read back."""

    name: str
    eot: str
    """Where its readers expect the end-of-text token: after, before or none."""
    sharded: bool = True
    """False: the tokens of a split are one file, however many they are."""
    indexed: bool = False
    """Its files say where documents end. A shard then ends with a document, and while it is written it has a second
    file with the length of each document."""
    length_dtype: np.dtype[Any] = np.dtype("<u8")
    """The type of the numbers in that second file."""
    cumulative: bool = False
    """The second file says where documents end, instead of their lengths."""
    stem: str
    """The name of a file without its ending, with `{name}`, `{split}` and `{index}`, or `{index:06}` for six digits."""
    stem_of_one_split: str = ""
    """The same for a dataset that has only one split, where it differs."""
    endings: tuple[str, ...]
    """Endings of the token file, of the second file if there is one, and of the others with the same stem."""
    train_from: int = 0
    """The number of the first train file."""
    split_file: str = ""
    """The name of a file that describes all files of a split, with `{split}`. Two formats whose names are the same
    cannot share a folder."""
    contiguous: bool = True
    """The tokens of a file are side by side, after a header."""
    compressed: bool = False
    """A file may have fewer bytes than its tokens."""
    holds_rows: bool = False
    """The rows of a packed dataset take the place of documents in its files."""
    memory_bytes: int = 0
    """What writing its files takes for the longest document, beside buffers of a few megabytes."""
    always_wide: bool = False
    """A token has 32 bits whatever the vocabulary, so their width says nothing of it."""

    @property
    def libraries(self) -> dict[str, str]:
        """The libraries that make the bytes of its files, with their releases, where another may make others."""
        return {}

    def layout(self, settings: OutputSettings) -> ShardLayout:
        """Return how the tokens of a run are stored. UsageError if the format's readers could not read them."""
        size = settings.shard_tokens if self.sharded else 0
        return ShardLayout(settings.dtype.newbyteorder("<"), ShardLimit(size, cuts_documents=not self.indexed))

    def header(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        """Return the header of a file with `tokens` tokens; its size is always the same."""
        return b""

    def complete(self, shard: Shard) -> list[Written]:
        """Turn a full shard into the files that readers want. Those of its files that are not returned are deleted.

        A format with another order of bytes writes a new file from the tokens and lengths, with `shard.write`.
        """
        return [shard.tokens.finish(shard.token_count, self.header(shard.token_count, shard.dtype))]

    def describe(self, files: list[Written], dtype: np.dtype[Any]) -> Iterator[bytes]:
        """Yield the content of a split's `split_file`."""
        return iter(())

    def file_names(self, name: str | None = None) -> re.Pattern[str]:
        """Return a pattern that matches every file name of an output with this prefix; None: with any prefix."""
        fields = {"{name}": "[^/]+" if name is None else re.escape(name), "{split}": f"(?:{'|'.join(SPLITS)})"}
        fields |= {"{index}": r"\d+", "{index:05}": r"\d{5,}", "{index:06}": r"\d{6,}"}
        parts = [re.split(r"({.*?})", stem) for stem in (self.stem, self.stem_of_one_split) if stem]
        stems = ["".join(fields.get(part, re.escape(part)) for part in stem) for stem in parts]
        names = [stem + re.escape(ending) for stem in stems for ending in self.endings]
        return re.compile("|".join([*names, *map(re.escape, self.split_files)]))

    @property
    def split_files(self) -> list[str]:
        """The files that describe splits."""
        return [self.split_file.format(split=split) for split in SPLITS] if self.split_file else []

    def tokens(self, files: Sequence[TokenFile], dtype: np.dtype[Any]) -> TokenFiles:
        """Return the tokens of some files, by their position."""
        return TokenFiles(files, dtype)

    def index(self, tokens: TokenFiles) -> DocumentIndex | None:
        """Return where documents are, from the files' own index; None: there is none. DamageError if it is wrong."""
        return None

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        """Describe a file that another tool may have made; None: it is not of this format.

        `raw`: the type of the tokens in files that do not say it. DamageError if the file is not whole.
        """
        return None

    def size(self, tokens: int, documents: int, width: int, vocab_size: int, shard_tokens: int) -> int:
        """Estimate the bytes of all files, for tokens of `width` bytes."""
        shards = -(-tokens // shard_tokens) + 1  # and one of val
        return tokens * width + shards * len(self.header(1, np.dtype(f"<u{width}")))

    def early_warnings(self, *, alone: bool) -> list[str]:
        """Return warnings that are known before the run. `alone`: the format has a folder of its own."""
        return []

    def warnings(self, splits: Mapping[str, Any], dtype: np.dtype[Any], eot: str) -> list[str]:
        """Return warnings about what its readers cannot handle; `splits` as in the manifest."""
        return []


def recognised(dtype: np.dtype[Any], file: TokenFile) -> Recognised:
    """Describe a file that holds a header and tokens and nothing else; DamageError if its size is another."""
    size, expected = file.path.stat().st_size, file.header_bytes + file.tokens * dtype.itemsize
    if size != expected:
        raise DamageError(f"the file has {size:,} bytes where its head says {expected:,}", place=str(file.path))
    return Recognised(dtype, file)


def recognised_raw(dtype: np.dtype[Any], path: AnyPath) -> Recognised:
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


def check_together(formats: Sequence[str]) -> None:
    """Raise UsageError if two formats would write files of one name into one folder."""
    claimed: dict[str, str] = {}
    for name in formats:
        for file in format_named(name).split_files:
            if file in claimed:
                raise UsageError(
                    f"`{claimed[file]}` and `{name}` both write a file `{file}`", hint="give each a folder of its own"
                )
            claimed[file] = name


def libraries_of(formats: Sequence[str]) -> dict[str, str]:
    """Return the libraries, with their releases, on which the bytes of files of these formats depend."""
    return {library: release for name in formats for library, release in format_named(name).libraries.items()}


def early_warnings(formats: Sequence[str]) -> list[str]:
    """Return warnings that follow from the choice of formats, if they are made in one folder."""
    return [sentence for name in formats for sentence in format_named(name).early_warnings(alone=len(formats) == 1)]


def short_tails(splits: Mapping[str, Any], reader: str) -> list[str]:
    """Warn about shards with less than one step of a common training run: the last of a split, or of a part."""
    warnings = []
    for split, described in splits.items():
        files = [file for file in described["files"] if not file.get("role")]
        short = min(reversed(files), key=lambda file: file["tokens"], default=None)
        if short is not None and short["tokens"] < _STEP:
            which = f"the last {split} shard" if short is files[-1] else f"a {split} shard"
            hint = ""
            if len(files) > 1:
                shorter = short["tokens"] < files[0]["tokens"]
                hint = ": see `--tail drop`" if shorter else ": see `--shard-tokens`"
            warnings.append(
                f"{which}, {short['name']}, has {short['tokens']:,} tokens; {reader} needs more than batch × block × "
                f"processes in each{hint}"
            )
    return warnings
