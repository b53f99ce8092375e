"""Token files that other tools have made: nanoGPT's, build-nanogpt's, llm.c's and Megatron's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.dataset.document_index import DocumentIndex, Megatron, megatron_head
from shardmill.dataset.token_files import TokenFile, TokenFiles
from shardmill.errors import DamageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_LLMC: dict[tuple[int, int], np.dtype[Any]] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
_MEGATRON: dict[int, np.dtype[Any]] = {4: np.dtype("<i4"), 8: np.dtype("<u2")}
_SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_SAMPLE = 1 << 16
_ARRAY = re.compile(
    rb"\{'descr': '(<[ui][24])', 'fortran_order': (?:False|True), 'shape': \((\d{1,18}),\), *\}\s*", re.ASCII
)


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


def find_eot(tokens: Collection[TokenFiles], indices: Iterable[DocumentIndex], eot: int, own: str) -> str:
    """Where the end-of-text token stands in files that do not say it: after, before or none. `own`: in the format."""
    indices = list(indices)
    firsts, lasts, inside = [], [], False
    for index, part in zip(indices, tokens, strict=False):
        for i in range(min(len(index), 16)):
            start, end = index.bounds(i)
            if end > start:
                firsts.append(int(part.read(start, start + 1)[0]))
                lasts.append(int(part.read(end - 1, end)[0]))
    if indices:
        return "before" if firsts and set(firsts) == {eot} else "after" if lasts and set(lasts) == {eot} else "none"
    for part in tokens:
        if len(part):
            firsts.append(int(part.read(0, 1)[0]))
            lasts.append(int(part.read(len(part) - 1, len(part))[0]))
            inside |= bool((part.read(0, min(_SAMPLE, len(part))) == eot).any())
    # The stream may be cut anywhere into splits: that of build-nanogpt and llm.c is, so that train begins inside a
    # document. The whole of it still begins or ends with a mark; where that does not tell, the format's own way is it.
    before, after = firsts.count(eot), lasts.count(eot)
    if before != after:
        return "before" if before > after else "after"
    return own if before or inside else "none"


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
    with open(path, "rb") as file:
        start = file.read(12)
        # Version 1 has two bytes for the length of what describes the array, version 2 has four.
        wide = 4 if start[6:8] == b"\x02\x00" else 2
        length = int.from_bytes(start[8 : 8 + wide], "little")
        file.seek(8 + wide)
        said = file.read(min(length, 1 << 16))
    array = _ARRAY.fullmatch(said)
    if start[:6] != b"\x93NUMPY" or start[6:8] not in (b"\x01\x00", b"\x02\x00") or array is None:
        raise DamageError("the file is not an array of tokens as NumPy writes it", place=str(path))
    dtype = np.dtype(array[1].decode())
    return _whole(Found("npy", dtype, TokenFile(path, int(array[2]), 8 + wide + length)), size)


def _megatron(path: Path, size: int) -> Found:
    code = megatron_head(path.with_suffix(".idx"))[0]
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
