"""What was found among the sources and is not read: counted by kind, with the first names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

_MOST_KINDS, _MOST_NAMES, _MOST_SENTENCES = 40, 100, 20  # that are kept
_LONGEST_NAME = 300  # characters
_SHOWN_KINDS = 8  # in a line of the summary
OTHER = "other file"


@dataclass
class Skipped:
    """Counts by kind, in the order in which they were found. A kind is a noun that takes an `s`."""

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
