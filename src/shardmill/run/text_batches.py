"""Encoded chunks → batches, in plan order.

Only here is it known how many records of a source came before a chunk, in which split a cut document began, and
whether the text before a span went to the same split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.documents import Position, TooLarge
from shardmill.errors import SourceError
from shardmill.run.encoded_chunks import BadPart, Counted, EncodedChunks, Entry
from shardmill.run.seams import Limit, ending, is_seam, open_after, piece_in_split, seam
from shardmill.write import ODD, Batch, BatchTokens, FoundInSource, FoundSources, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.documents import Chunk
    from shardmill.run.budget import Budget
    from shardmill.source_list import Sources


@dataclass
class TextPosition:
    """How far the text has been read, and the document that is open there."""

    source: int = 0
    begun: bool = False
    """Some of that source has been read."""
    offset: int = 0
    records: int = 0
    inside: bool = False
    state: str = ""
    """As in `Position`."""
    split: str = ""
    """Of the document that is open; empty: there is none."""
    carried: int = 0
    """Bytes of that document that are not counted for a split yet."""
    documents: int = 0
    tokens: int = 0
    """Documents and tokens so far, for `--limit`."""

    @property
    def in_source(self) -> Position:
        return Position(self.offset, self.records, self.inside, self.state)

    def go_to(self, source: int, position: Position, *, begun: bool) -> None:
        self.source, self.begun = source, begun
        self.offset, self.records, self.inside, self.state = position


class TextBatches:
    """Makes batches of encoded chunks, which must come in plan order."""

    def __init__(
        self,
        position: dict[str, Any] | None,
        sources: Sources,
        budget: Budget,
        eots: tuple[str, ...],
        dtype: np.dtype[Any],
        eot_id: int,
    ) -> None:
        """`position`: that of the batch before the first; None: there is none."""
        self.at = TextPosition(**position or {})
        self._sources, self._budget, self._eots, self._dtype, self._eot_id = sources, budget, eots, dtype, eot_id

    def batches(self, encoded: EncodedChunks, *, last: bool = False) -> Iterator[Batch]:
        """The batches of some chunks: one, and at a seam another before it. `last`: the sources end with it.

        BudgetError for a record that is too large and SourceError for a bad part of one, before the batch: so what came
        before can be recorded.
        """
        at, streams = self.at, self._numbered(encoded)
        if not encoded.piece and (before := seam(streams, at.split, self._eot_id)):
            yield self._seam(before, "train" if at.split == "val" else "val")
        self._refuse_parts(encoded)
        rows = streams[self._eots[0]].rows
        if encoded.piece:
            split = ("val" if rows.val.any() else "train") if encoded.begins else at.split
            seen = at.carried + int(rows.bytes.sum())
            streams = piece_in_split(streams, split, seen if encoded.ends else 0)
            at.split, at.carried = ("", 0) if encoded.ends else (split, seen)
        else:
            at.split, at.carried = open_after(rows, at.split), 0
        at.tokens += _count(streams[self._eots[0]])
        found = list(self._found(encoded)) if encoded.final else []
        if last:
            found += self._end_source()
        yield Batch(BatchTokens(streams), found, asdict(at) if encoded.final else None)

    def end(self) -> Batch:
        """A batch that ends the open document and source, where `--limit` is reached between two chunks."""
        at = self.at
        tokens = BatchTokens(ending(self._eots, at.split, self._dtype, self._eot_id)) if at.split else None
        found = [FoundInSource(at.source, documents=1)] if at.split else []
        at.documents += len(found)
        at.split, at.carried = "", 0
        found += self._end_source()
        return Batch(tokens, found, asdict(at))

    def limit(self, encoded: EncodedChunks, documents: int | None, tokens: int | None) -> Limit:
        """How much of these limits is left at the first row of some chunks."""
        at, eot = self.at, self._eots[0]
        # What the end of the document before adds, if it ends where these begin.
        seam = is_seam(encoded.streams[eot].rows, at.split) and not encoded.piece
        return Limit(
            None if documents is None else documents - at.documents - seam,
            None if tokens is None else tokens - at.tokens - (eot != "none" and seam),
            eot,
        )

    def _seam(self, streams: dict[str, Stream], begin: str) -> Batch:
        at = self.at
        at.split, at.carried = begin, 0
        at.documents += 1
        at.tokens += _count(streams[self._eots[0]])
        return Batch(BatchTokens(streams), [FoundInSource(at.source, documents=1)], asdict(at))

    def _end_source(self) -> list[FoundInSource]:
        """What is found at the end of the source that is open, if one is."""
        if not self.at.begun:
            return []
        found = FoundInSource(self.at.source, ended=True)
        self.at.go_to(self.at.source + 1, Position(), begun=False)
        return [found]

    def _numbered(self, encoded: EncodedChunks) -> dict[str, Stream]:
        """The streams, with records counted from the start of their source. A worker counts from its first chunk."""
        at = self.at
        if not at.records:
            return encoded.streams
        rows = encoded.streams[self._eots[0]].rows
        record = rows.record + np.where(rows.source == at.source, at.records, 0)
        return {
            eot: stream._replace(rows=replace(stream.rows, record=record)) for eot, stream in encoded.streams.items()
        }

    def _found(self, encoded: EncodedChunks) -> Iterator[FoundInSource | FoundSources]:
        """What was read, source by source; moves the position."""
        at, counted, fallbacks = self.at, iter(encoded.counted), encoded.fallbacks
        for entry in encoded.entries:
            if entry.chunk is None:
                entry.reader.check()
                yield FoundInSource(entry.source, entry.reader.unit, ended=True)
                at.go_to(entry.source + 1, Position(), begun=False)
                continue
            one = next(counted)
            at.documents += one.documents
            if entry.chunk.whole:
                yield from self._found_whole(entry.chunk, one, fallbacks)
                at.go_to(entry.chunk.source + entry.chunk.whole, Position(), begun=False)
            else:
                yield self._found_in(entry, entry.chunk, one, fallbacks)
                first = at.records if entry.source == at.source else 0
                at.go_to(entry.source, entry.chunk.after._replace(records=first + one.lines), begun=True)
            fallbacks = 0

    def _found_in(self, entry: Entry, chunk: Chunk, counted: Counted, fallbacks: int) -> FoundInSource:
        at, place = self.at, ""
        first = at.records if entry.source == at.source else 0
        if counted.rejects:
            last = counted.rejects[-1]
            place = entry.reader.place(first + last.record, chunk.start + last.byte if last.byte >= 0 else -1)
        elif counted.replaced:
            place = f"byte {chunk.start:,}"
        return FoundInSource(
            entry.source,
            entry.reader.unit,
            counted.documents,
            counted.empty,
            counted.tokens,
            counted.replaced,
            fallbacks,
            _odd(None if counted.odd is None else counted.odd[0]),
            counted.rejects,
            first_record=first,
            first_byte=chunk.start,
            through=chunk.through if chunk.through >= 0 else chunk.end,
            carried=at.carried,
            place=f"{self._sources[entry.source].name}, {place}" if place else "",
        )

    def _found_whole(self, chunk: Chunk, counted: Counted, fallbacks: int) -> Iterator[FoundInSource | FoundSources]:
        """Sources of which each is a document, empty or rejected."""
        first, lengths, odd = chunk.source, counted.lengths, counted.odd
        assert lengths is not None
        if odd is None and not counted.rejects:
            yield FoundSources(first, lengths, fallbacks)
            return
        rejects = {reject.record: [replace(reject, record=-1, byte=0)] for reject in counted.rejects}
        for i, tokens in enumerate(lengths.tolist()):
            bad, last = rejects.get(i, []), i == len(lengths) - 1
            yield FoundInSource(
                first + i,
                documents=int(tokens > 0),
                empty=int(not tokens and not bad),
                tokens=tokens,
                replaced=counted.replaced if last else 0,
                fallbacks=fallbacks if last else 0,
                odd=_odd(None if odd is None else odd[i]),
                rejects=bad,
                first_byte=chunk.start,
                through=chunk.through if chunk.through >= 0 else chunk.end,
                place=f"{self._sources[first + i].name}, byte {chunk.start:,}" if bad else self._sources[first].name,
                ended=True,
            )

    def _refuse_parts(self, encoded: EncodedChunks) -> None:
        """Raise an error for a record that can be neither written nor set aside."""
        source, records = self.at.source, self.at.records
        chunks = [(entry, entry.chunk) for entry in encoded.entries if entry.chunk is not None]
        for (entry, chunk), counted in zip(chunks, encoded.counted, strict=False):
            if entry.source != source:
                source, records = entry.source, 0
            found = counted.rejects[0] if counted.rejects else None
            if isinstance(found, BadPart):
                where = entry.reader.place(records + found.record, chunk.start + max(0, found.byte))
                raise SourceError(
                    f"{found.reason}, and its document is too long to be set aside as a whole",
                    place=f"{self._sources[source].name}, {where}",
                    hint="remove the token from the text, or read it with `--specials text` or `--specials parse`",
                )
            if isinstance(found, TooLarge):
                where = entry.reader.place(records + found.record, chunk.start)
                place = f"{self._sources[source].name}, {where}"
                budget = self._budget
                raise budget.too_small(found.reason, found.size, place, found.hint, row=found.row, beside=found.beside)
            records += counted.lines


def _count(stream: Stream) -> int:
    return sum(map(len, stream.tokens.values()))


def _odd(counts: NDArray[np.int64] | None) -> dict[str, int]:
    return {} if counts is None else {kind: n for kind, n in zip(ODD, counts.tolist(), strict=True) if n}
