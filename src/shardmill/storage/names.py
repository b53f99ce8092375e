"""What a file's name says about its format and its compression."""

from __future__ import annotations

import os
from functools import lru_cache

from shardmill.storage.addresses import path_in

TEXT_ENDINGS = (
    "txt text md markdown rst tex log org adoc html htm xml svg yaml yml toml ini cfg conf srt vtt po "
    "py pyi ipynb c h cc cpp cxx hpp hh cu cuh java kt scala go rs js mjs ts jsx tsx css scss rb php pl pm lua r jl m "
    "swift cs fs vb hs ml mli ex exs erl clj lisp el scm sql sh bash zsh fish ps1 bat cmake make mk gradle proto "
    "f f90 f95 for asm s v sv vhd vhdl tcl dart zig nim d pas groovy diff patch tok raw en de fr es it pt ru zh ja ko"
).split()

FORMAT_ENDINGS: dict[str, str] = {
    **dict.fromkeys(TEXT_ENDINGS, "text"),
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "jsonlines": "jsonl",
    "json": "jsonl",
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
    "feather": "arrow",
    "ipc": "arrow",
    "csv": "csv",
    "tsv": "tsv",
    "tab": "tsv",
}

COMPRESSION_ENDINGS: dict[str, str] = {
    "gz": "gzip",
    "gzip": "gzip",
    "zst": "zstd",
    "zstd": "zstd",
    "bz2": "bzip2",
    "xz": "xz",
}


_LIGHT = frozenset(ending for ending, name in FORMAT_ENDINGS.items() if name in ("text", "jsonl"))


def is_light(path: str) -> bool:
    """Whether the name promises text or JSON Lines, in no compression that Arrow is needed for."""
    if path[path.rfind(".") + 1 :] in _LIGHT:
        return True
    ending, compression = endings(path)
    return ending in _LIGHT and COMPRESSION_ENDINGS.get(compression) != "zstd"


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
