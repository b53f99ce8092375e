"""What a file's name says about its format and its compression."""

from __future__ import annotations

import os
from functools import cache, lru_cache

from shardmill import core
from shardmill.input_formats import INPUT_FORMATS
from shardmill.storage.addresses import path_in

FORMAT_ENDINGS: dict[str, str] = {
    ending: name for name, format in INPUT_FORMATS.items() for ending in format.endings.split()
}

COMPRESSION_ENDINGS: dict[str, str] = {
    "gz": "gzip",
    "gzip": "gzip",
    "zst": "zstd",
    "zstd": "zstd",
    "bz2": "bzip2",
    "xz": "xz",
}


def is_light(path: str) -> bool:
    """Whether the name promises a format that is read without Arrow."""
    return path[path.rfind(".") + 1 :] in _light() or endings(path)[0] in _light()


@cache
def _light() -> frozenset[str]:
    """The endings of such formats; without the core, what is not text still needs Arrow."""
    kinds = {name for name, about in INPUT_FORMATS.items() if about.light and (about.text or core.available())}
    return frozenset(ending for ending, name in FORMAT_ENDINGS.items() if name in kinds)


@lru_cache(4)  # a source's name is asked about three times in a row
def endings(path: str) -> tuple[str, str]:
    """The ending that says the format and the one that says the compression; empty where there is none."""
    name = os.path.basename(path_in(path)).lower()
    stem, _, ending = name.rpartition(".")
    compression = ""
    if stem and ending in COMPRESSION_ENDINGS:
        compression = ending
        stem, _, ending = stem.rpartition(".")
    return (ending if stem else ""), compression


def format_of(path: str) -> str:
    """The format that the name promises, or an empty text."""
    return FORMAT_ENDINGS.get(endings(path)[0], "")


def compression_of(path: str) -> str:
    """The compression that the name promises, or an empty text."""
    return COMPRESSION_ENDINGS.get(endings(path)[1], "")
