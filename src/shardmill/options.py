"""Every option, defined once: name, default, help, and whether it can change the bytes.

The command line, the Python signature, the documentation and the fingerprint all come from `Options`.
"""

from __future__ import annotations

import codecs
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from shardmill.arguments import KINDS, did_you_mean
from shardmill.errors import UsageError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.output_formats import FORMATS as FORMATS
from shardmill.units import parse_bytes, parse_count, parse_share

_LARGEST = 1 << 60  # the largest amount: nobody has more bytes, and the system counts no further


def option(
    default: Any,
    *flags: str,
    help: str,
    kind: str = "text",
    metavar: str = "",
    fingerprinted: bool = False,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of `Options`. `kind`: one of `arguments.KINDS`; None is allowed where it is the default.

    `fingerprinted`: another value can give other bytes, so it is part of the fingerprint.
    """
    metadata = {
        "flags": flags,
        "help": help,
        "kind": kind,
        "metavar": metavar,
        "fingerprinted": fingerprinted,
        "choices": choices,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Val:
    """What goes to val: a `fraction` of the documents, the `first` tokens, the `tail` of each text file; or nothing."""

    fraction: float = 0.0
    first: int = 0
    tail: float = 0.0

    @property
    def nothing(self) -> bool:
        return not (self.fraction or self.first or self.tail)

    @property
    def canonical(self) -> str:
        """The value of `--val`; values that mean the same are written the same."""
        if self.first:
            return f"first:{_canonical_count(self.first)}"
        return f"tail:{self.tail}" if self.tail else f"{self.fraction:.15g}"

    @classmethod
    def parse(cls, written: str) -> Val:
        """Parse the value of `--val`; raise UsageError for what is none."""
        kind, colon, amount = written.partition(":")
        if not colon:
            return cls(fraction=parse_share(written))
        if kind == "first":
            return cls(first=parse_count(amount))
        if kind == "tail":
            return cls(tail=parse_share(amount))
        raise UsageError(f"`--val {written}` is not valid", hint="a fraction, `first:100M`, `tail:0.1`, or 0")


@dataclass(frozen=True)
class Options:
    """The options of `prepare`, as they were written."""

    tokenizer: str = option(
        "gpt2", "-t", "--tokenizer", kind="path", metavar="NAME", fingerprinted=True,
        help="tokenizer: a name, a .tiktoken or tokenizer.json file, a SentencePiece .model file, or a hub id",
    )  # fmt: skip
    pattern: str | None = option(
        None, "--pattern", metavar="P", fingerprinted=True,
        help="split pattern of a .tiktoken file: the name of a scheme, such as cl100k, or a regular expression",
    )  # fmt: skip
    specials: str = option(
        "text", "--specials", fingerprinted=True, choices=("text", "parse", "error"),
        help="how to read special tokens in the text, such as <|endoftext|>: as ordinary text, as the token itself "
        "(parse), or as a bad document (error)",
    )  # fmt: skip
    format: tuple[str, ...] = option(
        FORMATS[:1], "-f", "--format", kind="names", fingerprinted=True, choices=FORMATS,
        help="output format; repeat the option to write several formats",
    )  # fmt: skip
    input_format: str = option(
        "auto", "--input-format", fingerprinted=True, choices=("auto", *INPUT_FORMATS),
        help="format of the sources; auto detects it from their names and first bytes",
    )  # fmt: skip
    include: tuple[str, ...] = option(
        (), "--include", kind="names", metavar="GLOB", fingerprinted=True,
        help="in folders and globs, read only files whose name, or path below the folder if GLOB has a slash, matches; "
        "repeat the option for several",
    )  # fmt: skip
    exclude: tuple[str, ...] = option(
        (), "--exclude", kind="names", metavar="GLOB", fingerprinted=True,
        help="in folders and globs, skip files and folders that match; repeat the option for several",
    )  # fmt: skip
    text_field: str = option(
        "text", "--text-field", metavar="FIELD", fingerprinted=True,
        help="field or column that contains the text; a.b for a nested field",
    )  # fmt: skip
    separator: str | None = option(
        None, "--separator", metavar="S", fingerprinted=True,
        help=r"text between the documents of a text file (escapes such as \n work); by default a file is one document, "
        "and one that is the only source or has 16 MiB or more a stream of text",
    )  # fmt: skip
    eot: str | None = option(
        None, "--eot", fingerprinted=True, choices=("after", "before", "none"),
        help="position of the end-of-text token relative to its document; by default what the format's readers expect",
    )  # fmt: skip
    delimiter: str | None = option(
        None, "--delimiter", metavar="TOKEN", fingerprinted=True,
        help="special token between documents instead of end-of-text, such as <|begin_of_text|>",
    )  # fmt: skip
    val: str = option(
        "0.0005", "--val", kind="share", metavar="V", fingerprinted=True,
        help="validation split: a fraction of the documents (of a stream of text: of its spans of 64 KiB), the first N "
        "tokens (first:N), the last share F of each text file (tail:F), or 0 for none",
    )  # fmt: skip
    seed: int = option(
        0, "--seed", kind="number", metavar="N", fingerprinted=True,
        help="seed of the train/validation split, and of the order with --shuffle",
    )  # fmt: skip
    shuffle: bool = option(
        False, "--shuffle", kind="flag", fingerprinted=True,
        help="write the documents of each split in random order; needs temporary disk space of twice the tokens' size",
    )  # fmt: skip
    shard_tokens: int | str = option(
        "100M", "--shard-tokens", kind="amount", metavar="N", fingerprinted=True,
        help="tokens per shard, for formats with shards",
    )  # fmt: skip
    tail: str = option(
        "keep", "--tail", fingerprinted=True, choices=("keep", "drop"),
        help="what to do with a short last shard",
    )  # fmt: skip
    name: str | None = option(
        None, "--name", metavar="NAME", fingerprinted=True,
        help="prefix of shard names, if the format has one; by default the name of the first source",
    )  # fmt: skip
    limit: int | str | None = option(
        None, "--limit", kind="amount", metavar="N", fingerprinted=True,
        help="stop after this many documents (1000) or tokens (\"10M tokens\")",
    )  # fmt: skip
    max_bad: str = option(
        "0.1%", "--max-bad", kind="share", metavar="N",
        help="stop if more documents than this are bad, or more of plain text is not UTF-8: a number, a share (100 are "
        "then always allowed, if there are good documents too), or any for no limit",
    )  # fmt: skip
    memory: int | str | None = option(
        None, "--memory", kind="amount", metavar="SIZE",
        help="upper limit for all processes together, such as 512MB or 2GB; by default 1GB for up to two workers and "
        "256MB for each further worker, but at most half of the RAM",
    )  # fmt: skip
    workers: int | None = option(
        None, "--workers", kind="number", metavar="N",
        help="number of threads that read and encode, in several processes if one cannot keep them busy; by default "
        "the number of CPUs available to this process",
    )  # fmt: skip
    recipe: str | None = option(
        None, "--recipe", kind="path", metavar="NAME",
        help="apply the settings of a recipe to your own sources, such as a downloaded folder",
    )  # fmt: skip
    cache: str | None = option(
        None, "--cache", kind="path", metavar="DIR",
        help="folder in which to keep whole remote files for later runs; off by default",
    )  # fmt: skip
    overwrite: bool = option(
        False, "--overwrite", kind="flag", help="start again, and replace the dataset in the output folder"
    )

    @classmethod
    def typed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments, each as the type of its option; raise UsageError for another type or name."""
        known = {option.name: option for option in dataclasses.fields(cls)}
        if not isinstance(given.get("tokenizer"), (str, os.PathLike, NoneType)):
            from shardmill.tokens import options_of  # slow to import, and rarely needed

            # What is given beside the object overrides what the object says.
            given = options_of(given["tokenizer"]) | {
                name: value for name, value in given.items() if name != "tokenizer"
            }
        typed: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                hint = did_you_mean(name, known) or f"choose one of: {', '.join(known)}"
                raise UsageError(f"there is no option `{name}`", hint=hint.rstrip())
            absent = value is None and known[name].default is None
            typed[name] = None if absent else KINDS[known[name].metadata["kind"]](name, value)
        return typed

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return the options from keyword arguments; raise UsageError for a name or value that is wrong."""
        options = cls(**cls.typed(given))
        options.check()
        return options

    def check(self) -> None:
        """Raise UsageError for a value that is not allowed."""
        for f in dataclasses.fields(self):
            choices, value = f.metadata["choices"], getattr(self, f.name)
            for one in value if isinstance(value, tuple) else (value,):
                if choices and one is not None and one not in choices:
                    hint = f"{did_you_mean(str(one), choices)}choose one of: {', '.join(choices)}"
                    raise UsageError(f"`{one}` is not a {f.name.replace('_', ' ')}", hint=hint)
        if not self.format:
            raise UsageError("no output format was given", hint=f"choose one of: {', '.join(FORMATS)}")
        if len(self.format) > 1:
            from shardmill.shards import check_together

            check_together(self.format)
        for name, patterns in (("--include", self.include), ("--exclude", self.exclude)):
            if any(_is_outside(pattern) for pattern in patterns):
                # Not shown: a URL may hold a secret.
                raise UsageError(f"`{name}` takes patterns for files below a source, without `..`, and no URL")
        for name, amount in (
            ("--workers", self.workers), ("--shard-tokens", self.tokens_per_shard), ("--memory", self.memory_bytes),
            *(("--limit", limit) for limit in self.limits),
        ):  # fmt: skip
            if amount is not None and amount < 1:
                raise UsageError(f"`{name} {amount}`: must be at least 1")
            if amount is not None and amount > _LARGEST:
                raise UsageError(f"`{name}` is {amount:,}; the maximum is {_LARGEST:,}")
        if self.name is not None and not is_file_name(self.name):
            raise UsageError(f"`--name {self.name!r}` cannot be part of a file name")
        _ = self.separator_bytes, self.bad_allowed, Val.parse(self.val)

    @property
    def tokens_per_shard(self) -> int:
        return parse_count(self.shard_tokens)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def separator_bytes(self) -> bytes | None:
        """The separator with its escapes read, as UTF-8."""
        if self.separator is None:
            return None
        try:
            # latin-1 with backslashreplace keeps what is not an escape, whatever its script
            text = codecs.decode(self.separator.encode("latin-1", "backslashreplace"), "unicode_escape")
            return text.encode()
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            raise UsageError(f"the separator `{self.separator}` cannot be read: {error}") from None

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """(documents, tokens) after which to stop."""
        if self.limit is None:
            return None, None
        written = str(self.limit).strip().lower()
        if written.endswith("tokens"):
            return None, parse_count(written.removesuffix("tokens"))
        return parse_count(written.removesuffix("documents")), None

    @property
    def bad_allowed(self) -> float | int | None:
        """A share of the documents (float), a number of them (int), or None: any."""
        written = self.max_bad.strip()
        if written == "any":
            return None
        return parse_share(written) if "%" in written or "." in written else parse_count(written)

    def fingerprinted(self) -> dict[str, Any]:
        """The options that can change the bytes, as the fingerprint and the manifest have them.

        Values that mean the same are written the same.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata["fingerprinted"]}
        values["shard_tokens"] = self.tokens_per_shard
        values["val"] = Val.parse(self.val).canonical
        values["format"] = list(self.format)
        documents, tokens = self.limits
        if tokens is not None:
            values["limit"] = f"{_canonical_count(tokens)} tokens"
        elif documents is not None:
            values["limit"] = _canonical_count(documents)
        if self.separator_bytes is not None:
            values["separator"] = "".join(map(_escaped, self.separator_bytes.decode()))
        for name in ("delimiter", "shuffle"):  # datasets from before there were these options keep their fingerprint
            if not values[name]:
                del values[name]
        for name in ("include", "exclude"):  # the order means nothing
            values[name] = sorted(values[name])
            if not values[name]:
                del values[name]
        return values


def _canonical_count(amount: int) -> str:
    """A number in its usual form: 1000, 100M, 10B."""
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def _escaped(character: str) -> str:
    """The character, or its escape if it cannot be printed."""
    plain = character.isprintable() and character != "\\"
    return character if plain else character.encode("unicode_escape").decode()


def is_file_name(name: str) -> bool:
    """Whether a name can begin the names of files on any system: no folder, nothing hidden, nothing unprintable."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= 200 and name[0] != "." and name.isprintable() and not set(name) & set('/\\:*?"<>|')


def _is_outside(pattern: str) -> bool:
    """Whether a pattern can match nothing below a source."""
    return ".." in pattern.split("/") or not pattern.strip("/") or "\0" in pattern or "://" in pattern
