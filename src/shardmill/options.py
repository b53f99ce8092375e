"""What can be set, once: name, default, help, and whether it can change the bytes.

The command line, the Python signature, the documentation and the fingerprint all come from `Options`.
"""

from __future__ import annotations

import codecs
import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import Any

from shardmill.errors import UsageError
from shardmill.units import parse_bytes, parse_count, parse_share

FORMATS = ("nanogpt", "shards", "npy", "llmc", "megatron", "datatrove", "mds")
INPUT_FORMATS = ("auto", "text", "jsonl", "parquet", "arrow", "csv", "tsv")


def option(
    default: Any, *flags: str, help: str, metavar: str = "", shapes: bool = False, choices: tuple[str, ...] = ()
) -> Any:
    """A field of `Options`. `shapes`: another value can give other bytes, so it is part of the fingerprint."""
    return field(
        default=default,
        metadata={"flags": flags, "help": help, "metavar": metavar, "shapes": shapes, "choices": choices},
    )


@dataclass(frozen=True)
class Options:
    """The options of `prepare`, as they were written; `check` says what is wrong with them."""

    tokenizer: str = option(
        "gpt2", "-t", "--tokenizer", metavar="NAME", shapes=True,
        help="a name, a .tiktoken or tokenizer.json file, a SentencePiece .model, or a hub id",
    )  # fmt: skip
    pattern: str | None = option(
        None, "--pattern", metavar="P", shapes=True,
        help="the split pattern of a .tiktoken file: a scheme's name such as cl100k, or a regular expression",
    )  # fmt: skip
    specials: str = option(
        "text", "--specials", shapes=True, choices=("text", "parse", "error"),
        help="what a literal special token in the text is: ordinary text, the token itself, or a reject",
    )  # fmt: skip
    format: tuple[str, ...] = option(
        ("nanogpt",), "-f", "--format", shapes=True, choices=FORMATS, help="output format; may be given more than once"
    )
    input_format: str = option(
        "auto", "--input-format", shapes=True, choices=INPUT_FORMATS,
        help="what the sources are; auto finds it from names and first bytes",
    )  # fmt: skip
    text_field: str = option(
        "text", "--text-field", metavar="FIELD", shapes=True,
        help="the field or column that holds the text; may be nested: a.b",
    )  # fmt: skip
    separator: str | None = option(
        None, "--separator", metavar="S", shapes=True,
        help=r"what stands between documents of a text file (escapes such as \n work); none: a file is a document",
    )  # fmt: skip
    eot: str | None = option(
        None, "--eot", shapes=True, choices=("after", "before", "none"),
        help="where the end-of-text token stands; the format's own way by default",
    )  # fmt: skip
    val: str = option(
        "0.0005", "--val", metavar="V", shapes=True,
        help="what goes to the val split: a fraction, first:N tokens, tail:F of each text file, or 0",
    )  # fmt: skip
    seed: int = option(0, "--seed", metavar="N", shapes=True, help="of the split")
    shard_tokens: int | str = option(
        "100M", "--shard-tokens", metavar="N", shapes=True, help="tokens in a shard, for formats with shards"
    )
    tail: str = option(
        "keep", "--tail", shapes=True, choices=("keep", "merge", "drop"),
        help="what becomes of a last shard that is shorter than the others: merge appends it to the one before",
    )  # fmt: skip
    name: str | None = option(
        None, "--name", metavar="NAME", shapes=True,
        help="prefix of shard names, where the format has one; of the first source by default",
    )  # fmt: skip
    limit: str | None = option(
        None, "--limit", metavar="N", shapes=True,
        help="stop after so many documents (1000) or tokens (10M tokens)",
    )  # fmt: skip
    max_bad: str = option(
        "0.1%", "--max-bad", metavar="N",
        help="stop when more documents than this are bad (at least 100): a number, a share, or any",
    )  # fmt: skip
    memory: int | str | None = option(
        None, "--memory", metavar="SIZE",
        help="of the whole process: 512MB, 2GB; by default 1GB for up to two workers and 256MB for each more",
    )  # fmt: skip
    workers: int | None = option(
        None, "--workers", metavar="N", help="threads that read and encode; all CPUs of this process by default"
    )
    recipe: str | None = option(
        None, "--recipe", metavar="NAME",
        help="take the settings of a recipe, for sources of your own such as a folder that was downloaded",
    )  # fmt: skip
    cache: str | None = option(
        None, "--cache", metavar="DIR",
        help="keep remote files there, whole, and read them from there in later runs; by default nothing is kept",
    )  # fmt: skip
    overwrite: bool = option(False, "--overwrite", help="start anew, whatever stands in the output folder")

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """The options from keyword arguments; UsageError for one that does not exist or cannot be."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"
                raise UsageError(f"there is no option `{name}`", hint=hint)
        if isinstance(given.get("format"), str):
            given = {**given, "format": (given["format"],)}
        elif "format" in given:
            given = {**given, "format": tuple(dict.fromkeys(given["format"]))}
        if "val" in given:
            given = {**given, "val": str(given["val"])}
        if "max_bad" in given:
            given = {**given, "max_bad": str(given["max_bad"])}
        options = cls(**given)
        options.check()
        return options

    def check(self) -> None:
        """UsageError for a value that cannot be."""
        for f in dataclasses.fields(self):
            choices, value = f.metadata["choices"], getattr(self, f.name)
            for one in value if isinstance(value, tuple) else (value,):
                if choices and one is not None and one not in choices:
                    near = difflib.get_close_matches(str(one), choices, 1)
                    raise UsageError(
                        f"`{one}` is not a {f.name.replace('_', ' ')}",
                        hint=(f"did you mean `{near[0]}`? " if near else "") + f"there are: {', '.join(choices)}",
                    )
        if not self.format:
            raise UsageError("no output format was given", hint=f"there are: {', '.join(FORMATS)}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"`--workers {self.workers}`: at least one is needed")
        if self.tokens_per_shard < 1:
            raise UsageError(f"`--shard-tokens {self.shard_tokens}`: at least one token is needed")
        if self.separator == "":
            raise UsageError(
                "an empty separator separates nothing", hint="leave `--separator` out: a file is a document"
            )
        if self.name is not None and (not self.name or "/" in self.name or "\\" in self.name or self.name[0] == "."):
            raise UsageError(f"`--name {self.name}` cannot be part of a file's name")
        _ = self.separator_bytes, self.memory_bytes, self.bad_allowed, self.limits

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
        except (UnicodeDecodeError, UnicodeEncodeError) as why:
            raise UsageError(f"the separator `{self.separator}` cannot be read: {why}") from None

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """(documents, tokens) after which to stop."""
        if self.limit is None:
            return None, None
        written = str(self.limit).strip()
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

    def shaping(self) -> dict[str, Any]:
        """The options that can change the bytes, as they go into fingerprint and manifest."""
        shaping = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata["shapes"]}
        shaping["shard_tokens"] = self.tokens_per_shard
        shaping["format"] = list(self.format)
        return shaping
