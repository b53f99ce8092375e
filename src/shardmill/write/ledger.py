"""Counts what was read: documents, rejects and odd text of each source, and in total; ends a run with too many rejects.

Its files are `rejects.jsonl`, and the list of sources that were read to their end, which goes into the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from json.encoder import encode_basestring as _quoted
from typing import TYPE_CHECKING, Any

from shardmill.errors import SourceError
from shardmill.storage import PARTIAL, PartialFile
from shardmill.troubles import FEWEST_BAD, too_much_invalid
from shardmill.write.batch import ODD, FoundInSource, FoundPart, FoundSources
from shardmill.write.manifest import REJECTS, SourceLines, as_bytes, json_line

if TYPE_CHECKING:
    from shardmill.source_list import Sources
    from shardmill.storage import Source
    from shardmill.write.destination import Destination

_LINES_AT_ONCE = 1024  # of rejects
_UNITS = ("line", "row", "byte")  # that say where in its source a reject is


@dataclass
class Counts:
    """What a later run needs to go on counting. It stays small, however much has been read."""

    source: int = 0
    """The source that is being read, as an index into the plan."""
    here: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("documents", "empty", "rejected", "tokens"), 0))
    """Counts of that source."""
    unit: str = "byte"
    """What a place in it counts."""
    odd: dict[str, int] = field(default_factory=dict)
    """What was found of `ODD` in it; only what was."""
    through: int = 0
    """Its stored bytes that have been read."""
    bytes: int = 0
    """Stored bytes of the sources before it."""
    totals: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("documents", "empty", "rejected", "replaced", "fallbacks"), 0)
    )
    rejects_bytes: int = 0
    sources_bytes: int = 0


class Ledger:
    """Counts what the batches of a run say was read. One thread uses it."""

    def __init__(self, destination: Destination, sources: Sources, bad_allowed: float | int | None) -> None:
        """`bad_allowed`: rejects and invalid bytes, as a number or as a share of what is read; None: any number."""
        self._destination, self._sources, self._bad_allowed = destination, sources, bad_allowed
        self.counts = Counts()
        self._source_lines: list[bytes] = []
        self._last_reason = ""

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Start from nothing, or from what `saved` returned."""
        self.counts = Counts(**saved or {})
        folder, journal = self._destination.folder, self._destination.journal.folder
        self._rejects_file = PartialFile(folder / REJECTS, self.counts.rejects_bytes)
        self._sources_file = PartialFile(journal / "sources.jsonl", self.counts.sources_bytes)

    def saved(self) -> dict[str, Any]:
        """The counts, as the journal records them."""
        self.counts.rejects_bytes, self.counts.sources_bytes = self._rejects_file.length, self._sources_file.length
        return asdict(self.counts)

    @staticmethod
    def understands(saved: dict[str, Any]) -> bool:
        """Whether the counts were saved by a release that counts the same."""
        return saved.keys() == {one.name for one in fields(Counts)}

    @property
    def files(self) -> list[PartialFile]:
        """The files to sync before the counts are recorded."""
        return [self._rejects_file, self._sources_file]

    @property
    def bytes(self) -> int:
        """Stored bytes that have been read, for progress."""
        return self.counts.bytes + self.counts.through

    @property
    def source_name(self) -> str:
        """The source that is being read; empty after the last."""
        at = self.counts.source
        return self._sources[at].name if at < len(self._sources) else ""

    @property
    def reads_pipe(self) -> bool:
        """Whether the source that is being read has no known size."""
        return any(source.size is None for source in islice(self._sources.iter_from(self.counts.source), 1))

    def count(self, found: Sequence[FoundInSource | FoundSources | FoundPart], text: int) -> None:
        """Count what a batch has found. `text`: bytes of text that are counted for a split by now.

        SourceError when there are more rejects, or more invalid UTF-8, than `--max-bad` allows.
        """
        for one in found:
            if isinstance(one, FoundInSource):
                self._count(one, text)
            elif isinstance(one, FoundSources):
                self._count_sources(one)
            else:
                self._count_part(one, text)
        if self._source_lines:
            self._sources_file.append(b"".join(self._source_lines))
            self._source_lines.clear()

    def _count(self, found: FoundInSource, text: int) -> None:
        counts = self.counts
        counts.source, counts.unit = found.source, found.unit
        for amounts in (counts.here, counts.totals):
            amounts["documents"] += found.documents
            amounts["empty"] += found.empty
            amounts["rejected"] += len(found.rejects)
        counts.here["tokens"] += found.tokens
        counts.totals["replaced"] += found.replaced
        counts.totals["fallbacks"] += found.fallbacks
        self._add_odd(found.odd)
        if found.through >= 0:
            counts.through = found.through
        if found.rejects:
            self._write_rejects(found)
        if found.replaced:
            self._check_invalid(text + found.carried, found.place)
        if found.rejects:
            self._check_rejects(found.place)
        if found.ended:
            self._end_source()

    def _write_rejects(self, found: FoundInSource) -> None:
        name = self._sources[found.source].name
        # Many at a time: every write releases the interpreter's lock, and workers that parse bad lines hold it long.
        for first in range(0, len(found.rejects), _LINES_AT_ONCE):
            lines = bytearray()
            for reject in found.rejects[first : first + _LINES_AT_ONCE]:
                number = found.first_record + reject.record + 1 if reject.record >= 0 else 0
                byte = found.first_byte + reject.byte if reject.byte >= 0 else -1
                lines += reject_line(name, found.unit, number, byte, reject.reason, reject.excerpt)
            self._rejects_file.append(bytes(lines))
        self._last_reason = found.rejects[-1].reason

    def _count_sources(self, found: FoundSources) -> None:
        counts, lengths = self.counts, found.lengths.tolist()
        documents = sum(map(bool, lengths))
        counts.totals["documents"] += documents
        counts.totals["empty"] += len(lengths) - documents
        counts.totals["fallbacks"] += found.fallbacks
        lines = map(_source_line, self._sources.iter_from(found.first), lengths)
        self._source_lines.append(as_bytes("".join(lines)))
        counts.source = found.first + len(lengths)
        counts.bytes += sum(self._sources.sizes[found.first : counts.source])
        counts.through = 0

    def _count_part(self, found: FoundPart, text: int) -> None:
        counts = self.counts
        for name, count in found.totals.items():
            counts.totals[name] += count
        for number, block in enumerate(found.sources):
            if number == 0 and found.first:
                first: dict[str, Any] = {**found.first}
                sums = {name: first[name] + count for name, count in counts.here.items()}
                self._add_odd(first.get("odd", {}))
                line = json_line({**first, **sums, **_odd_entry(counts.odd)})
                block = line + block.partition(b"\n")[2]
                counts.here, counts.odd = dict.fromkeys(counts.here, 0), {}
            self._sources_file.append(block)
        for name, count in found.here.items():
            counts.here[name] += count
        self._add_odd(found.odd)
        rejected = found.place
        for lines in found.rejects:
            self._rejects_file.append(b"".join(lines))
            last = json.loads(lines[-1])
            self._last_reason = last["reason"]
            rejected = ", ".join([last["source"], *(f"{unit} {last[unit]:,}" for unit in _UNITS if unit in last)][:2])
        counts.bytes += found.bytes
        self._check_rejects(rejected)
        self._check_invalid(text, found.place)

    def _add_odd(self, found: dict[str, int]) -> None:
        for kind, count in found.items():
            self.counts.odd[kind] = self.counts.odd.get(kind, 0) + count

    def _end_source(self) -> None:
        """Add the line of a source that has been read to its end, and count from zero for the next."""
        counts = self.counts
        source = self._sources[counts.source]
        line = {"name": source.name, "bytes": source.size, "unit": counts.unit, **counts.here}
        self._source_lines.append(json_line({**line, **_odd_entry(counts.odd)}))
        counts.bytes, counts.through = counts.bytes + (source.size or counts.through), 0
        counts.here, counts.odd = dict.fromkeys(counts.here, 0), {}
        counts.source += 1

    def _check_rejects(self, place: str) -> None:
        """Raise SourceError when rejects were added and `--max-bad` does not allow so many."""
        totals, allowed = self.counts.totals, self._bad_allowed
        bad, read = totals["rejected"], totals["documents"] + totals["empty"] + totals["rejected"]
        most = max(FEWEST_BAD, allowed * read) if isinstance(allowed, float) else allowed
        if self._last_reason and most is not None and bad > most:
            what = f"{bad:,} of {read:,} documents are bad, more than `--max-bad` allows"
            raise self._too_many_rejects(what, place)

    def _check_invalid(self, text: int, place: str) -> None:
        """Raise SourceError when more invalid UTF-8 was replaced than `--max-bad` allows, as a share of the text."""
        allowed, invalid = self._bad_allowed, self.counts.totals["replaced"]
        most = max(FEWEST_BAD, allowed * text) if isinstance(allowed, float) else allowed
        if most is not None and invalid > most:
            raise too_much_invalid(invalid, text, place)

    def check_anything_written(self) -> None:
        """Raise SourceError when every document was rejected, unless `--max-bad` is a number or `any`."""
        totals = self.counts.totals
        if totals["rejected"] and not totals["documents"] and isinstance(self._bad_allowed, float):
            raise self._too_many_rejects(f"no document was written; bad documents: {totals['rejected']:,}", None)

    def _too_many_rejects(self, what: str, place: str | None) -> SourceError:
        return SourceError(
            what + (f"; the last: {self._last_reason}" if self._last_reason else ""),
            place=place,
            hint=f"see `{self._destination.shown}/{REJECTS}{PARTIAL}`; "
            "`--max-bad any` sets all such documents aside and continues",
        )

    def finish_rejects(self) -> dict[str, dict[str, Any]]:
        """Complete `rejects.jsonl`, and return its entry in the manifest; none when there are no rejects."""
        if self._rejects_file.length:
            written = self._rejects_file.finish(0)
            return {"rejects": {"name": written.name, "bytes": written.bytes, "sha256": written.sha256}}
        self._rejects_file.close()
        self._rejects_file.remove()
        return {}

    def sources(self) -> SourceLines:
        """What was found in each source."""
        path = self._sources_file.path
        with open(path.with_name(path.name + PARTIAL), "rb") as lines:
            return SourceLines(lines)

    def close(self) -> None:
        """Close its files as they are."""
        for file in self.files:
            file.close()


def reject_line(source: str, unit: str, number: int, byte: int, reason: str, excerpt: str) -> bytes:
    """One line of `rejects.jsonl`. `number` counts from 1, as editors do; `byte` from 0."""
    # By hand, since there may be millions of them: `json.dumps` of the whole takes 6 µs, this 1.3.
    place = (f', "{unit}": {number}' if number > 0 else "") + (f', "byte": {byte}' if byte >= 0 else "")
    fields_json = f'"reason": {_quoted(reason)}, "excerpt": {_quoted(excerpt)}'
    return as_bytes(f'{{"source": {_quoted(source)}{place}, {fields_json}}}\n')


def _odd_entry(found: dict[str, int]) -> dict[str, dict[str, int]]:
    """The entry of a source's line for what was found of `ODD`: none where nothing was."""
    return {"odd": {kind: found[kind] for kind in ODD if kind in found}} if found else {}


def _source_line(source: Source, tokens: int) -> str:
    """The line that `_end_source` makes of a source that is one document or none, in an eighth of the time."""
    counts = '"documents": 1, "empty": 0' if tokens else '"documents": 0, "empty": 1'
    name = f'"name": {_quoted(source.name)}, "bytes": {source.size}, "unit": "byte"'
    return f'{{{name}, {counts}, "rejected": 0, "tokens": {tokens}}}\n'
