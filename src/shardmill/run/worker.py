"""One chunk, or several small ones, from description to tokens: read, encode, place EOT, deal into splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill.documents import Reader
from shardmill.documents.chunks import Chunk, Documents
from shardmill.options import Val
from shardmill.run.budget import Budget
from shardmill.run.dealing import Counted, Most, Rows, Stream, join
from shardmill.run.machine import hand_back
from shardmill.run.splits import PREFIX, in_val

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.tokens import Engine, Tokenizer

_REJECT = 256  # bytes that a reject takes, with its excerpt
_PIECE = 1 << 20  # bytes of text that are encoded at once where there is no place to cut

OPEN = "open"
"""Stands for the split of a document that began in an earlier chunk."""


class Entry(NamedTuple):
    """A chunk, its reader and its (first) source; no chunk: the source ends here."""

    reader: Reader
    source: int
    chunk: Chunk | None


@dataclass
class Milled:
    """All that the writer needs of some chunks."""

    entries: list[Entry]
    counted: list[Counted]
    streams: dict[str, dict[str, Stream]]
    """By EOT policy, then by split."""
    fallbacks: int = 0
    piece: Chunk | None = None
    """The chunk, when it is a piece of one long document that has a split of its own."""
    final: bool = True
    """False: more of the same chunk follows."""
    closes_spans: bool = False
    """A document that was dealt in spans over several chunks has come to its end."""

    def reaches(self, most: Most) -> bool:
        """Whether this is all that is wanted, or more. A long stretch is taken whole: it cannot be made again."""
        if self.entries[0].chunk is not None and self.entries[0].chunk.long:
            return False
        tokens = sum(len(stream.tokens) for stream in next(iter(self.streams.values())).values())
        return most.reached_by(sum(count.documents for count in self.counted), tokens)

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        rejects = sum(len(count.rejects) for count in self.counted)
        return _REJECT * rejects + sum(
            part.nbytes for streams in self.streams.values() for stream in streams.values() for part in stream
        )


@dataclass(frozen=True)
class Milling:
    """What all workers of a run have in common."""

    tokenizer: Tokenizer
    val: Val
    seed: int
    eots: tuple[str, ...]
    """The EOT policies that the outputs need, each once."""
    budget: Budget
    spans: bool = False
    """Text without a separator is dealt in spans."""
    separator: bytes = b""
    """What stands between documents that are handed on as they stand; nothing: they are not."""
    limited: bool = False
    """Results may have to be made again for fewer documents, so they keep what they were made from."""
    warm: list[Engine] = field(default_factory=list)
    """Engines that are there already, for whoever comes first."""

    def engine(self) -> Engine:
        try:
            return self.warm.pop()
        except IndexError:
            return self.tokenizer.engine(self.separator)


class Worker:
    """An engine of its own, replaced when memory runs short. One thread at a time uses it."""

    def __init__(self, milling: Milling) -> None:
        self._milling = milling
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._engine = self._milling.engine()
        return self._engine

    def mill(self, entries: list[Entry], most: Most | None = None) -> Milled:
        """Read and encode some chunks; of their documents only as many as are asked for."""
        chunks = [entry.chunk for entry in entries if entry.chunk is not None]
        found = [entry.reader.read(entry.chunk) for entry in entries if entry.chunk is not None]
        documents = join(found)
        encoded = self.engine.encode(documents.data, documents.offsets, len(documents.gap))
        rows = Rows(chunks, found, documents, encoded)
        if most is not None:
            last = chunks[rows.keep(most) - 1]
            entries = entries[: next(i for i, entry in enumerate(entries) if entry.chunk is last) + 1]
        val = self._val(documents)
        mark = self._milling.tokenizer.eot or 0
        streams = {eot: rows.deal(val, eot, mark) for eot in self._milling.eots}
        piece = None
        if len(chunks) == 1 and not documents.spans and not (chunks[0].begins and chunks[0].ends):
            piece = chunks[0]
            if not piece.begins:
                streams = {eot: dict.fromkeys([OPEN], *dealt.values()) for eot, dealt in streams.items()}
        self._make_room()
        closes_spans = documents.spans and len(chunks) == 1 and chunks[0].ends
        return Milled(entries, rows.count(), streams, encoded.fallbacks, piece, closes_spans=closes_spans)

    def mill_long(self, entry: Entry) -> Iterator[Milled]:
        """Encode a stretch without a place to cut, in pieces that are written at once; only the last is final."""
        chunk, spans = entry.chunk, self._milling.spans
        assert chunk is not None
        texts = entry.reader.pieces(chunk, _PIECE)
        head = b""
        for text in texts:
            head += text
            if len(head) >= PREFIX:
                break
        row = Documents(np.frombuffer(head, np.uint8), np.array([0, len(head)], np.int64), spans=spans)
        split = "val" if (self._val(row)[0] if chunk.tail is None else chunk.tail) else "train"
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

        first = True
        waiting: NDArray[Any] | None = None
        for tokens in self.engine.encode_pieces(rest()):
            if waiting is not None:
                yield self._part(entry, chunk, split, waiting, first, None)
                first = False
                if self._milling.budget.crowded():
                    self.engine.renew()
                    hand_back()
            waiting = tokens
        last = waiting if waiting is not None else np.empty(0, self._milling.tokenizer.dtype)
        milled = self._part(entry, chunk, split, last, first, seen)
        milled.counted = [Counted(int(chunk.ends), 0, 0, replaced, [])]
        yield milled
        self._make_room()

    def _part(
        self, entry: Entry, chunk: Chunk, split: str, tokens: NDArray[Any], first: bool, seen: int | None
    ) -> Milled:
        """Some tokens of a long stretch; `seen`: bytes of all of it, with the last."""
        spans = self._milling.spans
        begins, ends = chunk.begins and first, chunk.ends and seen is not None
        piece = None if spans else chunk._replace(begins=begins, ends=ends)
        streams = {}
        for eot in self._milling.eots:
            mark = np.array([self._milling.tokenizer.eot or 0], tokens.dtype)
            before, after = begins and eot == "before", ends and eot == "after"
            part = np.concatenate([mark[: int(before)], tokens, mark[: int(after)]])
            end = np.array([len(part)], np.int64)
            row = slice(0, 0 if seen is None else 1)
            size = np.array([seen or 0], np.int64)
            key = split if spans or begins else OPEN
            close = end[: int(ends)]
            streams[eot] = {key: Stream(part, close, close, end[row], size[row])}
        return Milled([entry], [], streams, 0, piece, final=seen is not None, closes_spans=spans and ends)

    def _make_room(self) -> None:
        if self._milling.budget.crowded():
            self._engine = None
            hand_back()

    def _val(self, rows: Documents) -> NDArray[np.bool_]:
        val = self._milling.val
        if rows.tail is not None:
            return rows.tail
        if val.fraction:
            return in_val(rows.data, rows.offsets, val.fraction, self._milling.seed, len(rows.gap))
        return np.zeros(len(rows), dtype=np.bool_)
