"""The parts of a plan, as a merge asks for them: in order, each when it is there, and checked.

A part is an ordinary dataset, with tokens, documents tables and a manifest, in a folder or an object store. It is read
once, from beginning to end, so its files are compared with the checksums of its manifest while they are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.arrange import InputSplit
from shardmill.cluster.place import Place, damaged_part, part_manifest, part_name
from shardmill.cluster.planning import PartPlan, missing_parts
from shardmill.errors import MismatchError, OutputError, UsageError
from shardmill.shards import DOCUMENT, HEADER_BYTES
from shardmill.write import LIBRARIES, Manifest, OtherFile, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS_AT_ONCE = 1 << 15  # of a documents table
_REJECTS_BLOCK = 1 << 20


class PlannedParts:
    """Parts that are all there."""

    complete = True
    """Whether all parts were there when the merge began."""

    def __init__(self, whole: PartPlan) -> None:
        self._whole = whole
        self._first: Manifest | None = None

    def manifest(self, number: int) -> Manifest:
        """Return the manifest of a part as soon as it is there. Raise MismatchError if it does not belong here."""
        manifest = self.find(number)
        if manifest is None:
            raise self.missing([number])
        return manifest

    def find(self, number: int) -> Manifest | None:
        """Return the manifest of a part, checked, or None if it is not there."""
        whole, manifest = self._whole, part_manifest(self._whole.place, number)
        if manifest is None:
            return None
        about = manifest["part"]
        if about["plan"] != whole.fingerprint or about["bounds"] != list(whole.parts[number][1:5]):
            raise MismatchError(
                f"part {number:,} is of another plan",
                place=whole.out,
                hint=f"delete it, and make it again: `shardmill prepare --plan {whole.out} --part {number}`",
            )
        self._first = self._first or manifest
        if about["engine"]["sha256"] != self._first["part"]["engine"]["sha256"]:
            raise MismatchError(
                f"parts {self._first['part']['number']:,} and {number:,} were made by releases that give other tokens",
                place=whole.out,
                hint="install the same releases on all machines, delete the parts of one kind, and make them again",
            )
        if whole.keep and about.get(LIBRARIES) != self._first["part"].get(LIBRARIES):
            raise MismatchError(
                f"parts {self._first['part']['number']:,} and {number:,} were made by releases that write other files: "
                f"{_libraries(self._first)} and {_libraries(manifest)}",
                place=whole.out,
                hint="install the same releases on all machines, delete the parts of one kind, and make them again",
            )
        return manifest

    def check(self) -> None:
        """Raise an error that names a missing or foreign part."""
        if missing := missing_parts(self._whole):
            raise self.missing(missing)
        for part in self._whole.parts:
            self.manifest(part.number)

    def missing(self, numbers: list[int]) -> UsageError:
        listed = ", ".join(map(str, numbers[:10])) + (" …" if len(numbers) > 10 else "")
        return UsageError(
            f"{len(numbers):,} of {len(self._whole.parts):,} parts are missing: {listed}",
            place=self._whole.out,
            hint=f"make them: `shardmill prepare --plan {self._whole.out} --part {numbers[0]}`",
        )

    def go_on(self) -> None:
        """Called between two batches: whoever makes parts meanwhile goes on."""

    def close(self) -> None:
        """Called when no part is needed any more: with `--limit`, not all of them are."""


class StoredPart:
    """Reads one part, once and in order. Raises OutputError where it is damaged, at the latest in `check`.

    Sources and records are those of the whole plan.
    """

    def __init__(self, place: Place, number: int, manifest: Manifest, earlier: int) -> None:
        """`earlier`: records of its first source that are in earlier parts."""
        self._place, self._number, self._earlier = place, number, earlier
        self._folder = f"{part_name(number)}/{manifest['made']}"
        self._manifest, self._about = manifest, manifest["part"]
        self._files: list[_PartFile] = []

    def splits(self) -> Iterator[InputSplit]:
        """Yield its splits."""
        manifest, about, dtype = self._manifest, self._about, np.dtype(self._manifest["dtype"])
        for name, described in manifest["splits"].items():
            tokens = _PartTokens(self._open(described["files"][0]), described["tokens"], dtype)
            table = self._table(name)
            # The document that is open at the end has a row too, if it has tokens here.
            ends_inside = about["ends"] == name and table.rows > described["documents"]
            begins_inside = about["begins"] == name
            eot_id = manifest["tokenizer"]["eot"]
            yield InputSplit(name, tokens, manifest["eot"], eot_id, table, None, begins_inside, ends_inside)

    def documents(self) -> Iterator[tuple[str, Rows]]:
        """Yield the rows of its documents table, where all documents are whole: (split, some of them)."""
        for name in self._manifest["splits"]:
            table, begin = self._table(name), 0
            while len(found := table.read_on()):
                whole = np.ones(len(found), np.bool_)
                lengths = np.diff(found["end"], prepend=begin)
                val = np.full(len(found), name == "val")
                begin = int(found["end"][-1])
                yield name, Rows(lengths, found["bytes"], val, whole, whole, found["source"], found["record"])
        self.check()

    def _table(self, split: str) -> _PartTable:
        described = self._manifest["splits"][split]["documents_table"]
        return _PartTable(self._open(described), described["bytes"], self._about["bounds"][0], self._earlier)

    def _open(self, described: OtherFile) -> _PartFile:
        self._files.append(_PartFile(self._place, self._number, self._folder, described))
        return self._files[-1]

    def rejects(self) -> Iterator[list[bytes]]:
        """Yield the lines of its rejects, some at a time. Raise OutputError at the end if they are damaged."""
        if "rejects" not in self._manifest:
            return
        file, rest = self._open(self._manifest["rejects"]), b""
        while block := file.read(_REJECTS_BLOCK).tobytes():
            *lines, rest = (rest + block).split(b"\n")
            yield [line + b"\n" for line in lines]
        file.check()

    def check(self) -> None:
        """Raise OutputError if a file that was read is not what was written."""
        for file in self._files:
            file.check()

    def damaged(self) -> OutputError:
        return damaged_part(self._number, "its documents do not fit its tokens", self._place.out)

    def delete(self) -> None:
        """Delete its files. The manifest stays, so the part is not missing."""
        self._place.delete(self._folder)


class _PartFile:
    """A file of a part, read from its beginning to its end, and its checksum."""

    def __init__(self, place: Place, number: int, folder: str, described: OtherFile) -> None:
        self._place, self._number, self._folder = place, number, folder
        self._name, self._size, self._expected = described["name"], described["bytes"], described["sha256"]
        self._at, self._hash = 0, hashlib.sha256()

    def read(self, size: int) -> NDArray[np.uint8]:
        """Return the next bytes, fewer at the end."""
        size = min(size, self._size - self._at)
        if size <= 0:
            return np.empty(0, np.uint8)
        try:
            data = self._place.section(f"{self._folder}/{self._name}", self._at, self._at + size)
        except FileNotFoundError:
            raise damaged_part(self._number, f"`{self._name}` is not there", self._place.out) from None
        if len(data) < size:
            raise damaged_part(self._number, f"`{self._name}` is shorter than it was", self._place.out)
        self._hash.update(data.data)
        self._at += size
        return data

    def check(self) -> None:
        """Read what is left. Raise OutputError if the file is not what was written."""
        while len(self.read(_REJECTS_BLOCK)):
            pass
        if self._hash.hexdigest() != self._expected:
            raise damaged_part(self._number, f"`{self._name}` is not what was written", self._place.out)


class _PartTokens:
    """The tokens of a split, which must be read in order."""

    def __init__(self, file: _PartFile, tokens: int, dtype: np.dtype[Any]) -> None:
        self._file, self._tokens, self._dtype = file, tokens, dtype.newbyteorder("<")

    def __len__(self) -> int:
        return self._tokens

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._file.read((stop - start) * self._dtype.itemsize).view(self._dtype)


class _PartTable:
    """A documents table, which must be read in order."""

    def __init__(self, file: _PartFile, size: int, first_source: int, earlier: int) -> None:
        self._file, self._first_source, self._earlier = file, first_source, earlier
        self.rows = (size - HEADER_BYTES) // DOCUMENT.itemsize
        self._begin = 0
        self._held = np.empty(0, DOCUMENT)
        file.read(HEADER_BYTES)

    def read_on(self) -> NDArray[Any]:
        """Return the next rows; none: there are no more."""
        found = self._file.read(_ROWS_AT_ONCE * DOCUMENT.itemsize).view(DOCUMENT).copy()
        found["record"][found["source"] == 0] += self._earlier
        found["source"] += self._first_source
        return found

    def overlapping(self, start: int, stop: int, most: int) -> tuple[int, NDArray[Any]]:
        done = int(np.searchsorted(self._held["end"], start, side="right"))
        if done:
            self._begin, self._held = int(self._held["end"][done - 1]), self._held[done:]
        while not len(self._held) or (self._held["end"][-1] < stop and len(self._held) < most):
            more = self.read_on()
            if not len(more):
                break
            self._held = np.concatenate([self._held, more])
        last = int(np.searchsorted(self._held["end"], stop)) + 1
        return self._begin, self._held[: min(last, most)]


def _libraries(manifest: Manifest) -> str:
    return ", ".join(f"{name} {release}" for name, release in manifest.get("part", {}).get(LIBRARIES, {}).items())
