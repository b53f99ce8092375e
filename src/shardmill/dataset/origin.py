"""Where tokens come from that are already there: a dataset of ours, or files of other tools."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.dataset.foreign import find_eot, find_foreign
from shardmill.dataset.rearrange import Marked
from shardmill.errors import UsageError
from shardmill.run.manifest import NAME

if TYPE_CHECKING:
    from shardmill.dataset.dataset import Dataset

_INDEXED = ("megatron", "datatrove", "mds")
_OWN_EOT = {"nanogpt": "after", "npy": "before", "llmc": "before", "megatron": "after"}


@dataclass(frozen=True)
class Origin:
    """Splits of tokens, and what is known of them."""

    path: Path
    name: str
    """Prefix of file names."""
    format: str
    version: str
    """Differs when the tokens do."""
    dtype: np.dtype[Any]
    """In which to write them."""
    width: int
    """Bytes of a token as it is stored."""
    largest: int
    """The largest id that may come."""
    splits: dict[str, Marked]
    tokenizer: dict[str, Any]
    """As the manifest describes it."""
    spec: dict[str, Any]
    """How to find the tokenizer again: `tokenizer` and `pattern` as options."""
    counts: dict[str, int] = field(default_factory=dict)
    """Documents in each split, where that is written down."""
    text_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(len(split.tokens) for split in self.splits.values()) * self.width

    def check(self, eot: str) -> None:
        """UsageError when documents cannot be marked as `eot` says."""
        for split in self.splits.values():
            if split.mark is None and eot != "none":
                raise UsageError(
                    f"the tokenizer `{self.tokenizer['name']}` has no end-of-text token", hint="add `--eot none`"
                )
            if split.eot == "none" and split.index is None and eot != "none":
                raise UsageError(
                    "nothing says where documents end: there are no end-of-text tokens", hint="add `--eot none`"
                )

    def documents(self, name: str, marks: int) -> int:
        """How many a split has; `marks`: end-of-text tokens that were counted in it."""
        split = self.splits[name]
        if name in self.counts:
            return self.counts[name]
        if split.index is not None:
            return len(split.index)
        if not len(split.tokens) or split.eot == "none":
            return int(len(split.tokens) > 0)
        first, last = (int(split.tokens.read(at, at + 1)[0]) == split.mark for at in (0, len(split.tokens) - 1))
        # A document counts where it ends. A mark at the very start ends one only if it began in the other split.
        return max(0, marks - int(first and not split.continues) + int(not last and not split.open))


def find_origin(path: Path, tokenizer: str, eot: str | None = None) -> Origin:
    """What can be converted at a path. UsageError when nothing can, DamageError when it is not whole.

    `eot`: where it stands in files of other tools; None: that is found out.
    """
    if path.is_dir() and ((path / NAME).exists() or (path / ".shardmill").is_dir()):
        from shardmill.dataset.dataset import open_dataset

        if eot is not None:
            raise UsageError("a dataset of shardmill's says itself where EOT stands", hint="leave `--source-eot` out")
        return _of_dataset(path, open_dataset(path))
    return _of_files(path, tokenizer, eot)


def _of_dataset(path: Path, data: Dataset) -> Origin:
    from shardmill.dataset.dataset import document_index

    manifest = data.manifest
    indexed = data.format in _INDEXED
    options = manifest["options"]
    return Origin(
        path=path,
        name=options.get("name") or path.resolve().name,
        format=data.format,
        version=manifest["fingerprint"],
        dtype=_width(data.dtype, manifest["tokenizer"]["vocab_size"]),
        width=data.dtype.itemsize,
        largest=int(np.iinfo(_width(data.dtype, manifest["tokenizer"]["vocab_size"])).max),
        splits=_joined(
            {
                name: Marked(data[name].tokens, data.eot, data.eot_id, document_index(data[name]) if indexed else None)
                for name in data
            },
            whole=[name for name in data if data[name].described.get("dropped")],
        ),
        tokenizer=manifest["tokenizer"],
        spec={key: options[key] for key in ("tokenizer", "pattern", "specials") if key in options},
        # What `--tail drop` left out is counted in the manifest, and not there to be converted.
        counts={name: data[name].described["documents"] for name in data if not data[name].described.get("dropped")},
        text_bytes={name: data[name].described["bytes"] for name in data},
    )


def _of_files(path: Path, tokenizer: str, eot: str | None) -> Origin:
    from shardmill.tokens import load_tokenizer

    known = load_tokenizer(tokenizer)
    found = find_foreign(path, known.dtype)
    if known.eot is None:
        eot = "none"
    elif eot is None:
        eot = find_eot(found.splits.values(), found.indices.values(), known.eot, _OWN_EOT[found.format])
    stats = [one.stat() for one in found.paths]
    return Origin(
        path=path,
        name=path.resolve().name.split(".")[0],
        format=found.format,
        version=hashlib.sha256(repr([(s.st_size, s.st_mtime_ns) for s in stats]).encode()).hexdigest(),
        dtype=_width(found.dtype, known.vocab_size),
        width=found.dtype.itemsize,
        largest=known.largest_id,
        splits=_joined(
            {split: Marked(tokens, eot, known.eot, found.indices.get(split)) for split, tokens in found.splits.items()}
        ),
        tokenizer=known.describe(),
        spec={"tokenizer": tokenizer},
    )


def _joined(splits: dict[str, Marked], whole: Collection[str] = ()) -> dict[str, Marked]:
    """The same, with what is known of a document that begins in one split and ends in the other.

    `whole`: splits that end inside a document for another reason.
    """
    cut = []
    for name, split in splits.items():
        if len(split.tokens) and split.mark is not None and split.eot != "none":
            at = 0 if split.eot == "before" else len(split.tokens) - 1
            if int(split.tokens.read(at, at + 1)[0]) != split.mark and name not in whole:
                cut.append(name)
    if len(cut) != 1 or len(splits) != 2 or not all(len(split.tokens) for split in splits.values()):
        return splits
    (other,) = splits.keys() - set(cut)
    later, earlier = (cut[0], other) if splits[other].eot == "before" else (other, cut[0])
    joined = {later: replace(splits[later], continues=True), earlier: replace(splits[earlier], open=True)}
    return {name: joined[name] for name in splits}


def _width(stored: np.dtype[Any], vocab_size: int) -> np.dtype[Any]:
    """Of the two widths that trainers read the one that suffices."""
    narrow = stored == np.uint16 or (stored != np.uint32 and vocab_size <= 1 << 16)
    return np.dtype(np.uint16 if narrow else np.uint32)
