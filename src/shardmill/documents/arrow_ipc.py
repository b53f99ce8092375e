"""Arrow IPC, as a file (feather) or as a stream, read batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from shardmill.documents.batches import RowsReader, slices
from shardmill.documents.chunks import Chunk, Position
from shardmill.documents.columns import column_of, find_column
from shardmill.documents.reading import Reading
from shardmill.errors import SourceError
from shardmill.storage.feeds import BLOCK, Feed, FeedFile
from shardmill.storage.opening import ARROW_MARK
from shardmill.storage.source import Source

# Writers may align the footer.
PADDING = 64


class ArrowReader(RowsReader):
    """A file is a stream between two marks, so both are read as a stream: forward only, one batch at a time."""

    def __init__(self, index: int, source: Source, reading: Reading, reopen: Callable[[], Feed], head: bytes) -> None:
        super().__init__(index, source, reading)
        self._head = head

    def chunks(self, feed: Feed, start: Position, size: int) -> Iterator[Chunk]:
        if self._head.startswith(b"FEA1"):
            raise SourceError(
                "the file is Feather version 1", place=self._source.name, hint="write it again with pyarrow.feather"
            )
        offset = 8 if self._head.startswith(ARROW_MARK) else 0
        # A batch is held whole, with all its columns; four times the largest record leaves room for the others.
        file = FeedFile(feed, self._source.name, offset, most=max(4 * self._reading.largest, 1 << 20))
        yield from self._numbered(slices(self._columns(file), size), start, file.stored)

    def _columns(self, file: FeedFile) -> Iterator[pa.Array]:
        try:
            with pa.PythonFile(file, mode="r") as stream, pa.ipc.open_stream(stream) as reader:
                path = find_column(reader.schema, self._field, self._source.name)
                while True:
                    try:
                        batch = reader.read_next_batch()
                    except StopIteration:
                        break
                    yield column_of(batch, path)
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
            raise self._damaged(file, first_line(error)) from error
        self._check_end(file)

    def _check_end(self, file: FeedFile) -> None:
        """Raise when something else follows than should: a length that was damaged to zero looks like the end.

        After a file's batches stand its footer, the footer's length and the mark; after a stream's there is nothing.
        """
        begin = file.offset
        last = b""
        while block := file.read(BLOCK):
            last = (last + block)[-10:]
        rest = file.offset - begin
        if not self._head.startswith(ARROW_MARK):
            if rest:
                raise self._damaged(file, f"{rest:,} bytes follow after its end")
        elif last[4:] != ARROW_MARK or not 0 <= rest - 10 - int.from_bytes(last[:4], "little") < PADDING:
            raise self._damaged(file, "it was cut short, or batches are missing")

    def _damaged(self, file: FeedFile, what: str) -> SourceError:
        place = f"{self._source.name}, byte {file.offset:,}"
        return SourceError(f"the Arrow data is damaged: {what}", place=place)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
