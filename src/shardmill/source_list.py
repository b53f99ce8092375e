"""The sources of a run in order, what is known of all of them, and what was found beside them and is not read."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import compress, islice
from operator import itemgetter
from typing import Any

from shardmill.detection import are_arrow_free
from shardmill.errors import MismatchError
from shardmill.python_sources import PythonSource, number_of
from shardmill.storage import BLOCK_ROWS, BlockSequence, PackedRows, Source

_MOST_KINDS, _MOST_NAMES, _MOST_SENTENCES = 40, 100, 20  # that are kept
_LONGEST_NAME = 300  # characters
_SHOWN_KINDS = 8  # in a line of the summary
OTHER = "other file"


@dataclass
class Skipped:
    """What was found among the sources and is not read, counted by kind, in the order in which kinds were found.

    A kind is a noun that takes an `s`.
    """

    files: int = 0
    folders: int = 0
    """Folders that were not entered."""
    kinds: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """The first ones, as `KIND: NAME`."""
    notes: list[str] = field(default_factory=list)
    """Sentences about choices that were made, such as the split that is read."""
    warnings: list[str] = field(default_factory=list)
    """Sentences about sources that look wrong."""

    def add(self, kind: str, name: str) -> None:
        """Count a file, or a folder if the kind says so."""
        if kind.endswith("folder"):
            self.folders += 1
        else:
            self.files += 1
        kept = kind if kind in self.kinds or len(self.kinds) < _MOST_KINDS else OTHER
        self.kinds[kept] = self.kinds.get(kept, 0) + 1
        if len(self.names) < _MOST_NAMES:
            self.names.append(f"{kind}: {name[:_LONGEST_NAME]}")

    def note(self, sentence: str) -> None:
        if sentence not in self.notes and len(self.notes) < _MOST_SENTENCES:
            self.notes.append(sentence)

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings and len(self.warnings) < _MOST_SENTENCES:
            self.warnings.append(sentence)

    def data(self) -> dict[str, Any]:
        """As JSON-able data, for the plan and the manifest."""
        return asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any] | None) -> Skipped:
        """Return what `data` describes; older plans and manifests say nothing."""
        return cls(**data) if data else cls()

    def sentence(self) -> str:
        """`5 files skipped: 2 archives, 2 pictures, 1 PDF`; empty if nothing was skipped."""
        if not self.kinds:
            return ""
        counts = [_plural(self.files, "file")] if self.files else []
        counts += [_plural(self.folders, "folder")] if self.folders else []
        kinds = sorted(self.kinds.items(), key=lambda one: (one[0] == OTHER, -one[1]))
        shown = [_plural(count, kind) for kind, count in kinds[:_SHOWN_KINDS]]
        if len(kinds) > _SHOWN_KINDS:
            shown.append(f"{sum(count for _, count in kinds[_SHOWN_KINDS:]):,} more")
        return f"{' and '.join(counts)} skipped: {', '.join(shown)}"

    def lines(self, *, names: bool) -> Iterator[str]:
        """Yield lines for a summary; `names`: also the names that are kept."""
        yield from self.notes
        if said := self.sentence():
            yield said
        if names:
            yield from (f"  {name}" for name in self.names)
            if (more := self.files + self.folders - len(self.names)) > 0:
                yield f"  and {more:,} more"


def _plural(count: int, kind: str) -> str:
    return f"{count:,} {kind}" if count == 1 else f"{count:,} {kind}s"


class Sources(BlockSequence[Source]):
    """The sources of a run in order. `Source` objects are made when they are used, so a million sources take 20 MB."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._rows = PackedRows()
        self.sizes = array("q")
        """Bytes of each; -1: a stream."""
        self.remote = False
        """Whether any of them is remote."""
        self.arrow_free = True
        """Whether all can be read without Arrow, judging by their names."""
        self.requested: dict[str, str] = {}
        """By repository and revision at the hub, as the user gave them: the name of one source from there."""
        self.from_python: dict[str, PythonSource] = {}
        """Text that the calling program passed, by the path of its source."""
        self.skipped = Skipped()
        """What was found beside them and is not read."""
        # The feeder, the writer and the fetcher are each at another block.
        self._unpacked = lru_cache(4)(lambda number: list(map(Source._make, self._rows.block(number))))
        self.extend(sources)

    def append(self, source: Source) -> None:
        self.extend([source])

    def extend(self, sources: Iterable[Source]) -> None:
        sources = iter(sources)
        while some := list(islice(sources, BLOCK_ROWS)):
            self.sizes.extend([-1 if source[2] is None else source[2] for source in some])
            self.remote = self.remote or any(source.remote for source in some if "://" in source[1])
            self.arrow_free = self.arrow_free and are_arrow_free([source[1] for source in some])
            self._rows.extend(some)

    def renamed(self, names: Iterable[str]) -> Sources:
        """Return the same sources under other names."""
        return self._with(source._replace(name=name) for source, name in zip(self, names, strict=True))

    def without(self, numbers: Iterable[int]) -> Sources:
        """Return the sources without those of these numbers."""
        kept = bytearray(b"\1") * len(self)
        for number in numbers:
            kept[number] = 0
        return self._with(compress(self, kept))

    def _with(self, sources: Iterable[Source]) -> Sources:
        """Return other sources, of which the same is known."""
        made = Sources(sources)
        made.requested, made.from_python, made.skipped = self.requested, self.from_python, self.skipped
        return made

    def refuse_second_reading(self, first: int) -> None:
        """Raise MismatchError where a run that goes on at source `first` would have to read an iterator again.

        Those after it are refused too, since the feeder may have been ahead.
        """
        for path, source in self.from_python.items():
            if number_of(path) >= first and source.one_shot:
                raise MismatchError(
                    "the folder holds an unfinished run, and an iterator cannot be read a second time",
                    place=source.name,
                    hint="give a callable that makes the iterator, or start anew with `overwrite=True`",
                )

    def refuse_unversioned(self) -> None:
        """Raise MismatchError for a finished dataset if nothing tells whether a source still gives its documents."""
        for source in self.from_python.values():
            if source.unversioned:
                raise MismatchError(
                    "there is a dataset already, and nothing tells whether this source gives the same documents",
                    place=source.name,
                    hint="name them with `shardmill.Source(source, version=…)`, or start anew with `overwrite=True`",
                )

    def facts(self) -> Iterator[tuple[str, int | None, str]]:
        """Yield name, size and version of each."""
        return map(itemgetter(0, 2, 3), self._rows)

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all; None when one is a stream of unknown size."""
        return None if -1 in self.sizes else sum(self.sizes)

    def bytes_before(self, index: int) -> int:
        """Bytes of all before this one, as far as they are known."""
        return sum(max(0, size) for size in islice(self.sizes, index))

    def __len__(self) -> int:
        return len(self.sizes)

    def block(self, number: int) -> list[Source]:
        if number < len(self) // BLOCK_ROWS:
            return self._unpacked(number)
        return self._rows.block(number)  # type: ignore[return-value]  # not packed yet: as they were added
