"""Another format, without tokenizing again: a dataset of ours, or token files that other tools have made."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from shardmill import __version__
from shardmill.budget import Budget
from shardmill.errors import DamageError, OutputError, ShardmillError, UsageError
from shardmill.journal import FOLDER, Begun, Journal, read_plan, refuse
from shardmill.manifest import NAME, manifest_bytes, read_manifest
from shardmill.options import Options
from shardmill.origin import Origin, find_origin
from shardmill.plan import fingerprint
from shardmill.progress import Done, Progress
from shardmill.quantities import show_bytes
from shardmill.rearrange import Block
from shardmill.run import Result
from shardmill.writing import SPLITS, Output, Written, open_output, write_whole, writing_to

_BLOCK = 1 << 22  # tokens moved at a time
_EVERY = 1.0  # seconds between checkpoints
_FULL = 8  # files that may wait for their name
_SHAPING = ("format", "eot", "shard_tokens", "tail", "name")


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | Sequence[str] = ("nanogpt",),
    eot: str | None = None,
    shard_tokens: int | str = "100M",
    tail: str = "keep",
    name: str | None = None,
    tokenizer: str = "gpt2",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Write the tokens at `source` again in the folder `out`, in other formats.

    `source` is a dataset, or a folder or file of nanoGPT's, build-nanogpt's, llm.c's or Megatron's; `tokenizer` says
    what made such files, and counts for nothing else. Raises a ShardmillError for all that can be expected to go
    wrong. The same call goes on from where one ended.
    """
    options = Options.of(
        {"format": format, "eot": eot, "shard_tokens": shard_tokens, "tail": tail, "name": name, "overwrite": overwrite}
    )
    folder = Path(out)
    origin = find_origin(Path(source), tokenizer)
    if folder.resolve() == origin.path.resolve():
        raise UsageError("a dataset cannot be converted into its own folder", hint="choose another `--out`")
    conversion = _Conversion(origin, folder, options, progress or Progress())
    if (folder / NAME).exists() and not options.overwrite:
        return conversion.already()
    journal = Journal(folder)
    try:
        return conversion.go(journal)
    finally:
        journal.close()


class _Conversion:
    """One conversion, from where the journal stands to the manifest."""

    def __init__(self, origin: Origin, out: Path, options: Options, progress: Progress) -> None:
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
            "options": {**shaping, **origin.spec},
        }
        self._budget = Budget(None, 1)
        self._files: list[tuple[int, str, Written]] = []
        self._unrecorded: list[tuple[int, str, Written]] = []
        self._checkpoint: Future[None] | None = None
        self._settled = time.monotonic()
        self._state: dict[str, Any] = {
            "split": 0,
            "at": 0,
            "outputs": [output.position() for output in self._outputs],
            "tokens": [dict.fromkeys(SPLITS, 0) for _ in self._outputs],
            "marks": dict.fromkeys(SPLITS, 0),
        }

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
            self._remove_all(journal)
        begun = journal.resume(self._facts)
        with ThreadPoolExecutor(1, "shardmill-keeper") as keeper:
            try:
                self._begin(journal, begun)
                self._progress.begin(self._origin.bytes, self._done(), self._budget)
                manifest = self._complete(journal, keeper)
            finally:
                self._progress.end()
                for output in self._outputs:
                    output.close()
        warnings: list[str] = []
        for output, described in zip(self._outputs, (manifest, *manifest.get("also", ())), strict=True):
            warnings += output.warnings(described["splits"])
        return Result(
            self._out, manifest, time.monotonic() - started, self._budget.peak, resumed=begun is not None,
            warnings=tuple(warnings),
        )  # fmt: skip

    def _begin(self, journal: Journal, begun: Begun | None) -> None:
        saved = begun.state if begun else None
        if begun is None:
            if foreign := [name for output in self._outputs for name in output.foreign()]:
                raise OutputError(
                    f"files of another making are in the way: {', '.join(foreign[:3])}",
                    place=str(self._out),
                    hint="choose another folder, or replace them with `--overwrite`",
                )
            self._check_disk()
        elif saved is not None:
            self._state = saved
            self._files = [(i, split, Written(**entry)) for i, split, entry in begun.files]
        for i, output in enumerate(self._outputs):
            output.restore(self._state["outputs"][i], {written.name for j, _, written in self._files if j == i})
        journal.begin(self._facts, saved)

    def _complete(self, journal: Journal, keeper: Executor) -> dict[str, Any]:
        """Move all tokens, finish all files, then say so: the manifest comes last."""
        try:
            self._move(journal, keeper)
            for output in self._outputs:
                output.finish(self._splits)
            self._keep(journal, keeper, now=True)
        except BaseException as why:
            self._stop(journal, keeper, why)
            raise
        manifest = self._manifest()
        write_whole(self._out / NAME, manifest_bytes(manifest))
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

    def _move(self, journal: Journal, keeper: Executor) -> None:
        """The main loop: blocks of each split in order, rearranged for each output, and appended."""
        state = self._state
        for i in range(state["split"], len(self._splits)):
            name = self._splits[i]
            split = self._origin.splits[name]
            for start, block in split.blocks(state["at"], _BLOCK):
                block = self._narrowed(block, start, name)
                if split.index is None and split.mark is not None:
                    state["marks"][name] += int(np.count_nonzero(block == split.mark))
                arranged = {eot: split.arranged(start, block, eot) for eot in {o.eot for o in self._outputs}}
                for j, output in enumerate(self._outputs):
                    self._append(j, output, name, arranged[output.eot])
                state["at"] = start + len(block)
                self._progress.update(self._done())
                self._keep(journal, keeper)
            for output in self._outputs:
                output.end_document()
            state["split"], state["at"] = i + 1, 0

    def _append(self, i: int, output: Output, split: str, block: Block) -> None:
        if block.ends_before:
            output.end_document()
        output.append(split, block.tokens, block.ends)
        self._state["tokens"][i][split] += len(block.tokens)

    def _narrowed(self, block: Any, start: int, name: str) -> Any:
        """The block in the width of the outputs; DamageError for an id that is none of the tokenizer's."""
        most = np.iinfo(self._origin.dtype).max
        if block.dtype != self._origin.dtype:
            wrong = np.flatnonzero((block < 0) | (block > most))
            if len(wrong):
                raise DamageError(
                    f"{int(block[wrong[0]]):,} is no token of `{self._origin.tokenizer['name']}`",
                    place=f"{self._origin.path}, {name}, token {start + int(wrong[0]):,}",
                )
        return block.astype(self._origin.dtype, copy=False)

    def _keep(self, journal: Journal, keeper: Executor, *, now: bool = False) -> None:
        """Bring everything to the disk and record it, in the background; with `now` also when it is not time yet."""
        if self._checkpoint is not None and self._checkpoint.done():
            self._wait()
        crowd = sum(output.full for output in self._outputs) >= _FULL
        due = time.monotonic() - self._settled >= _EVERY and self._checkpoint is None
        if not (now or crowd or due):
            return
        self._wait()
        self._settled = time.monotonic()
        state = self._state
        saved = {
            **state,
            "outputs": [output.position() for output in self._outputs],
            "tokens": [dict(tokens) for tokens in state["tokens"]],
            "marks": dict(state["marks"]),
        }
        settling = [output.settling() for output in self._outputs]

        def settle() -> None:
            for i, work in enumerate(settling):
                self._unrecorded += [(i, split, written) for split, written in work()]
            journal.record([[i, split, written.entry()] for i, split, written in self._unrecorded], saved)
            self._files += self._unrecorded
            self._unrecorded = []
            for output in self._outputs:
                output.recorded()

        self._checkpoint = keeper.submit(settle)
        if now:
            self._wait()

    def _wait(self) -> None:
        if self._checkpoint is not None:
            checkpoint, self._checkpoint = self._checkpoint, None
            checkpoint.result()

    def _stop(self, journal: Journal, keeper: Executor, why: BaseException) -> None:
        """Record what is done before it ends early, and say in the error that it is kept."""
        try:
            self._keep(journal, keeper, now=True)
        except OutputError as also:  # the disk is the trouble: what was recorded before stands
            if why is not also and isinstance(why, ShardmillError) and why.hint is None:
                why.hint = also.message
        if isinstance(why, ShardmillError) and why.kept is None:
            why.kept = f"{len(self._files):,} files complete; the same command goes on from there"

    def _done(self) -> Done:
        tokens = sum(self._state["tokens"][0].values())
        return Done(tokens * self._origin.width, sum(self._state["marks"].values()), tokens)

    def _manifest(self) -> dict[str, Any]:
        described: list[dict[str, Any]] = []
        for i, output in enumerate(self._outputs):
            splits = {}
            for name in self._splits:
                files = [written.entry() for j, of, written in self._files if (j, of) == (i, name)]
                dropped = output.dropped.get(name, 0)
                splits[name] = {
                    "tokens": self._state["tokens"][i][name] - dropped,
                    "documents": self._origin.documents(name, self._state["marks"][name]),
                    "bytes": self._origin.text_bytes.get(name, 0),
                    **({"dropped": dropped} if dropped else {}),
                    "files": files,
                }
            described.append({"format": output.format, "dtype": str(output.dtype), "eot": output.eot, "splits": splits})
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
            "converted": {"format": self._origin.format, "version": self._origin.version},
            "options": self._facts["options"],
            **({"also": described[1:]} if described[1:] else {}),
        }  # fmt: skip

    def _remove_all(self, journal: Journal) -> None:
        """Make the folder as if nothing had been there; the manifest goes first, so that no half dataset has one."""
        names = [NAME]
        try:
            manifest = read_manifest(self._out)
        except ShardmillError:  # none, or damaged: then what the outputs own is all that can be known
            manifest = {}
        for described in (manifest, *manifest.get("also", ())):
            names += [f["name"] for split in described.get("splits", {}).values() for f in split.get("files", ())]
        for output in self._outputs:
            names += output.foreign()
        inside = self._out.resolve()
        for name in dict.fromkeys(names):
            path = self._out / name
            # A manifest from elsewhere must not reach out of its folder.
            if path.resolve().is_relative_to(inside) and FOLDER not in path.parts:
                with writing_to(path):
                    path.unlink(missing_ok=True)
        journal.clear(plan=False)
