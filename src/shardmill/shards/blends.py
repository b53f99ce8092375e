"""Datasets and their shares as the settings of a trainer that mixes by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardmill.errors import UsageError
from shardmill.storage import AnyPath

_FORMATS = {"megatron": "megatron", "olmo": "olmo", "levanter": None, "nanotron": "datatrove"}
"""The format that each trainer reads; None: none that we write."""
TRAINERS = tuple(_FORMATS)


class Blended(NamedTuple):
    """A dataset of a mixture."""

    folder: AnyPath
    format: str
    share: float
    epochs: float
    files: dict[str, AnyPath]
    """The first file of each split."""


def blend(trainer: str, datasets: Sequence[Blended], tokens: int) -> str:
    """Return the settings with which a trainer mixes datasets. UsageError if it cannot read them.

    Trainers mix rows or samples, each by its own rule: the shares are about those that are given.
    """
    if trainer not in _FORMATS:
        raise UsageError(f"there is no export for `{trainer}`", hint=f"choose one of: {', '.join(TRAINERS)}")
    wanted = _FORMATS[trainer]
    for one in datasets:
        if wanted and one.format != wanted:
            raise UsageError(
                f"{trainer} does not read `{one.format}`",
                place=str(one.folder),
                hint=f"`shardmill convert {one.folder} -o DIR -f {wanted}` makes what it reads",
            )
    return _WRITERS[trainer](datasets, tokens)


def _megatron(datasets: Sequence[Blended], tokens: int) -> str:
    lines = []
    for flag, split in (("--train-data-path", "train"), ("--valid-data-path", "val")):
        pairs = [f"{one.share:.6g} {one.files[split].with_suffix('')}" for one in datasets if split in one.files]
        lines += [f"{flag} {' '.join(pairs)}"] if pairs else []
    return "\n".join(lines)


def _olmo(datasets: Sequence[Blended], tokens: int) -> str:
    sources = "".join(
        f"        SourceMixtureConfig(\n            source_name={one.folder.name!r},\n"
        f"            target_ratio={one.share:.6g},\n"
        f"            paths=[{str(one.files['train'].parent / '*.npy')!r}],\n"
        f"            max_repetitions={max(1.0, one.epochs):.4g},\n        ),\n"
        for one in datasets
    )
    return f"SourceMixtureDatasetConfig(\n    source_configs=[\n{sources}    ],\n    requested_tokens={tokens},\n)"


def _levanter(datasets: Sequence[Blended], tokens: int) -> str:
    weights = "".join(f"\n    {one.folder.name}: {one.share:.6g}" for one in datasets)
    return f"data:\n  train_weights:{weights}"


def _nanotron(datasets: Sequence[Blended], tokens: int) -> str:
    folders = "".join(f"\n      - {one.files['train'].parent}" for one in datasets)
    weights = "".join(f"\n      - {one.share:.6g}" for one in datasets)
    return f"data:\n  dataset:\n    dataset_folder:{folders}\n    dataset_weights:{weights}"


_WRITERS = {"megatron": _megatron, "olmo": _olmo, "levanter": _levanter, "nanotron": _nanotron}
