"""Token files that other tools have made: nanoGPT's, build-nanogpt's, llm.c's and Megatron's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.dataset.document_index import DocumentIndex, Megatron
from shardmill.dataset.token_files import TokenFile, TokenFiles
from shardmill.errors import DamageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_LLMC: dict[tuple[int, int], np.dtype[Any]] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_MEGATRON: dict[int, np.dtype[Any]] = {4: np.dtype("<i4"), 8: np.dtype("<u2")}
_SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Found:
    """A file of tokens, as its own head describes it."""

    format: str
    dtype: np.dtype[Any]
    file: TokenFile


@dataclass(frozen=True)
class Foreign:
    """Token files of one format, by split."""

    format: str
    dtype: np.dtype[Any]
    splits: dict[str, TokenFiles]
    indices: dict[str, DocumentIndex]
    paths: list[Path]


def find_foreign(path: Path, raw_dtype: np.dtype[Any]) -> Foreign:
    """The token files at a path: a file, or a folder of them. `raw_dtype`: of files that do not say it themselves.

    UsageError when there are none, or of several kinds; DamageError when one is not whole.
    """
    paths = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    files = [one for one in paths if one.suffix in (".bin", ".npy") and one.is_file()]
    if not files:
        raise UsageError(
            f"`{path}` holds no dataset and no token files",
            hint="give a folder made by shardmill, or .bin or .npy files of nanoGPT, build-nanogpt, llm.c or Megatron",
        )
    found = [_recognise(one, raw_dtype) for one in files]
    kinds = {(one.format, one.dtype) for one in found}
    if len(kinds) > 1:
        said = ", ".join(sorted(f"{format} of {dtype.name}" for format, dtype in kinds))
        raise UsageError(f"`{path}` holds token files of several kinds: {said}", hint="give each kind a folder")
    splits: dict[str, list[TokenFile]] = {}
    for one in found:
        splits.setdefault(_split_of(one.file.path), []).append(one.file)
    tokens = {split: TokenFiles(splits[split], found[0].dtype) for split in sorted(splits)}
    indices: dict[str, DocumentIndex] = {}
    if found[0].format == "megatron":
        indices = {
            split: Megatron(part, [file.path.with_suffix(".idx") for file in part.files])
            for split, part in tokens.items()
        }
    return Foreign(found[0].format, found[0].dtype, tokens, indices, files)


def find_eot(tokens: Iterable[TokenFiles], indices: Iterable[DocumentIndex], eot: int) -> str:
    """Where the end-of-text token stands in files that do not say it: after, before or none."""
    firsts, lasts, inside = [], [], False
    for index, part in zip(indices, tokens, strict=False):
        for i in range(min(len(index), 16)):
            start, end = index.bounds(i)
            if end > start:
                firsts.append(int(part.read(start, start + 1)[0]))
                lasts.append(int(part.read(end - 1, end)[0]))
    if not firsts:
        for part in tokens:
            if len(part):
                firsts.append(int(part.read(0, 1)[0]))
                lasts.append(int(part.read(len(part) - 1, len(part))[0]))
                inside |= bool((part.read(0, min(_SAMPLE, len(part))) == eot).any())
    if firsts and all(first == eot for first in firsts):
        return "before"
    # A stream that was cut at its end has no last mark, but those inside tell that there are marks.
    return "after" if (lasts and all(last == eot for last in lasts)) or inside else "none"


def _split_of(path: Path) -> str:
    """By the last word of its name that says so: `medieval_train_000001.npy` is train."""
    words = [word for word in re.split(r"[^a-z]+", path.stem.lower()) if word in _SPLIT_WORDS]
    split = _SPLIT_WORDS[words[-1]] if words else "train"
    if split == "test":
        raise UsageError(f"`{path.name}` is neither train nor val", hint="move it away: there are two splits")
    return split


def _recognise(path: Path, raw_dtype: np.dtype[Any]) -> Found:
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(1024)
    if path.suffix == ".npy":
        return _npy(path, size)
    if path.with_suffix(".idx").exists():
        return _megatron(path, size)
    words = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    if len(words) == 256 and (dtype := _LLMC.get((int(words[0]), int(words[1])))):
        return _whole(Found("llmc", dtype, TokenFile(path, int(words[2]), 1024)), size)
    if size % raw_dtype.itemsize:
        raise DamageError(f"{size:,} bytes are not whole tokens of {raw_dtype.itemsize} bytes", place=str(path))
    return Found("nanogpt", raw_dtype, TokenFile(path, size // raw_dtype.itemsize))


def _npy(path: Path, size: int) -> Found:
    readers: dict[tuple[int, int], Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    read_magic: Callable[..., Any] = np.lib.format.read_magic  # not every NumPy says what it gives
    with open(path, "rb") as file:
        try:
            shape, _, dtype = readers[read_magic(file)](file)
        except (ValueError, KeyError) as why:
            raise DamageError(f"the file is not one of NumPy's: {why}", place=str(path)) from None
        head = file.tell()
    if len(shape) != 1 or dtype.kind not in "ui" or dtype.itemsize not in (2, 4) or dtype.byteorder == ">":
        raise UsageError(f"an array of {dtype} with the shape {shape} is no sequence of tokens", hint=str(path))
    return _whole(Found("npy", dtype, TokenFile(path, shape[0], head)), size)


def _megatron(path: Path, size: int) -> Found:
    with open(path.with_suffix(".idx"), "rb") as file:
        code = file.read(18)[17]
    if code not in _MEGATRON:
        raise UsageError(f"Megatron's type {code} is not one for tokens here", hint=str(path.with_suffix(".idx")))
    dtype = _MEGATRON[code]
    found = Found("megatron", dtype, TokenFile(path, size // dtype.itemsize))
    index = Megatron(TokenFiles([found.file], dtype), [path.with_suffix(".idx")])
    through = index.bounds(len(index) - 1)[1] if len(index) else 0
    return _whole(Found("megatron", dtype, TokenFile(path, through)), size)


def _whole(found: Found, size: int) -> Found:
    expected = found.file.head + found.file.tokens * found.dtype.itemsize
    if size != expected:
        raise DamageError(f"the file has {size:,} bytes where its head says {expected:,}", place=str(found.file.path))
    return found
