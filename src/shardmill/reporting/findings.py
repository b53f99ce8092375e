"""What looks wrong in a dataset, in sentences, and the command that made it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

from shardmill.options import Options
from shardmill.units import plural
from shardmill.write import val_warnings

if TYPE_CHECKING:
    from shardmill.dataset import Dataset
    from shardmill.reporting.page import Surveyed

_SOURCES = 3  # that the command names
_MANY = 0.01  # share of repeated documents that is worth a word


def findings(surveyed: Surveyed) -> Iterator[str]:
    """Yield what a person should look at before training."""
    manifest, duplicates = surveyed.data.manifest, surveyed.duplicates
    rejected, documents = manifest["rejected"], manifest["documents"]
    about = "" if duplicates.exact else "about "
    sampled = " of the sample" if any(found.sampled for found in surveyed.splits) else ""
    if rejected:
        yield f"{rejected:,} of {rejected + documents:,} documents were rejected; the reasons are at the end."
    if replaced := manifest.get("replaced", 0):
        yield f"{replaced:,} sequences of bytes were not UTF-8 and became U+FFFD."
    if (empty := manifest.get("empty", 0)) > _MANY * max(1, documents):
        yield f"{empty:,} documents were empty."
    if not manifest.get("arranged", {}).get("block_size"):  # rows of a packed dataset hold parts of documents
        names = [found.name for found in surveyed.splits]
        if "train" in names and "val" in names and (shared := duplicates.shared("val", "train")):
            yield f"{about}{plural(shared, 'document')}{sampled} in val, also in train, token for token."
        for found in surveyed.splits:
            repeated = duplicates.repeated(found.name)
            if repeated > _MANY * found.documents_read:
                share = f"in {found.name} ({repeated / max(1, found.documents_read):.1%})"
                yield f"{about}{plural(repeated, 'document')}{sampled} {share}, equal to an earlier one."
    if "converted" not in manifest:
        yield from val_warnings(manifest)


def made_by(data: Dataset) -> str:
    """Return the command that makes the dataset again, with the options that can change its bytes."""
    manifest = data.manifest
    arranged: dict[str, Any] = manifest.get("arranged", {})
    if "converted" in manifest:
        command, names = arranged.get("order", "convert"), [manifest["converted"].get("name", "…")]
        if command == "mix":
            names = [f"{one['name']}:{float(Fraction(one['shares'][0])):.6g}" for one in arranged["from"]]
    else:
        command, names = "prepare", [source["name"] for source in islice(manifest["sources"], _SOURCES)]
        names += ["…"] if len(manifest["sources"]) > _SOURCES else []
    words = ["shardmill", str(command), *(name if name == "…" else shlex.quote(str(name)) for name in names)]
    words += ["-o", shlex.quote(data.folder.name)]
    usual = Options().fingerprinted()
    for option in fields(Options):
        value = manifest["options"].get(option.name)
        if value is not None and value != usual.get(option.name):
            for one in value if isinstance(value, list) else [value]:
                words += [option.metadata["flags"][-1], shlex.quote(str(one))]
    words += ["--block-size", str(arranged["block_size"])] if "block_size" in arranged else []
    return " ".join(words)
