"""Convert to another format without tokenizing again: a dataset of ours, or token files of other tools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardmill import arguments
from shardmill.dataset.stored import Origin, StoredSplit, find_origin
from shardmill.documents import Chunk, Position
from shardmill.errors import DamageError, UsageError
from shardmill.options import Options
from shardmill.run import (
    Batch,
    Budget,
    Counted,
    Destination,
    Entry,
    Producer,
    Progress,
    Result,
    Run,
    SplitCount,
    as_recorded,
    dataset_folder,
    default_progress,
    open_destination,
)
from shardmill.shards import FORMATS, Output, open_output
from shardmill.source_list import Sources
from shardmill.storage import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Reader
    from shardmill.run import Facts, Writer

_BLOCK = 1 << 22  # tokens moved at a time
_FINGERPRINTED = ("format", "eot", "shard_tokens", "tail", "name")


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | Sequence[str] = FORMATS[:1],
    eot: str | None = None,
    shard_tokens: int | str = "100M",
    tail: str = "keep",
    name: str | None = None,
    tokenizer: str = "gpt2",
    delimiter: str | None = None,
    source_eot: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write the tokens at `source` to `out`, a folder or URL, in other formats.

    `source` is a dataset, or token files made by another tool. For such files, and only for them, `tokenizer` names the
    tokenizer that made them, `delimiter` the token between documents, and `source_eot` its position (`after`, `before`,
    `none`; detected by default). Raise a ShardmillError for any expected failure. The same call resumes an unfinished
    one.
    """
    options = Options.of(
        {"format": format, "eot": eot, "shard_tokens": shard_tokens, "tail": tail, "name": name, "overwrite": overwrite,
         "tokenizer": tokenizer, "delimiter": delimiter}
    )  # fmt: skip
    arguments.instance("progress", progress, Progress)
    if source_eot is not None and arguments.text("source_eot", source_eot) not in ("after", "before", "none"):
        raise UsageError(f"`{source_eot}` is no place for EOT", hint="choose one of: after, before, none")
    origin = find_origin(dataset_folder(source), options.tokenizer, source_eot, options.delimiter)
    destination = open_destination(arguments.path("out", out))
    if destination.folder.resolve() == origin.path.resolve():
        raise UsageError("a dataset cannot be converted into its own folder", hint="choose another `--out`")
    outputs = [
        open_output(
            one,
            destination.folder,
            name=options.name or origin.name,
            dtype=origin.dtype,
            shard_tokens=options.tokens_per_shard,
            eot=options.eot,
            tail=options.tail,
            tokenizer=origin.tokenizer["name"],
            vocab_size=origin.tokenizer["vocab_size"],
            splits=tuple(origin.splits),
        )
        for one in options.format
    ]
    before = None if overwrite else destination.recorded_plan()
    tokens = StoredTokens(origin, outputs, options, source_eot, before)
    return Run(tokens, destination, outputs, progress or default_progress(), overwrite=overwrite).go()


class StoredTokens(Producer):
    """The splits of a dataset one after another, with EOT where the outputs need it.

    A position counts tokens, of all splits together.
    """

    unit = "document"

    def __init__(
        self, origin: Origin, outputs: list[Output], options: Options, source_eot: str | None, before: Facts | None
    ) -> None:
        """UsageError when documents cannot be marked as an output needs it. `before`: an earlier plan."""
        for output in outputs:
            origin.check(output.eot, output.format)
        self._origin = origin
        # The writer calls only `check` and `place` of a reader, and this class has both.
        self._reader = cast("Reader", self)
        self._eots = {output.eot for output in outputs}
        name = str(origin.path)
        self.sources = as_recorded(Sources([Source(name, name, origin.bytes, origin.version)]), before)
        self.splits = tuple(origin.splits)
        fingerprinted = {key: value for key, value in options.fingerprinted().items() if key in _FINGERPRINTED}
        self.facts = {
            "sources": list(self.sources.facts()),
            "tokenizer": origin.tokenizer,
            "options": {
                **fingerprinted,
                **origin.tokenizer_options,
                **({"source_eot": source_eot} if source_eot else {}),
            },
        }
        self.budget = Budget(None, 1)
        self.has_table = all(split.has_documents for split in origin.splits.values())
        self.numbers_documents = origin.listed_sources is None
        self.remarks = {"converted": {"from": origin.format}}
        if not self.numbers_documents:  # the table refers to the sources of the dataset that it comes from
            self.remarks["converted"] |= {"name": self.sources[0].name, "bytes": origin.bytes}
            self.remarks["sources"] = origin.listed_sources

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        tokens = sum(len(split.tokens) for split in self._origin.splits.values())
        need = sum(destination.space(output, tokens * output.dtype.itemsize, 0)[0] for output in outputs)
        destination.check_free(need)

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        """DamageError when an id is not one of the tokenizer's."""
        yield self._batches(writer.state.position.offset) if writer.state.source == 0 else iter(())

    def _batches(self, offset: int) -> Iterator[Batch]:
        before = 0
        for name, split in self._origin.splits.items():
            for start, block in split.blocks(max(0, offset - before), _BLOCK):
                yield self._batch(name, split, before, start, self._narrowed(block, start, name))
            before += len(split.tokens)
        yield Batch([Entry(self._reader, 0, None)], [], {})

    def _batch(self, name: str, split: StoredSplit, before: int, start: int, block: NDArray[Any]) -> Batch:
        end = start + len(block)
        streams = {eot: split.stream(name, start, block, eot) for eot in self._eots}
        documents, size = self._origin.amounts(name, start, block)
        through = (before + end) * self._origin.width
        chunk = Chunk(0, before + start, Position(before + end), through=through)
        eots = 0 if split.eot == "none" else int(np.count_nonzero(block == split.eot_id))
        counted = Counted(documents, empty=0, lines=0, replaced=0, rejects=[], tokens=len(block) - eots)
        return Batch([Entry(self._reader, 0, chunk)], [counted], streams, split_count=SplitCount(name, documents, size))

    def _narrowed(self, block: NDArray[Any], start: int, name: str) -> NDArray[Any]:
        """The block in the type of the outputs; DamageError when an id is not one of the tokenizer's."""
        if len(block) and (int(block.max()) > self._origin.largest or int(block.min()) < 0):
            wrong = int(np.argmax((block > self._origin.largest) | (block < 0)))
            raise DamageError(
                f"{int(block[wrong]):,} is no token of `{self._origin.tokenizer['name']}`",
                place=self.place(wrong + start, -1, name),
            )
        return block.astype(self._origin.dtype, copy=False)

    def check(self) -> None:
        """The stored files were checked when they were opened."""

    def place(self, record: int, byte: int, split: str = "") -> str:
        """A token's place, for people."""
        return f"{self._origin.path}, {split}, token {record:,}"
