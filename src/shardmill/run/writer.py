"""The end of the path: batches in plan order → files, counts, rejects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from json.encoder import encode_basestring as _quoted
from typing import TYPE_CHECKING, Any

from shardmill.documents import Position, TooLarge
from shardmill.errors import MismatchError, SourceError
from shardmill.run.batch import ODD, BadPart, Batch, Counted, Entry, OpenDocument, Stream
from shardmill.run.checkpoints import Checkpoints
from shardmill.run.documents_table import DocumentsTable
from shardmill.run.manifest import REJECTS, SourceLines, as_bytes, json_line
from shardmill.run.progress import Done
from shardmill.run.splits import Share, shares
from shardmill.shards import SPLITS, Output
from shardmill.storage import PARTIAL, PartialFile
from shardmill.troubles import FEWEST_BAD, too_much_invalid

if TYPE_CHECKING:
    from shardmill.documents import Chunk
    from shardmill.run.destination import Destination
    from shardmill.run.journal import SavedRun
    from shardmill.run.loop import Producer
    from shardmill.storage import Source

_TOGETHER = 1024  # lines of rejects that are written at once


@dataclass
class State:
    """What a later run needs to continue from here. It stays small, however much has been read."""

    source: int = 0
    position: Position = Position()
    split: str = ""
    """Of the document that is open at the position; empty: there is none."""
    carried: int = 0
    """Bytes of that document that are not counted for a split yet."""
    counts: list[dict[str, dict[str, int]]] = field(default_factory=list)
    here: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("documents", "empty", "rejected", "tokens"), 0))
    """Counts of the source that is open at the position."""
    unit: str = "byte"
    """What a place in that source counts."""
    odd: dict[str, int] = field(default_factory=dict)
    """What was found of `ODD` in that source; only what was."""
    totals: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("documents", "empty", "rejected", "replaced", "fallbacks"), 0)
    )
    rejects_bytes: int = 0
    sources_bytes: int = 0
    merge: dict[str, Any] = field(default_factory=dict)
    """How far a merge has come: the part, and of it rows, places for tokens, and records of an open source; the pieces
    that were found so far, and parts that were removed."""
    engine: dict[str, str] = field(default_factory=dict)
    """The libraries that have encoded so far, and a hash of their tokens for a difficult text."""

    @property
    def open(self) -> OpenDocument:
        """The document that is open at the position."""
        return OpenDocument(self.split, self.carried)

    @classmethod
    def load(cls, saved: dict[str, Any]) -> State:
        return cls(**{**saved, "position": Position(*saved["position"])})


class Writer:
    """Appends batches to all outputs. One thread uses it; `thread` runs its checkpoints."""

    def __init__(self, producer: Producer, destination: Destination, outputs: list[Output], thread: Executor) -> None:
        self._producer, self._destination, self._outputs = producer, destination, outputs
        self.state = State(
            counts=[{s: dict.fromkeys(("tokens", "documents", "bytes"), 0) for s in SPLITS} for _ in outputs]
        )
        self.table = (
            DocumentsTable(destination.folder, producer.splits, numbered=producer.numbers_documents)
            if producer.has_table
            else None
        )
        files = [*outputs, self.table] if self.table else outputs
        self.checkpoints = Checkpoints(destination, files, thread, self._saved)
        self._bytes_before = self._bytes_of_source = 0
        self._source_lines: list[bytes] = []
        self._last_reason = ""

    def begin(self, saved_run: SavedRun | None) -> None:
        """Start from nothing, or from what an earlier run has recorded; OutputError if other files are in the way.

        MismatchError if that run used libraries that give other tokens than the present ones.
        """
        engine = self._producer.engine
        if saved_run and saved_run.state:
            _check_release(saved_run.state)
            _check_engine(saved_run.state["engine"], engine)
        if saved := self.checkpoints.begin(self._producer.facts, saved_run):
            self.state = State.load({key: value for key, value in saved.items() if key != "outputs"})
            self._bytes_before = self._producer.sources.bytes_before(self.state.source)
        self.state.engine = engine
        self._rejects = PartialFile(self._destination.folder / REJECTS, self.state.rejects_bytes)
        self._sources = PartialFile(self._destination.journal.folder / "sources.jsonl", self.state.sources_bytes)
        self.checkpoints.extra_files = [self._rejects, self._sources]
        self._destination.restored()

    def _saved(self) -> dict[str, Any]:
        """The state as the journal records it."""
        self.state.rejects_bytes, self.state.sources_bytes = self._rejects.length, self._sources.length
        return asdict(self.state)

    def write(self, batch: Batch) -> None:
        """Append the next batch in plan order, and make a checkpoint when it is time.

        BudgetError for a record that is too large and SourceError for a bad part of one, before anything of the batch
        is written: so what came before it can be recorded.
        """
        if batch.empty:
            return
        self._refuse_parts(batch)
        with self.checkpoints.step(final=batch.final):
            self._write(batch)
        self.checkpoints.keep()

    def _write(self, batch: Batch) -> None:
        for i, output in enumerate(self._outputs if batch.streams else ()):
            count = self.state.counts[i]
            first = max(0, self._producer.first - count["val"]["tokens"]) if self._producer.first else 0
            written = list(append_batch(output, batch.streams[output.eot], first=first))
            for share in written:
                count[share.split]["tokens"] += len(share.tokens)
                if i == 0 and self.table:
                    self.table.append(share.split, share.rows)
            for amounts in written if batch.split_count is None else [batch.split_count]:
                count[amounts.split]["documents"] += amounts.documents
                count[amounts.split]["bytes"] += amounts.bytes
        if batch.open is not None:
            self.state.split, self.state.carried = batch.open
        self.state.here["documents"] += batch.ended
        self.state.totals["documents"] += batch.ended
        self.state.totals["fallbacks"] += batch.fallbacks
        counted = iter(batch.counted)
        for entry in batch.entries if batch.final else ():
            if entry.chunk is None:
                entry.reader.check()
                self.state.unit = entry.reader.unit
                self._finish_source(entry.source)
            elif entry.chunk.whole:
                self._count_whole(entry, entry.chunk, next(counted))
            else:
                self._count(entry, entry.chunk, next(counted))
        if batch.after is not None:
            batch.after(self)
        if self._source_lines:
            self._sources.append(b"".join(self._source_lines))
            self._source_lines.clear()

    def add_rejects(self, lines: list[bytes]) -> None:
        """Append rejects that another run has found."""
        self._rejects.append(b"".join(lines))
        self._last_reason = json.loads(lines[-1])["reason"]

    def add_sources(self, lines: bytes) -> None:
        """Append what another run has found in some sources."""
        self._sources.append(lines)

    def end_source(self) -> None:
        """End the source that is being read; called by the `after` of a batch."""
        if self.state.position != Position() or any(self.state.here.values()):  # an earlier part may have begun it
            self._finish_source(self.state.source)

    def pass_bytes(self, count: int) -> None:
        """Count bytes of the sources as done, for progress."""
        self._bytes_before += count

    def check_rejects(self, where: str) -> None:
        """Raise SourceError when rejects were added and `--max-bad` does not allow so many."""
        totals, allowed = self.state.totals, self._producer.bad_allowed
        bad, read = totals["rejected"], totals["documents"] + totals["empty"] + totals["rejected"]
        most = max(FEWEST_BAD, allowed * read) if isinstance(allowed, float) else allowed
        if self._last_reason and most is not None and bad > most:
            raise self._too_many_rejects(f"{bad:,} of {read:,} documents are bad, more than `--max-bad` allows", where)

    def add_odd(self, found: dict[str, int]) -> None:
        """Count what was found of `ODD` in the source that is open."""
        for kind, count in found.items():
            if count:
                self.state.odd[kind] = self.state.odd.get(kind, 0) + count

    def check_invalid(self, where: str) -> None:
        """Raise SourceError when more invalid UTF-8 was replaced than `--max-bad` allows, as a share of the text."""
        state, allowed = self.state, self._producer.bad_allowed
        invalid = state.totals["replaced"]
        text = state.carried + sum(split["bytes"] for split in state.counts[0].values())
        most = max(FEWEST_BAD, allowed * text) if isinstance(allowed, float) else allowed
        if most is not None and invalid > most:
            raise too_much_invalid(invalid, text, where)

    def _too_many_rejects(self, what: str, where: str | None) -> SourceError:
        return SourceError(
            what + (f"; the last: {self._last_reason}" if self._last_reason else ""),
            place=where,
            hint=f"see `{self._destination.shown}/{REJECTS}{PARTIAL}`; "
            "`--max-bad any` sets all such documents aside and continues",
        )

    def finish(self) -> dict[str, dict[str, Any]]:
        """End all files and record that; return the manifest's entry for the rejects, if there are any.

        SourceError when every document was rejected, unless `--max-bad` is a number or `any`.
        """
        bad, good = self.state.totals["rejected"], self.state.totals["documents"]
        if bad and not good and isinstance(self._producer.bad_allowed, float):
            raise self._too_many_rejects(f"no document was written; bad documents: {bad:,}", None)
        with self.checkpoints.step():
            for output in self._outputs:
                output.finish(self._producer.splits)
            if self.table:
                self.table.finish(self._outputs[0].dropped)
        self.checkpoints.keep(now=True)
        self.checkpoints.extra_files = [self._sources]
        if self._rejects.length:
            written = self._rejects.finish(0)
            return {"rejects": {"name": written.name, "bytes": written.bytes, "sha256": written.sha256}}
        self._rejects.close()
        self._rejects.remove()
        return {}

    def close(self) -> None:
        """Close all files as they are."""
        for output in (*self._outputs, *([self.table] if self.table else [])):
            output.close()
        self._rejects.close()
        self._sources.close()

    def done(self) -> Done:
        """How far it has come, for progress."""
        totals = self.state.totals
        tokens = sum(count["tokens"] for count in self.state.counts[0].values())
        sources, at = self._producer.sources, self.state.source
        source = sources[at].name if at < len(sources) else ""
        return Done(self._bytes_before + self._bytes_of_source, totals["documents"], tokens, totals["rejected"], source)

    def kept(self) -> str | None:
        """A sentence about what is kept when the run ends early; None: nothing is."""
        whole = len(self.checkpoints.files)
        if not whole and not self.state.totals["documents"]:
            return None
        done = f"{whole:,} file{'s are' if whole != 1 else ' is'} complete; " if whole else ""
        sources = self._producer.sources
        piped = any(source.size is None for source in islice(sources.iter_from(self.state.source), 1))
        again = ", if the pipe delivers the same text again" if piped else ""
        return f"{done}the same command resumes from the last checkpoint{again}"

    def sources(self) -> SourceLines:
        """What was found in each source."""
        with open(self._sources.path.with_name(self._sources.path.name + PARTIAL), "rb") as lines:
            return SourceLines(lines)

    def _count(self, entry: Entry, chunk: Chunk, counted: Counted) -> None:
        state, source = self.state, self._producer.sources[entry.source]
        first = state.position.records
        for amounts in (state.here, state.totals):
            amounts["documents"] += counted.documents
            amounts["empty"] += counted.empty
            amounts["rejected"] += len(counted.rejects)
        state.here["tokens"] += counted.tokens
        state.totals["replaced"] += counted.replaced
        self.add_odd({} if counted.odd is None else dict(zip(ODD, counted.odd[0].tolist(), strict=True)))
        # Many at a time: every write releases the interpreter's lock, and workers that parse bad lines hold it long.
        for first_of_group in range(0, len(counted.rejects), _TOGETHER):
            lines = bytearray()
            for reject in counted.rejects[first_of_group : first_of_group + _TOGETHER]:
                number = first + reject.record + 1 if reject.record >= 0 else 0
                byte = chunk.start + reject.byte if reject.byte >= 0 else -1
                lines += reject_line(source.name, entry.reader.unit, number, byte, reject.reason, reject.excerpt)
            self._rejects.append(bytes(lines))
        self._bytes_of_source = chunk.through if chunk.through >= 0 else chunk.end
        state.source, state.unit = entry.source, entry.reader.unit
        state.position = chunk.after._replace(records=first + counted.lines)
        if counted.replaced:
            self.check_invalid(f"{source.name}, byte {chunk.start:,}")
        if counted.rejects:
            last = counted.rejects[-1]
            self._last_reason = last.reason
            where = entry.reader.place(first + last.record, chunk.start + last.byte if last.byte >= 0 else -1)
            self.check_rejects(f"{source.name}, {where}")

    def _refuse_parts(self, batch: Batch) -> None:
        """Raise an error for a record that can be neither written nor set aside."""
        source, records = self.state.source, self.state.position.records
        chunks = [(entry, entry.chunk) for entry in batch.entries if entry.chunk is not None]
        for (entry, chunk), counted in zip(chunks, batch.counted, strict=False):
            if entry.source != source:
                source, records = entry.source, 0
            found = counted.rejects[0] if counted.rejects else None
            if isinstance(found, BadPart):
                where = entry.reader.place(records + found.record, chunk.start + max(0, found.byte))
                raise SourceError(
                    f"{found.reason}, and its document is too long to be set aside as a whole",
                    place=f"{self._producer.sources[source].name}, {where}",
                    hint="remove the token from the text, or read it with `--specials text` or `--specials parse`",
                )
            if isinstance(found, TooLarge):
                where = entry.reader.place(records + found.record, chunk.start)
                place = f"{self._producer.sources[source].name}, {where}"
                budget = self._producer.budget
                raise budget.too_small(found.reason, found.size, place, found.hint, row=found.row, beside=found.beside)
            records += counted.lines

    def _count_whole(self, entry: Entry, chunk: Chunk, counted: Counted) -> None:
        """Count sources of which each is a document, empty or rejected."""
        state, first = self.state, chunk.source
        assert counted.lengths is not None
        lengths = counted.lengths.tolist()
        state.totals["replaced"] += counted.replaced
        if counted.rejects or counted.odd is not None:
            rejects = {reject.record: [replace(reject, record=-1, byte=0)] for reject in counted.rejects}
            for i, tokens in enumerate(lengths):
                bad = rejects.get(i, [])
                odd = None if counted.odd is None else counted.odd[i : i + 1]
                one = Counted(int(tokens > 0), int(not tokens and not bad), 0, 0, bad, tokens, odd=odd)
                self._count(entry._replace(source=first + i), chunk, one)
                self._finish_source(first + i)
            if counted.replaced:
                self.check_invalid(self._producer.sources[first].name)
            return
        state.totals["documents"] += counted.documents
        state.totals["empty"] += counted.empty
        sources = self._producer.sources
        self._source_lines.append(as_bytes("".join(map(_source_line, sources.iter_from(first), lengths))))
        self._bytes_before += sum(sources.sizes[first : first + chunk.whole])
        state.source, state.position = first + chunk.whole, Position()

    def _finish_source(self, index: int) -> None:
        """Add the line of a source that has been read to its end, and count from zero for the next."""
        source = self._producer.sources[index]
        self._source_lines.append(
            json_line(
                {
                    "name": source.name,
                    "bytes": source.size,
                    "unit": self.state.unit,
                    **self.state.here,
                    **with_odd(self.state.odd),
                }
            )
        )
        self._bytes_before, self._bytes_of_source = self._bytes_before + (source.size or self._bytes_of_source), 0
        self.state.here = dict.fromkeys(self.state.here, 0)
        self.state.odd = {}
        self.state.source, self.state.position = index + 1, Position()


def append_batch(output: Output, stream: Stream, *, first: int) -> Iterator[Share]:
    """Append one stream of a batch to an output, and yield what each split has got.

    Val takes the next `first` tokens, whatever the rows say.
    """
    if stream.ends_before:
        output.end_document()
    for share in shares(stream, first=first):
        if len(share.tokens):
            output.append(share.split, share.tokens, share.ends)
        yield share


def reject_line(source: str, unit: str, number: int, byte: int, reason: str, excerpt: str) -> bytes:
    """One line of `rejects.jsonl`. `number` counts from 1, as editors do; `byte` from 0."""
    # By hand, since there may be millions of them: `json.dumps` of the whole takes 6 µs, this 1.3.
    place = (f', "{unit}": {number}' if number > 0 else "") + (f', "byte": {byte}' if byte >= 0 else "")
    fields_json = f'"reason": {_quoted(reason)}, "excerpt": {_quoted(excerpt)}'
    return as_bytes(f'{{"source": {_quoted(source)}{place}, {fields_json}}}\n')


def with_odd(found: dict[str, int]) -> dict[str, dict[str, int]]:
    """The entry of a source's line for what was found of `ODD`: none where nothing was."""
    return {"odd": {kind: found[kind] for kind in ODD if kind in found}} if found else {}


def _source_line(source: Source, tokens: int) -> str:
    """The line that `_finish_source` makes of a source that is one document or none, in an eighth of the time."""
    counts = '"documents": 1, "empty": 0' if tokens else '"documents": 0, "empty": 1'
    name = f'"name": {_quoted(source.name)}, "bytes": {source.size}, "unit": "byte"'
    return f'{{{name}, {counts}, "rejected": 0, "tokens": {tokens}}}\n'


def _check_release(saved: dict[str, Any]) -> None:
    """MismatchError where the state is one that this release does not understand."""
    if saved.keys() != {"outputs", *(one.name for one in fields(State))}:
        raise MismatchError(
            "the run was begun by another release of shardmill",
            hint="finish it with that release, or start anew with `--overwrite`",
        )


def _check_engine(before: dict[str, str], now: dict[str, str]) -> None:
    """MismatchError where another release of a library gives other tokens than the run was begun with."""
    if before != now and before["sha256"] != now["sha256"]:
        raise MismatchError(
            f"the run was begun with {before['libraries']}, and {now['libraries']} gives other tokens",
            hint="install the former release again, or start anew with `--overwrite`",
        )
