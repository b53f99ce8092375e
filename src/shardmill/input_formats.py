"""The table of input formats. To add one is a file in documents/ with its reader, and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PARQUET_MARK = b"PAR1"
ARROW_MARK = b"ARROW1"


class InputFormat(NamedTuple):
    """What is known of a format before any of its files is read."""

    module: str
    """In `documents`; it is imported when a source of this format is first opened."""
    reader: str
    """The name of the class in it."""
    unit: str
    """`line`, `row` or `byte`: what a place counts."""
    endings: str
    """Endings of file names, separated by spaces."""
    text: bool = False
    """Its bytes are text, so they may be in another encoding than UTF-8."""
    arrow_free: bool = False
    """With the core it is read without Arrow."""
    sectioned: bool = False
    """Its uncompressed files can be entered in the middle."""
    footer: int = 0
    """Bytes at the end of a file that its reader wants first."""
    begins: Callable[[bytes], bool] = lambda head: False
    """Whether a source whose name says nothing has this format, by its first bytes."""


def _is_arrow(head: bytes) -> bool:
    return head.startswith(ARROW_MARK) or (head[:4] == b"\xff\xff\xff\xff" and head[6:8] == b"\0\0")


_TEXT_ENDINGS = (
    "txt text md markdown rst tex log org adoc html htm xml svg yaml yml toml ini cfg conf srt vtt po "
    "py pyi ipynb c h cc cpp cxx hpp hh cu cuh java kt scala go rs js mjs ts jsx tsx css scss rb php pl pm lua r jl m "
    "swift cs fs vb hs ml mli ex exs erl clj lisp el scm sql sh bash zsh fish ps1 bat cmake make mk gradle proto "
    "f f90 f95 for asm s v sv vhd vhdl tcl dart zig nim d pas groovy diff patch tok raw en de fr es it pt ru zh ja ko"
)

INPUT_FORMATS: dict[str, InputFormat] = {
    "text": InputFormat("text", "TextReader", "byte", _TEXT_ENDINGS, text=True, arrow_free=True, sectioned=True),
    "jsonl": InputFormat(
        "jsonl", "JsonLinesReader", "line", "jsonl ndjson jsonlines json", text=True, arrow_free=True, sectioned=True
    ),
    "parquet": InputFormat(
        "parquet",
        "ParquetReader",
        "row",
        "parquet pq",
        sectioned=True,
        footer=1 << 16,
        begins=lambda head: head[:4] == PARQUET_MARK,
    ),
    "arrow": InputFormat("arrow_ipc", "ArrowReader", "row", "arrow arrows feather ipc", begins=_is_arrow),
    "csv": InputFormat("delimited", "CsvReader", "row", "csv", text=True),
    "tsv": InputFormat("delimited", "TsvReader", "row", "tsv tab", text=True),
}
