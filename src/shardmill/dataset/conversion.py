"""Another format, without tokenizing again: a dataset of ours, or token files that other tools have made."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import __version__, arguments
from shardmill.dataset.stored import Origin, find_origin
from shardmill.errors import DamageError, OutputError, UsageError
from shardmill.options import Options
from shardmill.run.budget import Budget
from shardmill.run.checkpoints import Checkpoints, checkpoint_thread, describe_outputs, remove_dataset, warn
from shardmill.run.journal import Journal, read_plan, refuse, tidy
from shardmill.run.main import Result
from shardmill.run.manifest import NAME, dataset_folder, manifest_json, read_manifest
from shardmill.run.plan import fingerprint
from shardmill.run.progress import Done, Progress
from shardmill.shards import FORMATS, SPLITS, open_output
from shardmill.storage import Written, waiting_words, write_whole
from shardmill.units import show_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 22  # tokens moved at a time
_SHAPING = ("format", "eot", "shard_tokens", "tail", "name")


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
    """Write the tokens at `source` again in the folder `out`, in other formats.

    `source` is a dataset, or a folder or file of token files that another tool has made. For such, and for nothing
    else, `tokenizer` says what made them, `delimiter` which token is between documents, and `source_eot` where it
    stands (`after`, `before`, `none`; found out by default). Raises a ShardmillError for all that can be expected to go
    wrong. The same call goes on from where one ended.
    """
    options = Options.of(
        {"format": format, "eot": eot, "shard_tokens": shard_tokens, "tail": tail, "name": name, "overwrite": overwrite,
         "tokenizer": tokenizer, "delimiter": delimiter}
    )  # fmt: skip
    arguments.instance("progress", progress, Progress)
    if source_eot not in (None, "after", "before", "none"):
        raise UsageError(f"`{source_eot}` is no place for EOT", hint="there are: after, before, none")
    folder = dataset_folder(out)
    origin = find_origin(dataset_folder(source), options.tokenizer, source_eot, options.delimiter)
    if folder.resolve() == origin.path.resolve():
        raise UsageError("a dataset cannot be converted into its own folder", hint="choose another `--out`")
    conversion = _Conversion(origin, folder, options, source_eot, progress or Progress())
    if (folder / NAME).exists() and not options.overwrite:
        already = conversion.already()
        tidy(folder)
        return already
    journal = Journal(folder)
    try:
        return conversion.go(journal)
    finally:
        journal.close()


@dataclass
class _State:
    """How far a conversion has come."""

    tokens: list[dict[str, int]]
    """Written to each output, by split."""
    split: int = 0
    """The split that is being read, by number."""
    at: int = 0
    """The token of it that comes next."""
    marks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    """End-of-text tokens that were read, by split."""


class _Conversion:
    """One conversion, from where the journal stands to the manifest."""

    def __init__(self, origin: Origin, out: Path, options: Options, source_eot: str | None, progress: Progress) -> None:
        """UsageError when it cannot be done as it is asked for; nothing is touched before `go`."""
        self._origin, self._out, self._options, self._progress = origin, out, options, progress
        self._splits = tuple(origin.splits)
        self._outputs = [
            open_output(
                one,
                out,
                name=options.name or origin.name,
                dtype=origin.dtype,
                shard_tokens=options.tokens_per_shard,
                eot=options.eot,
                tail=options.tail,
                tokenizer=origin.tokenizer["name"],
                vocab_size=origin.tokenizer["vocab_size"],
                splits=self._splits,
            )
            for one in options.format
        ]
        for output in self._outputs:
            origin.check(output.eot)
        shaping = {key: value for key, value in options.shaping().items() if key in _SHAPING}
        self._facts: dict[str, Any] = {
            "sources": [[str(origin.path), origin.bytes, origin.version]],
            "tokenizer": origin.tokenizer,
            "options": {**shaping, **origin.spec, **({"source_eot": source_eot} if source_eot else {})},
        }
        self._budget = Budget(None, 1)
        self._state = _State([dict.fromkeys(SPLITS, 0) for _ in self._outputs])

    def already(self) -> Result:
        """The complete dataset of the same call; MismatchError if it is of another."""
        manifest = read_manifest(self._out)
        if manifest["fingerprint"] != fingerprint(self._facts):
            known = {"options": manifest["options"], "tokenizer": manifest["tokenizer"], "sources": []}
            refuse(read_plan(self._out) or known, self._facts, "the dataset")
        return Result(self._out, manifest, already=True)

    def go(self, journal: Journal) -> Result:
        started = time.monotonic()
        if self._options.overwrite:
            remove_dataset(self._out, journal, self._outputs)
        begun = journal.resume(self._facts)
        if begun is None:
            self._check_disk()
        try:
            with checkpoint_thread() as keeper:
                checkpoints = Checkpoints(self._out, journal, self._outputs, keeper, lambda: asdict(self._state))
                if saved := checkpoints.begin(self._facts, begun):
                    self._state = _State(**{key: value for key, value in saved.items() if key != "outputs"})
                self._progress.trouble = waiting_words
                self._progress.begin(self._origin.bytes, self._done(), self._budget)
                manifest = self._complete(checkpoints, journal)
        finally:
            self._progress.end()
            for output in self._outputs if not journal.stuck else ():  # only now: the keeper may have been using them
                output.close()
        return Result(
            self._out,
            manifest,
            time.monotonic() - started,
            self._budget.peak,
            warnings=warn(self._outputs, manifest),
            resumed=begun is not None,
        )

    def _complete(self, checkpoints: Checkpoints, journal: Journal) -> dict[str, Any]:
        """Move all tokens, finish all files, then say so: the manifest comes last."""
        try:
            self._move(checkpoints)
            with checkpoints.step():
                for output in self._outputs:
                    output.finish(self._splits)
            checkpoints.keep(now=True)
        except BaseException as why:
            checkpoints.stop(why, f"{len(checkpoints.files):,} files complete; the same command goes on from there")
            raise
        manifest = self._manifest(checkpoints.files)
        write_whole(self._out / NAME, manifest_json(manifest))
        journal.clear(plan=True)
        return manifest

    def _check_disk(self) -> None:
        tokens = sum(len(split.tokens) for split in self._origin.splits.values())
        need = tokens * sum(output.dtype.itemsize for output in self._outputs)
        free = shutil.disk_usage(self._out).free
        if need > free:
            raise OutputError(
                f"the output would take about {show_bytes(need)}, and {show_bytes(free)} are free", place=str(self._out)
            )

    def _move(self, checkpoints: Checkpoints) -> None:
        """The main loop: blocks of each split in order, rearranged for each output, and appended."""
        for i in range(self._state.split, len(self._splits)):
            name = self._splits[i]
            for start, block in self._origin.splits[name].blocks(self._state.at, _BLOCK):
                self._take(checkpoints, name, start, self._narrowed(block, start, name))
                self._progress.update(self._done())
                checkpoints.keep()
            with checkpoints.step():
                for output in self._outputs:
                    output.end_document()
                self._state.split, self._state.at = i + 1, 0

    def _take(self, checkpoints: Checkpoints, name: str, start: int, block: NDArray[Any]) -> None:
        split = self._origin.splits[name]
        arranged = {eot: split.arranged(start, block, eot) for eot in {output.eot for output in self._outputs}}
        with checkpoints.step():
            for i, output in enumerate(self._outputs):
                tokens, ends, ends_before = arranged[output.eot]
                if ends_before:
                    output.end_document()
                output.append(name, tokens, ends)
                self._state.tokens[i][name] += len(tokens)
            if split.mark is not None:
                self._state.marks[name] += int(np.count_nonzero(block == split.mark))
            self._state.at = start + len(block)

    def _narrowed(self, block: NDArray[Any], start: int, name: str) -> NDArray[Any]:
        """The block in the width of the outputs; DamageError for an id that is none of the tokenizer's."""
        if len(block) and (int(block.max()) > self._origin.largest or int(block.min()) < 0):
            wrong = int(np.argmax((block > self._origin.largest) | (block < 0)))
            raise DamageError(
                f"{int(block[wrong]):,} is no token of `{self._origin.tokenizer['name']}`",
                place=f"{self._origin.path}, {name}, token {start + wrong:,}",
            )
        return block.astype(self._origin.dtype, copy=False)

    def _done(self) -> Done:
        tokens = sum(self._state.tokens[0].values())
        return Done(tokens * self._origin.width, sum(self._state.marks.values()), tokens)

    def _manifest(self, files: list[tuple[int, str, Written]]) -> dict[str, Any]:
        counts = [
            {
                name: {
                    "tokens": tokens[name],
                    "documents": self._origin.documents(name, self._state.marks[name]),
                    "bytes": self._origin.text_bytes.get(name, 0),
                }
                for name in self._splits
            }
            for tokens in self._state.tokens
        ]
        described = describe_outputs(self._outputs, files, counts)
        documents = sum(split["documents"] for split in described[0]["splits"].values())
        return {
            "shardmill": __version__,
            "fingerprint": fingerprint(self._facts),
            **described[0],
            "tokenizer": self._origin.tokenizer,
            "sources": [{"name": str(self._origin.path), "bytes": self._origin.bytes, "documents": documents,
                         "empty": 0, "rejected": 0}],
            "documents": documents,
            "empty": 0,
            "rejected": 0,
            "replaced": 0,
            "converted": {"from": self._origin.format},
            "options": self._facts["options"],
            **({"also": described[1:]} if described[1:] else {}),
        }  # fmt: skip
