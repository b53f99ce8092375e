"""The end of the line: results in plan order → files, counts, rejects."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from json.encoder import encode_basestring
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.documents.chunks import Position
from shardmill.documents.oversize import TooLarge
from shardmill.errors import BudgetError, MismatchError
from shardmill.run.checkpoints import Checkpoints
from shardmill.run.dealing import Counted, Stream
from shardmill.run.manifest import SourceLines, as_bytes, json_line
from shardmill.run.progress import Done
from shardmill.run.rejects import check_rejects, reject_line
from shardmill.run.worker import OPEN, Entry, Milled
from shardmill.shards import SPLITS, Output
from shardmill.storage import PARTIAL, PartialFile

if TYPE_CHECKING:
    from shardmill.documents.chunks import Chunk
    from shardmill.options import Val
    from shardmill.run.budget import Budget
    from shardmill.run.journal import Begun, Journal
    from shardmill.run.mirror import Mirror
    from shardmill.run.plan import Plan
    from shardmill.storage import Source

REJECTS = "rejects.jsonl"
_TOGETHER = 1024  # lines of it that are written at once


@dataclass
class State:
    """All that a later run needs to go on from here. It is small, whatever has been read."""

    source: int = 0
    position: Position = Position()
    split: str = ""
    """Of the document that is open at the position."""
    carried: int = 0
    """Bytes of that document that count for no split yet."""
    counts: list[dict[str, dict[str, int]]] = field(default_factory=list)
    here: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("documents", "empty", "rejected"), 0))
    """Counts of the source that is open at the position."""
    totals: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("documents", "empty", "rejected", "replaced", "fallbacks"), 0)
    )
    rejects_bytes: int = 0
    sources_bytes: int = 0
    engine: dict[str, str] = field(default_factory=dict)
    """Which libraries have encoded so far, and a hash of what they give for a hard text."""

    @classmethod
    def load(cls, saved: dict[str, Any]) -> State:
        return cls(**{**saved, "position": Position(*saved["position"])})


class Writer:
    """Appends results to all outputs. One thread uses it; `keeper` runs its checkpoints in another."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        journal: Journal,
        outputs: list[Output],
        val: Val,
        budget: Budget,
        keeper: Executor,
        mirror: Mirror | None = None,
    ) -> None:
        self._plan, self._out, self._outputs, self._budget, self._mirror = plan, out, outputs, budget, mirror
        self._working = journal.folder
        self._first = val.first
        self._allowed = plan.options.bad_allowed
        self.wanted = ("train",) if val.nothing else SPLITS
        self.state = State(
            counts=[{s: dict.fromkeys(("tokens", "documents", "bytes"), 0) for s in SPLITS} for _ in outputs]
        )
        self.checkpoints = Checkpoints(out, journal, outputs, keeper, lambda: asdict(self.state), mirror)
        self._before = self._through = 0
        self._left: list[bytes] = []

    def begin(self, facts: dict[str, Any], begun: Begun | None, engine: dict[str, str]) -> None:
        """Start from nothing, or from what an earlier run has recorded; OutputError if other files are in the way.

        `engine`: what encodes now. MismatchError if what has been written was encoded by one that gives other tokens.
        """
        if begun and begun.state:
            _check_engine(begun.state.get("engine") or engine, engine)
        if saved := self.checkpoints.begin(facts, begun):
            self.state = State.load({key: value for key, value in saved.items() if key != "outputs"})
            self._before = self._plan.sources.bytes_before(self.state.source)
        self.state.engine = engine
        self._rejects = PartialFile(self._out / REJECTS, self.state.rejects_bytes)
        self._sources = PartialFile(self._working / "sources.jsonl", self.state.sources_bytes)
        self.checkpoints.beside = [self._rejects, self._sources]
        if self._mirror:
            self._mirror.adopt()

    def take(self, milled: Milled) -> None:
        """Append the next result in plan order, and checkpoint when it is time; BudgetError where a record has no room.

        That comes before anything of the result is written, so that all before it can be recorded.
        """
        self._refuse_too_large(milled)
        with self.checkpoints.step(final=milled.final):
            self._take(milled)
        self.checkpoints.keep()

    def _take(self, milled: Milled) -> None:
        if milled.piece and milled.piece.begins:
            self.state.split = next(iter(milled.streams[self._outputs[0].eot]), "train")
        for i, output in enumerate(self._outputs):
            for split, stream in milled.streams[output.eot].items():
                self._append(i, self.state.split if split == OPEN else split, stream, milled.piece)
        if milled.piece:
            # Outputs may differ in where the document ends, but not in how much of it has been seen.
            seen = next(iter(milled.streams[self._outputs[0].eot].values())).row_bytes.sum()
            self.state.carried = 0 if milled.piece.ends else self.state.carried + int(seen)
        if milled.closes_spans:
            for output in self._outputs:
                output.end_document()
        self.state.totals["fallbacks"] += milled.fallbacks
        counted = iter(milled.counted)
        for entry in milled.entries if milled.final else ():
            if entry.chunk is None:
                self._end_source(entry)
            elif entry.chunk.whole:
                self._count_whole(entry, entry.chunk, next(counted))
            else:
                self._count(entry, entry.chunk, next(counted))
        self._list_sources()

    def finish(self) -> dict[str, dict[str, Any]]:
        """End all files and record that; gives those that stand beside the outputs, as the manifest says it."""
        with self.checkpoints.step():
            for output in self._outputs:
                output.finish(self.wanted)
        self.checkpoints.keep(now=True)
        self.checkpoints.beside = [self._sources]
        if self.state.rejects_bytes:
            written = self._rejects.finish(0)
            return {"rejects": {"name": written.name, "bytes": written.bytes, "sha256": written.sha256}}
        self._rejects.close()
        self._rejects.remove()
        return {}

    def close(self) -> None:
        """Let go of all files as they are."""
        for output in self._outputs:
            output.close()
        self._rejects.close()
        self._sources.close()

    def done(self) -> Done:
        """How far it has come, for those who watch."""
        totals = self.state.totals
        tokens = sum(count["tokens"] for count in self.state.counts[0].values())
        return Done(self._before + self._through, totals["documents"], tokens, totals["rejected"])

    def kept(self) -> str | None:
        """What an early end leaves, in words; None: nothing."""
        whole = len(self.checkpoints.files)
        if not whole and not self.state.totals["documents"]:
            return None
        done = f"{whole:,} file{'s are' if whole != 1 else ' is'} complete; " if whole else ""
        return f"{done}the same command goes on from the last checkpoint"

    def sources(self) -> SourceLines:
        """What was found in each source."""
        with open(self._sources.path.with_name(self._sources.path.name + PARTIAL), "rb") as lines:
            return SourceLines(lines)

    def _append(self, i: int, split: str, stream: Stream, piece: Chunk | None) -> None:
        output, count = self._outputs[i], self.state.counts[i]
        tokens, closes, ends, row_ends, row_bytes = stream
        cut = max(0, self._first - count["val"]["tokens"]) if self._first else 0
        for name, start, end in (("val", 0, min(cut, len(tokens))), (split, cut, len(tokens))):
            if end <= start:
                continue
            output.append(name, tokens[start:end], ends[(ends > start) & (ends <= end)] - start)
            mine = count[name]
            mine["tokens"] += end - start
            mine["documents"] += int(np.count_nonzero((closes > start) & (closes <= end)))
            if piece is None:
                mine["bytes"] += int(row_bytes[(row_ends > start) & (row_ends <= end)].sum())
            elif piece.ends and end == len(tokens):
                mine["bytes"] += self.state.carried + int(row_bytes.sum())

    def _count(self, entry: Entry, chunk: Chunk, counted: Counted) -> None:
        state, source = self.state, self._plan.sources[entry.source]
        first = state.position.records
        for amounts in (state.here, state.totals):
            amounts["documents"] += counted.documents
            amounts["empty"] += counted.empty
            amounts["rejected"] += len(counted.rejects)
        state.totals["replaced"] += counted.replaced
        # No call of the system for each: it lets go of the interpreter, and workers who judge bad lines hold that long.
        for some in range(0, len(counted.rejects), _TOGETHER):
            lines = bytearray()
            for reject in counted.rejects[some : some + _TOGETHER]:
                number = first + reject.record + 1 if reject.record >= 0 else 0
                byte = chunk.start + reject.byte if reject.byte >= 0 else -1
                lines += reject_line(source.name, entry.reader.unit, number, byte, reject.reason, reject.excerpt)
            self._rejects.append(bytes(lines))
            state.rejects_bytes += len(lines)
        self._through = chunk.through if chunk.through >= 0 else chunk.end
        state.source = entry.source
        state.position = Position(chunk.end, first + counted.lines, not chunk.ends)
        if counted.rejects:
            last = counted.rejects[-1]
            where = entry.reader.place(first + last.record, chunk.start + last.byte if last.byte >= 0 else -1)
            read = state.totals["documents"] + state.totals["empty"] + state.totals["rejected"]
            check_rejects(
                state.totals["rejected"], read, self._allowed, f"{source.name}, {where}", last.reason,
                f"{self._mirror.url if self._mirror else self._out}/{REJECTS}{PARTIAL}",
            )  # fmt: skip

    def _refuse_too_large(self, milled: Milled) -> None:
        source, behind = self.state.source, self.state.position.records
        chunks = [(entry, entry.chunk) for entry in milled.entries if entry.chunk is not None]
        for (entry, chunk), counted in zip(chunks, milled.counted, strict=False):
            if entry.source != source:
                source, behind = entry.source, 0
            if counted.rejects and isinstance(found := counted.rejects[0], TooLarge):
                place = f"{self._plan.sources[source].name}, {entry.reader.place(behind + found.record, chunk.start)}"
                if found.hint:
                    raise BudgetError(found.reason, place=place, hint=found.hint)
                raise self._budget.too_small(found.reason, found.size, place)
            behind += counted.lines

    def leave_source(self) -> None:
        """No more of the present source is wanted."""
        if self.state.position != Position():
            with self.checkpoints.step():
                self._leave(self.state.source)
                self._list_sources()

    def _end_source(self, entry: Entry) -> None:
        entry.reader.check()
        self._leave(entry.source)

    def _count_whole(self, entry: Entry, chunk: Chunk, counted: Counted) -> None:
        """Count sources of which each is a document, empty or rejected, and write them down."""
        state, first, filled = self.state, chunk.source, counted.filled
        assert filled is not None
        state.totals["replaced"] += counted.replaced
        if counted.rejects:
            rejects = {reject.record: [replace(reject, record=0)] for reject in counted.rejects}
            for i, full in enumerate(filled.tolist()):
                bad = rejects.get(i, [])
                one = Counted(int(full), int(not full and not bad), 0, 0, bad)
                self._count(entry._replace(source=first + i), chunk, one)
                self._leave(first + i)
            return
        state.totals["documents"] += counted.documents
        state.totals["empty"] += counted.empty
        sources = self._plan.sources
        self._left.append(as_bytes("".join(map(_line, sources.iter_from(first), filled.tolist()))))
        self._before += sum(sources.sizes[first : first + chunk.whole])
        state.source, state.position = first + chunk.whole, Position()

    def _list_sources(self) -> None:
        """Write down the sources that were left."""
        lines = b"".join(self._left)
        self._left.clear()
        if lines:
            self._sources.append(lines)
            self.state.sources_bytes += len(lines)

    def _leave(self, index: int) -> None:
        source = self._plan.sources[index]
        self._left.append(json_line({"name": source.name, "bytes": source.size, **self.state.here}))
        self._before, self._through = self._before + (source.size or self._through), 0
        self.state.here = dict.fromkeys(self.state.here, 0)
        self.state.source, self.state.position = index + 1, Position()


def _line(source: Source, filled: bool) -> str:
    """What `_leave` writes of a source that is one document or none: the same bytes, in an eighth of the time."""
    counts = '"documents": 1, "empty": 0' if filled else '"documents": 0, "empty": 1'
    return f'{{"name": {encode_basestring(source.name)}, "bytes": {source.size}, {counts}, "rejected": 0}}\n'


def _check_engine(before: dict[str, str], now: dict[str, str]) -> None:
    """MismatchError where another release of a library gives other tokens than the run was begun with."""
    if before["sha256"] != now["sha256"]:
        raise MismatchError(
            f"the run was begun with {before['libraries']}, and {now['libraries']} gives other tokens",
            hint="install the former release again, or start anew with `--overwrite`",
        )
