"""The parts of a plan, as a merge asks for them: in order, each when it is there, and checked."""

from __future__ import annotations

from typing import Any

from shardmill.cluster.place import part_manifest
from shardmill.cluster.planning import PartPlan, missing_parts
from shardmill.errors import MismatchError, UsageError


class PlannedParts:
    """PlannedParts that are all there."""

    complete = True
    """Whether all parts were there when the merge began."""

    def __init__(self, whole: PartPlan) -> None:
        self._whole = whole
        self._first: dict[str, Any] | None = None

    def manifest(self, number: int) -> dict[str, Any]:
        """Return the manifest of a part as soon as it is there. Raise MismatchError if it does not belong here."""
        manifest = self.find(number)
        if manifest is None:
            raise self.missing([number])
        return manifest

    def find(self, number: int) -> dict[str, Any] | None:
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
