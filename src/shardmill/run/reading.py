"""Reading without encoding: the documents of sources as Arrow record batches, for programs that filter or inspect."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill import arguments
from shardmill.documents import (
    Chunk,
    Documents,
    Position,
    Reading,
    TooLarge,
    UndividedRoom,
    chunks_of,
    content_version,
    footer_bytes,
    load_libraries,
)
from shardmill.errors import UsageError
from shardmill.options import Options
from shardmill.run.budget import MIN_READ_AHEAD, Budget, thread_budget
from shardmill.sources import apply_recipes, find_sources
from shardmill.storage import Cache, Fetcher
from shardmill.write import SourceFacts, fingerprint

if TYPE_CHECKING:
    from shardmill.documents import Reader

SCHEMA = pa.schema(
    [("text", pa.large_string()), ("source", pa.string()), ("place", pa.string()), ("reject", pa.string())]
)
_FINGERPRINTED = ("text_field", "separator", "input_format", "include", "exclude")
_OPTIONS = (*_FINGERPRINTED, "memory", "cache", "recipe")


def read(*sources: Any, **options: Any) -> DocumentBatches:
    """Return the documents of `sources` in order.

    Options as in `prepare`: text_field, separator, input_format, include, exclude, memory, cache, recipe.

    The result can be iterated several times. Raise UsageError if a source does not exist.
    """
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(f"`read` has no option `{name}`", hint=f"choose one of: {', '.join(_OPTIONS)}")
    given = sources[0] if len(sources) == 1 else list(sources)
    specs, chosen = apply_recipes(arguments.sources("sources", given), Options.typed(options))
    return DocumentBatches(specs, Options.of(chosen))


class DocumentBatches:
    """Documents as record batches of `text`, `source`, `place` and `reject`, a few megabytes each.

    A record that is not a document has no text, and `reject` says why; else `reject` is null. An iterator holds one
    batch at a time, and what the readers need for it.
    """

    def __init__(self, specs: list[Any], options: Options) -> None:
        self._options = options
        self._sources = find_sources(
            specs, options.input_format,
            include=options.include, exclude=options.exclude, text_field=options.text_field,
        )  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """A hash of the sources' names, sizes and versions, and of the options that change what is read.

        Data from Python (a list, a frame, a table) counts by its content.
        """
        values = self._options.fingerprinted()
        facts = {
            "sources": SourceFacts(self._sources.facts),
            "options": {name: values[name] for name in _FINGERPRINTED if name in values},
        }
        if data := [given for given in self._sources.from_python.values() if given.is_data and not given.version]:
            memory = self._options.memory_bytes
            facts["content"] = [content_version(given, self._options.text_field, memory) for given in data]
        return fingerprint(facts)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        options, sources = self._options, self._sources
        load_libraries(sources)
        # In a generator that `prepare` iterates, the memory comes from the run's budget.
        budget = thread_budget() if options.memory is None else None
        budget = budget or Budget(options.memory_bytes, 1, engine_bytes=0, remote=sources.remote)
        read_ahead = budget.read_ahead or (MIN_READ_AHEAD if sources.remote else 0)
        cache = Cache(options.cache) if options.cache else None
        with Fetcher(sources, read_ahead, cache=cache, footer_bytes=footer_bytes) as fetcher:
            reading = Reading(text_field=options.text_field, separator=options.separator_bytes)
            room = UndividedRoom(budget)
            before = 0  # lines, rows or documents of the source
            for reader, first, chunk in chunks_of(sources, 0, Position(), reading, room, budget.chunk_bytes, fetcher):
                if chunk is None:
                    reader.check()
                    before = 0
                    continue
                documents = reader.read(chunk).packed()
                self._refuse_too_large(documents, reader, first, before, budget)
                yield self._batch(documents, reader, first, chunk, before)
                before += len(documents) if reader.unit == "byte" else documents.lines
                before = 0 if chunk.whole else before

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """For polars, duckdb and all others that read Arrow streams."""
        return pa.RecordBatchReader.from_batches(SCHEMA, iter(self)).__arrow_c_stream__(requested_schema)

    def _refuse_too_large(self, documents: Documents, reader: Reader, first: int, before: int, budget: Budget) -> None:
        if documents.rejects and isinstance(found := documents.rejects[0], TooLarge):
            place = f"{self._sources[first].name}, {_unit(reader)} {before + max(0, found.record) + 1:,}"
            raise budget.too_small(found.reason, found.size, place, found.hint, beside=found.beside)

    def _batch(self, documents: Documents, reader: Reader, first: int, chunk: Chunk, before: int) -> pa.RecordBatch:
        count = len(documents)
        buffers = [None, pa.py_buffer(documents.offsets), pa.py_buffer(documents.data)]
        texts = pa.Array.from_buffers(pa.large_string(), count, buffers)
        records = np.arange(count) if documents.records is None else documents.records
        reasons = pa.nulls(count, pa.string())
        if bad := documents.rejects:
            texts = pa.concat_arrays([texts, pa.nulls(len(bad), pa.large_string())])
            reasons = pa.concat_arrays([reasons, pa.array([reject.reason for reject in bad], pa.string())])
            records = np.concatenate([records, [reject.record for reject in bad]])
            order = np.argsort(records, kind="stable")
            texts, reasons, records = texts.take(order), reasons.take(order), records[order]
        if chunk.whole:
            names = pa.array([source.name for source in islice(self._sources.iter_from(first), chunk.whole)])
            sources, numbers = names.take(records), np.ones(len(records), np.int64)
        else:
            sources, numbers = pa.repeat(self._sources[first].name, len(records)), before + records + 1
        places = pc.binary_join_element_wise(_unit(reader), pa.array(numbers).cast(pa.string()), " ")
        return pa.record_batch([texts, sources, places, reasons], schema=SCHEMA)


def _unit(reader: Reader) -> str:
    """What a place counts; the bytes of a text are no longer known when it has been split and repaired."""
    return "document" if reader.unit == "byte" else reader.unit
