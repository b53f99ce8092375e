"""Where tokens come from that are already there: a dataset of ours, or files of other tools."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
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
        ends = [int(split.tokens.read(at, at + 1)[0]) for at in (0, len(split.tokens) - 1)]
        return max(0, marks + 1 - ends.count(split.mark or 0))


def find_origin(path: Path, tokenizer: str) -> Origin:
    """What can be converted at a path. UsageError when nothing can, DamageError when it is not whole."""
    if path.is_dir() and ((path / NAME).exists() or (path / ".shardmill").is_dir()):
        from shardmill.dataset.dataset import open_dataset

        return _of_dataset(path, open_dataset(path))
    return _of_files(path, tokenizer)


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
        splits={
            name: Marked(data[name].tokens, data.eot, data.eot_id, document_index(data[name]) if indexed else None)
            for name in data
        },
        tokenizer=manifest["tokenizer"],
        spec={key: options[key] for key in ("tokenizer", "pattern", "specials") if key in options},
        counts={name: data[name].described["documents"] for name in data},
        text_bytes={name: data[name].described["bytes"] for name in data},
    )


def _of_files(path: Path, tokenizer: str) -> Origin:
    from shardmill.tokens import load_tokenizer

    known = load_tokenizer(tokenizer)
    found = find_foreign(path, known.dtype)
    eot = "none" if known.eot is None else find_eot(found.splits.values(), found.indices.values(), known.eot)
    stats = [one.stat() for one in found.paths]
    return Origin(
        path=path,
        name=path.resolve().name.split(".")[0],
        format=found.format,
        version=hashlib.sha256(repr([(s.st_size, s.st_mtime_ns) for s in stats]).encode()).hexdigest(),
        dtype=_width(found.dtype, known.vocab_size),
        width=found.dtype.itemsize,
        largest=known.largest_id,
        splits={
            split: Marked(tokens, eot, known.eot, found.indices.get(split)) for split, tokens in found.splits.items()
        },
        tokenizer=known.describe(),
        spec={"tokenizer": tokenizer},
    )


def _width(stored: np.dtype[Any], vocab_size: int) -> np.dtype[Any]:
    """Of the two widths that trainers read the one that suffices."""
    narrow = stored == np.uint16 or (stored != np.uint32 and vocab_size <= 1 << 16)
    return np.dtype(np.uint16 if narrow else np.uint32)
