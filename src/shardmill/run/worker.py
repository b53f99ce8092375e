"""One chunk, or several small ones, from description to tokens: read, encode, choose splits, place EOT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.documents import Chunk, Documents, Reader, join
from shardmill.options import Val
from shardmill.run.budget import Budget
from shardmill.run.machine import hand_back
from shardmill.run.rows import Counted, Rows, Stream, count, make_rows, with_eot
from shardmill.run.splits import PREFIX, Limit, val_rows
from shardmill.tokens import Encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.run.writer import Writer
    from shardmill.tokens import Engine, Tokenizer

_REJECT = 256  # bytes that a reject takes, with its excerpt
_PIECE = 1 << 20  # bytes of text that are encoded at once where there is no place to cut


class Entry(NamedTuple):
    """A chunk, its reader and its (first) source; no chunk: the source ends here."""

    reader: Reader
    source: int
    chunk: Chunk | None


class Amounts(NamedTuple):
    """Documents and bytes of text for one split."""

    split: str
    documents: int
    bytes: int


@dataclass
class Batch:
    """Encoded chunks: all that the writer needs of them."""

    entries: list[Entry]
    counted: list[Counted]
    streams: dict[str, Stream]
    """By EOT policy."""
    fallbacks: int = 0
    spans: bool = False
    """Rows are spans of documents, each with a split of its own."""
    begins: bool = True
    """False: its first row goes on with the document that is open."""
    ends: bool = True
    """False: its last document goes on in the next batch."""
    final: bool = True
    """False: more of the same chunk follows."""
    last: bool = False
    """No more is wanted of the source that it is of."""
    known: Amounts | None = None
    """What it adds to the counts of its split, where its rows do not tell."""
    after: Callable[[Writer], None] | None = None
    """What else is to be recorded together with it."""

    @property
    def piece(self) -> bool:
        """Whether it is a part of one document that has one split."""
        return not self.spans and not (self.begins and self.ends)

    def reaches(self, limit: Limit) -> bool:
        """Whether this is all that is wanted, or more. A long stretch is taken whole: it cannot be made again."""
        if self.entries[0].chunk is not None and self.entries[0].chunk.long:
            return False
        tokens = sum(map(len, next(iter(self.streams.values())).tokens.values()))
        return limit.reached_by(sum(counted.documents for counted in self.counted), tokens)

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        rejects = sum(len(counted.rejects) for counted in self.counted)
        return _REJECT * rejects + sum(stream.nbytes for stream in self.streams.values())


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers of a run have in common."""

    tokenizer: Tokenizer
    val: Val
    seed: int
    eots: tuple[str, ...]
    """The EOT policies that the outputs need, each once."""
    budget: Budget
    spans: bool = False
    """Text without a separator is dealt in spans."""
    limited: bool = False
    """Results may have to be made again for fewer documents, so they keep what they were made from."""
    warm: list[Engine] = field(default_factory=list)
    """Engines that are there already, for whoever comes first."""

    def engine(self) -> Engine:
        try:
            return self.warm.pop()
        except IndexError:
            return self.tokenizer.engine()


class Worker:
    """An engine of its own, replaced when memory runs short. One thread at a time uses it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._engine = self._settings.engine()
        return self._engine

    def encode(self, entries: list[Entry], limit: Limit | None = None) -> Batch:
        """Read and encode some chunks, as far as the limit allows."""
        chunks = [entry.chunk for entry in entries if entry.chunk is not None]
        found = [entry.reader.read(entry.chunk) for entry in entries if entry.chunk is not None]
        documents = join(found)
        settings = self._settings
        encoded = self.engine.encode(documents.data, documents.offsets, len(documents.gap))
        rows = make_rows(chunks, found, documents, encoded, val_rows(documents, settings.val, settings.seed))
        if limit is not None:
            rows = limit.cut(rows, spans=documents.spans)
            stops = np.cumsum([len(documents) for documents in found])
            last = chunks[int(np.searchsorted(stops, len(rows), side="left"))]
            entries = entries[: next(i for i, entry in enumerate(entries) if entry.chunk is last) + 1]
        counted = count(chunks, found, rows, encoded)
        streams = self._with_eots(rows, encoded)
        self._make_room()
        # A chunk that cuts a document is alone in its batch.
        begins, ends = (chunks[0].begins, chunks[0].ends) if len(chunks) == 1 else (True, True)
        return Batch(entries, counted, streams, encoded.fallbacks, documents.spans, begins, ends)

    def encode_long(self, entry: Entry) -> Iterator[Batch]:
        """Encode a stretch without a place to cut, in pieces that are written at once; only the last is final."""
        chunk, settings = entry.chunk, self._settings
        assert chunk is not None
        texts = entry.reader.pieces(chunk, _PIECE)
        head = b""
        for text in texts:
            head += text
            if len(head) >= PREFIX:
                break
        row = Documents(np.frombuffer(head, np.uint8), np.array([0, len(head)], np.int64), spans=settings.spans)
        val = bool(val_rows(row, settings.val, settings.seed)[0]) if chunk.tail is None else chunk.tail
        seen, replaced = len(head), 0

        def rest() -> Iterator[bytes]:
            nonlocal seen, replaced
            yield head
            try:
                while True:
                    text = next(texts)
                    seen += len(text)
                    yield text
            except StopIteration as end:
                replaced = end.value or 0

        first, total = True, 0
        waiting: NDArray[Any] | None = None
        for tokens in self.engine.encode_pieces(rest()):
            if waiting is not None:
                yield self._part(entry, chunk, val, waiting, first, None)
                first = False
                if settings.budget.crowded():
                    self.engine.renew()
                    settings.budget.engines_replaced += 1
                    hand_back()
            waiting, total = tokens, total + len(tokens)
        last = waiting if waiting is not None else np.empty(0, settings.tokenizer.dtype)
        batch = self._part(entry, chunk, val, last, first, seen)
        batch.counted = [Counted(int(chunk.ends), 0, 0, replaced, [], total)]
        yield batch
        # The next one has memory for an engine again, but it may be far.
        self._engine = None

    def _part(
        self, entry: Entry, chunk: Chunk, val: bool, tokens: NDArray[Any], first: bool, seen: int | None
    ) -> Batch:
        """Some tokens of a long stretch; `seen`: bytes of all of it, with the last."""
        begins, ends = chunk.begins and first, chunk.ends and seen is not None
        rows = Rows(*(np.array([value]) for value in (len(tokens), seen or 0, val, begins, ends)))
        encoded = Encoded(np.append(tokens, tokens.dtype.type(0)), np.array([0, len(tokens) + 1], np.int64))
        streams, final = self._with_eots(rows, encoded), seen is not None
        return Batch([entry], [], streams, 0, self._settings.spans, begins, ends, final)

    def _with_eots(self, rows: Rows, encoded: Encoded) -> dict[str, Stream]:
        """The rows and their tokens, for each EOT policy that the outputs need."""
        mark = self._settings.tokenizer.eot or 0
        return {eot: with_eot(rows, encoded, eot, mark) for eot in self._settings.eots}

    def _make_room(self) -> None:
        if self._settings.budget.crowded():
            self._engine = None
            self._settings.budget.engines_replaced += 1
            hand_back()
