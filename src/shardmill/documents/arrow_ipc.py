"""Arrow IPC, as a file (feather) or as a stream: pyarrow decodes the text column of one batch after another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from shardmill.documents.arrow_columns import columns_of, find_column
from shardmill.documents.chunks import WHOLE, Chunk, Position, Section
from shardmill.documents.columns import LONG_ROW_COPIES, LONG_TEXT, Column, RowsReader, first_line, skip_rows
from shardmill.documents.reading import Memory
from shardmill.errors import SourceError
from shardmill.input_formats import ARROW_MARK
from shardmill.storage import STREAM_BLOCK, Feed, RandomAccess, Scanner

# A file begins with its mark, padded to this. Writers may align the footer to PADDING.
FILE_START, PADDING = 8, 64
# Rows that are measured at once; they take about 60 bytes each meanwhile.
STEP = 1 << 15
# The memory for a batch or a dictionary in times its stored bytes, before it is decoded: as it is stored, and
# decompressed to twice as much. A stream holds its blocks too.
COPIES, STREAM_COPIES = 3, 4
# Where Arrow asks for so much memory, a length in the data is wrong.
TERABYTES = re.compile(r"\d{13}")


class ArrowReader(RowsReader):
    """The feeder decodes, because a dictionary may be replaced from batch to batch."""

    def chunks(self, feed: Feed, start: Position, size: int, section: Section = WHOLE) -> Iterator[Chunk]:
        if self._head.startswith(b"FEA1"):
            raise SourceError(
                "the file is Feather version 1", place=self._source.name, hint="write it again with pyarrow.feather"
            )
        row = start.offset
        with closing(Memory(self._room, self._source.name)) as memory:
            file = ArrowFile(feed, memory, FILE_START if self._is_file else 0)
            try:
                columns = (column for batch in self._batches(file) for column in self._columns(batch, size, memory))
                for column in skip_rows(columns, row):
                    yield self._chunk(row, column, feed.stored(file.at))
                    row += len(column)
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                if isinstance(error, MemoryError) and not TERABYTES.search(str(error)):
                    raise
                raise SourceError(
                    f"the Arrow data is damaged: {first_line(error)}",
                    place=f"{self._source.name}, byte {file.at:,}",
                    hint=None if isinstance(feed, RandomAccess) else "if it is not, store it as a plain file",
                ) from error

    @property
    def _is_file(self) -> bool:
        return self._head.startswith(ARROW_MARK)

    def _batches(self, file: ArrowFile) -> Iterator[pa.RecordBatch]:
        """The batches, with the text column alone.

        A file is a stream between two marks, so that a compressed one can be read as a stream. But only its footer says
        where dictionaries are that stand after the rows: polars writes such files.
        """
        listed = self._is_file and isinstance(file.feed, RandomAccess)
        begin = file.at
        schema = pa.ipc.open_file(file).schema if listed else pa.ipc.read_schema(file)
        self._path = find_column(schema, self._field, self._source.name)
        options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(self._path[0])], use_threads=False)
        if listed:
            reader = pa.ipc.open_file(file, options=options)
            for number in range(reader.num_record_batches):
                file.begin_batch()
                yield reader.get_batch(number)
            return
        file.seek(begin)
        reader = pa.ipc.open_stream(file, options=options)
        file.begin_batch()
        for batch in reader:
            yield batch
            del batch
            file.begin_batch()
        self._check_end(file.feed, file.at)

    def _columns(self, batch: pa.RecordBatch, size: int, memory: Memory) -> Iterator[Column]:
        def need_row(size: int) -> None:
            memory.need("a row", LONG_ROW_COPIES * size if size > LONG_TEXT else 0)

        held = batch.get_total_buffer_size()
        memory.need("a batch", held if held > LONG_TEXT else 0, LONG_ROW_COPIES * held)
        for first in range(0, batch.num_rows, STEP):
            yield from columns_of(batch.slice(first, STEP), self._path, max(1, size), copied=True, need=need_row)

    def _check_end(self, feed: Feed, begin: int) -> None:
        """Raise when the wrong bytes follow the last batch: a length that was damaged to zero looks like the end.

        After a file's batches come its footer, the footer's length and the mark; after a stream's there is nothing.
        """
        scanner, last = Scanner(feed, begin), b""
        while block := scanner.next(STREAM_BLOCK):
            last = (last + block)[-10:]
        rest = scanner.at - begin
        if not self._is_file:
            if rest:
                raise ValueError(f"{rest:,} bytes follow after its end")
        elif last[4:] != ARROW_MARK or not 0 <= rest - 10 - int.from_bytes(last[:4], "little") < PADDING:
            raise ValueError("it was cut short, or batches are missing")


class ArrowFile:
    """A feed with the methods of a file that pyarrow calls; memory is held for what it reads."""

    closed = False

    def __init__(self, feed: Feed, memory: Memory, at: int) -> None:
        self.feed, self.at = feed, at
        self._memory, self._taken = memory, 0
        self._copies = COPIES if isinstance(feed, RandomAccess) else STREAM_COPIES

    def begin_batch(self) -> None:
        """What was read so far is decoded; what follows is read in order."""
        self._taken = 0
        self.feed.drop(self.at)

    def read(self, n: int) -> bytes:
        if isinstance(self.feed, RandomAccess) and n > self.feed.size - self.at:
            raise ValueError("it ends too early, or a length in it is wrong")
        self._taken += n
        if self._taken > LONG_TEXT:
            self._memory.need("a batch", self._copies * self._taken, LONG_ROW_COPIES * self._taken)
        data = self.feed.read(self.at, self.at + n)
        self.at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        size = self.feed.size if isinstance(self.feed, RandomAccess) else 0
        self.at = offset + (0, self.at, size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def seekable(self) -> bool:
        return isinstance(self.feed, RandomAccess)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """The feed is closed by whoever opened it."""
