"""From chunks to rows and tokens: read, encode, choose splits, place EOT. All of this is done by the array."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.core import deal, odd_counts
from shardmill.documents import Chunk, Documents, Reject, join
from shardmill.run.encoded_chunks import BadPart, Counted, EncodedChunks, Entry
from shardmill.run.seams import Limit
from shardmill.run.splits import PREFIX, val_rows
from shardmill.tokens import Encoded, EngineError
from shardmill.write import ODD, Rows, Stream, eot_places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.run.encoded_text import EncodedText
    from shardmill.tokens import Engine

_PIECE = 1 << 20  # bytes of text that are encoded at once where there is no place to cut
_LONGEST_TOKEN = max(map(len, ODD))  # bytes of a special token that is looked for


def encode(text: EncodedText, entries: list[Entry], limit: Limit | None = None) -> EncodedChunks:
    """Read and encode some chunks, as far as the limit allows. Any thread may call it."""
    chunks = [entry.chunk for entry in entries if entry.chunk is not None]
    found = [entry.reader.read(entry.chunk) for entry in entries if entry.chunk is not None]
    documents = join(found)
    # Before it is encoded, while the text is in the CPU's cache.
    odd = _find_odd(chunks, found, documents, len(documents))
    engine = text.take_engine()
    encoded = engine.encode(documents.data, documents.offsets, len(documents.gap))
    rows = _make_rows(chunks, found, documents, encoded, val_rows(documents, text.val, text.seed))
    if limit is not None:
        rows = limit.cut(rows, stream=any(chunk.stream for chunk in chunks))
        stops = np.cumsum([len(documents) for documents in found])
        last = chunks[int(np.searchsorted(stops, len(rows), side="left"))]
        entries = entries[: next(i for i, entry in enumerate(entries) if entry.chunk is last) + 1]
        odd = _find_odd(chunks, found, documents, len(rows))
    counted = _count(chunks, found, rows, encoded, odd)
    streams = _with_eots(text, rows, encoded)
    text.engines.append(engine)
    text.budget.trim()
    # A chunk that cuts a document is alone in its batch.
    begins, ends = (chunks[0].begins, chunks[0].ends) if len(chunks) == 1 else (True, True)
    return EncodedChunks(entries, counted, streams, encoded.fallbacks, begins, ends)


def encode_long(text: EncodedText, entry: Entry) -> Iterator[EncodedChunks]:
    """Encode a long record, or a stretch without a place to cut, in pieces that are written one by one.

    Only the last of them is final.
    """
    chunk, record = entry.chunk, entry.reader.unit != "byte"
    assert chunk is not None
    if record:
        found = entry.reader.read(chunk)
        if len(found) != 1 or len(found.data) <= text.budget.chunk_bytes:
            yield encode(text, [entry])
            del text.engines[-1:]
            return
        del found
    # Not returned to the others at the end, nor above: its memory is part of the lease of this stretch.
    engine = text.take_engine()
    engine.fell_back = False
    if record and (refused := _refused_whole(text, entry, chunk, engine)):
        yield refused
        return
    seen = replaced = 0
    odd = _OddInPieces()

    def read() -> Iterator[bytes]:
        nonlocal seen, replaced
        pieces = entry.reader.pieces(chunk, _PIECE)
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                replaced = end.value or 0
                return
            seen += len(piece)
            odd.add(piece)
            yield piece

    pieces, head = read(), b""
    for piece in pieces:
        head += piece
        if len(head) >= PREFIX:
            break
    row = Documents(np.frombuffer(head, np.uint8), np.array([0, len(head)], np.int64))
    val = bool(val_rows(row, text.val, text.seed)[0]) if chunk.work.tail is None else chunk.work.tail

    def batch(tokens: NDArray[Any], *, first: bool, last: bool) -> EncodedChunks:
        begins, ends = chunk.begins and first, chunk.ends and last
        begin = 0 if record else chunk.start
        values = (len(tokens), seen if last else 0, val, begins, ends, chunk.source, begin)
        rows = Rows(*(np.array([value]) for value in values))
        encoded = Encoded(np.append(tokens, tokens.dtype.type(0)), np.array([0, len(tokens) + 1], np.int64))
        odd.counts[0, 0] = replaced
        counted = [Counted(int(chunk.ends), 0, int(record), replaced, [], total, odd=odd.counts)] if last else []
        fallbacks = int(last and engine.fell_back)
        return EncodedChunks([entry], counted, _with_eots(text, rows, encoded), fallbacks, begins, ends, final=last)

    first, total = True, 0
    waiting: NDArray[Any] | None = None  # until it is known whether it is the last
    for tokens in engine.encode_pieces(itertools.chain([head], pieces)):
        if waiting is not None:
            yield batch(waiting, first=first, last=False)
            first = False
            text.budget.trim()
        waiting, total = tokens, total + len(tokens)
    rest = waiting if waiting is not None else np.empty(0, text.plan.tokenizer.dtype)
    yield batch(rest, first=first, last=True)


class _OddInPieces:
    """Counts `ODD` in a text that comes in pieces."""

    def __init__(self) -> None:
        self.counts = np.zeros((1, len(ODD)), np.int64)
        self._before = b""

    def add(self, piece: bytes) -> None:
        both = self._before + piece
        self.counts[0, 1:] += _odd_in(both) - _odd_in(self._before)
        self._before = both[-_LONGEST_TOKEN + 1 :]


def _odd_in(text: bytes) -> NDArray[np.int64]:
    """How often each of `ODD` but the first is in a text."""
    found = odd_counts(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64), 0, np.array([1], np.int64))
    return np.zeros(len(ODD) - 1, np.int64) if found is None else found[0]


def _find_odd(
    chunks: list[Chunk], found: list[Documents], joined: Documents, rows: int
) -> list[NDArray[np.int64] | None]:
    """What each chunk holds of `ODD` in the first rows of all, or each source of a chunk of whole sources."""
    ends = np.cumsum([len(documents) for documents in found], dtype=np.int64)
    starts = ends - [len(documents) for documents in found]
    groups = [
        np.arange(start, end) + 1 if chunk.whole else np.array([end])
        for chunk, start, end in zip(chunks, starts.tolist(), ends.tolist(), strict=True)
    ]
    offsets = joined.offsets[: rows + 1]
    counts = odd_counts(joined.data, offsets, len(joined.gap), np.concatenate(groups)) if groups else None
    if counts is None and not any(documents.repairs is not None for documents in found):
        return [None] * len(chunks)
    odd, first = [], 0
    for documents, group, start in zip(found, groups, starts.tolist(), strict=True):
        one = np.zeros((len(group), len(ODD)), np.int64)
        if counts is not None:
            one[:, 1:] = counts[first : first + len(group)]
        if documents.repairs is not None:
            repairs = documents.repairs[: max(0, rows - start)]
            one[: len(repairs) if len(group) > 1 else 1, 0] = repairs if len(group) > 1 else repairs.sum()
        odd.append(one if one.any() else None)
        first += len(group)
    return odd


def _refused_whole(text: EncodedText, entry: Entry, chunk: Chunk, engine: Engine) -> EncodedChunks | None:
    """The result for a long record that the tokenizer refuses; to be known before a part of it is written."""
    try:
        with closing(entry.reader.pieces(chunk, _PIECE)) as pieces:
            engine.check_pieces(pieces)
    except EngineError as error:
        head, odd = b"", _OddInPieces()
        with closing(entry.reader.pieces(chunk, _PIECE)) as pieces:
            for piece in pieces:
                head = head or piece
                odd.add(piece)
        begin = Documents(np.frombuffer(head, np.uint8), np.array([0, len(head)], np.int64))
        reject = Reject(0, -1, error.message, _head(begin, 0))
        numbers, flags = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        no_rows = Rows(numbers, numbers, flags, flags, flags, numbers.astype(np.int32), numbers)
        no_tokens = Encoded(np.empty(0, text.plan.tokenizer.dtype), np.zeros(1, np.int64))
        counted = Counted(0, 0, 1, 0, [reject], odd=odd.counts)
        return EncodedChunks([entry], [counted], _with_eots(text, no_rows, no_tokens))
    return None


def _with_eots(text: EncodedText, rows: Rows, encoded: Encoded) -> dict[str, Stream]:
    """The rows and their tokens, for each EOT policy that the outputs need."""
    eot_id = text.plan.tokenizer.eot or 0
    return {eot: _with_eot(rows, encoded, eot, eot_id) for eot in text.eots}


def _make_rows(
    chunks: list[Chunk], found: list[Documents], joined: Documents, encoded: Encoded, val: NDArray[np.bool_]
) -> Rows:
    """The table of some chunks; its lengths are without end-of-text tokens."""
    opens = np.ones(len(joined), dtype=np.bool_)
    closes = opens.copy()
    source, record = np.empty(len(joined), np.int32), np.empty(len(joined), np.int64)
    row = lines = 0
    for i, (chunk, documents) in enumerate(zip(chunks, found, strict=True)):
        end = row + len(documents)
        lines = lines if i and chunk.source == chunks[i - 1].source else 0
        source[row:end] = np.arange(chunk.source, chunk.source + end - row) if chunk.whole else chunk.source
        record[row:end] = 0 if chunk.whole else _records(chunk, documents, lines)
        lines += documents.lines
        if end > row:
            if chunk.stream:  # neighbours in one split are a document there
                opens[row + 1 : end] = closes[row : end - 1] = val[row + 1 : end] != val[row : end - 1]
            opens[row] &= chunk.begins
            closes[end - 1] &= chunk.ends
        row = end
    filled = encoded.lengths > 0
    # A row without tokens is no document: it may have been rejected. Its bytes count only if it is a part of one.
    counts = filled | ~(opens & closes)
    return Rows(encoded.lengths, joined.lengths * counts, val, opens & filled, closes & filled, source, record)


def _records(chunk: Chunk, documents: Documents, lines: int) -> NDArray[np.int64]:
    """Where each row begins: the byte in plain text, otherwise the record, counted from `lines`."""
    if documents.starts is not None:
        return documents.starts + chunk.start
    records = np.arange(len(documents), dtype=np.int64) if documents.records is None else documents.records
    return records + lines


def _with_eot(rows: Rows, encoded: Encoded, eot: str, eot_id: int) -> Stream:
    """The rows and their tokens, with `eot_id` after or before each document or not at all."""
    marks, starts = eot_places(rows, eot), encoded.offsets[: len(rows)]
    train, val = deal(encoded.tokens, starts, rows.length, marks, rows.val, eot_id, before=eot == "before")
    tokens = {"train": train} if not rows.val.all() else {}
    if rows.val.any():
        tokens["val"] = val
    return Stream(replace(rows, length=rows.length + marks), tokens)


def _count(
    chunks: list[Chunk],
    found: list[Documents],
    rows: Rows,
    encoded: Encoded,
    odd: list[NDArray[np.int64] | None],
) -> list[Counted]:
    """What each chunk held; `rows` may end before the chunks do."""
    failed = dict(encoded.failed)
    ends = np.cumsum([len(documents) for documents in found], dtype=np.int64)
    closed, without_tokens, tokens = (_sums(one, ends) for one in (rows.closes, rows.length == 0, rows.length))
    counted, row = [], 0
    for i, documents in enumerate(found):
        end = row + len(documents)
        last = min(end, len(rows))
        if last <= row < end:
            break
        rejects = documents.rejects
        if last < end:
            rejects = [reject for reject in rejects if reject.record < documents.record(last - row - 1)]
        refused = [bad for bad in failed if row <= bad < last]
        cut = chunks[i].stream and len(documents) > 1
        if refused:
            kind = BadPart if cut or not (chunks[i].begins and chunks[i].ends) else Reject
            rejects = rejects + [
                kind(*_place(documents, bad - row), failed[bad], _head(documents, bad - row)) for bad in refused
            ]
            rejects.sort(key=lambda reject: (reject.record, reject.byte))
        empty = 0 if cut else without_tokens[i] - len(refused)
        lengths = rows.length[row:last] if chunks[i].whole else None
        replaced = documents.replaced(last - row)
        counted.append(Counted(closed[i], empty, documents.lines, replaced, rejects, tokens[i], lengths, odd[i]))
        row = end
    return counted


def _sums(values: NDArray[Any], ends: NDArray[np.int64]) -> list[int]:
    """The sum of the values up to the first end, from there to the second, and so on."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])[np.minimum(ends, len(values))]
    sums: list[int] = np.diff(before, prepend=0).tolist()
    return sums


def _place(documents: Documents, row: int) -> tuple[int, int]:
    """The record and the byte at which a row begins, counted within the chunk."""
    return (documents.record(row), -1) if documents.starts is None else (-1, int(documents.starts[row]))


def _head(documents: Documents, row: int) -> str:
    """The beginning of a row, for people."""
    start = int(documents.offsets[row])
    end = start + int(documents.lengths[row])
    return bytes(documents.data[start : min(end, start + 320)]).decode("utf-8", "ignore")[:80]
