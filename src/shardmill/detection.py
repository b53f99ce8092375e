"""What the name and the first bytes of a file say about its format."""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections.abc import Sequence
from functools import cache

from shardmill.errors import SourceError
from shardmill.input_formats import ARROW_MARK, INPUT_FORMATS, PARQUET_MARK
from shardmill.storage import (
    BOM,
    COMPRESSION_MARKS,
    SMALL,
    WEB,
    Source,
    compression_from,
    endings,
    path_in,
    scheme_of,
    utf16_without_mark,
)

FORMAT_ENDINGS = {ending: name for name, format in INPUT_FORMATS.items() for ending in format.endings.split()}
_WEB_ARCHIVE = (
    "extract its text first: `trafilatura` or `resiliparse` take it from the pages of a WARC file, and `warcio` reads "
    "the records of both"
)
_PICKLE = "to load it would run code: save its texts as JSON Lines or parquet, or pass them to `shardmill.prepare`"
UNSUPPORTED = (
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"%PDF-", "a PDF file", "turn it into text first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"\x04\x22\x4d\x18", "an lz4 file", "decompress it first"),
    (b"\x5d\x00\x00", "an lzma file", "decompress it first"),
    (b"\x1f\x9d", "a file of the program compress", "decompress it first"),
    (b"Rar!\x1a\x07", "a RAR archive", "unpack it first"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", "leave it out"),
    (b"SQLite format 3\0", "an SQLite database", "export its text first"),
    (b"\x93NUMPY", "a NumPy array", "leave it out"),
    (b"WARC/1.", "a web archive (WARC or WET)", _WEB_ARCHIVE),
    # Its protocol, and the operation that it begins with: a frame, or a list, dictionary, tuple, class or text.
    *((b"\x80" + mark, "a pickle", _PICKLE) for mark in (b"\x04\x95", b"\x05\x95")),
    *((bytes([0x80, protocol, step]), "a pickle", _PICKLE) for protocol in (2, 3) for step in b"](}cX"),
)
_PICKLE_ENDINGS = (".pkl", ".pickle")
_PAGES = (".html", ".htm", ".xhtml", ".php", ".asp", ".aspx", ".jsp", ".cgi")
_UNSUPPORTED_MARKS = tuple(mark for mark, _, _ in UNSUPPORTED)
_READABLE_MARKS = (
    *COMPRESSION_MARKS,
    *(codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE),
    *(PARQUET_MARK, ARROW_MARK),
)


def format_of(path: str) -> str:
    """Return the format that the name shows, or an empty text."""
    return FORMAT_ENDINGS.get(endings(path)[0], "")


def are_arrow_free(paths: Sequence[str]) -> bool:
    """Whether all names show formats that are read without Arrow."""
    free = _arrow_free_endings()
    # The first test is enough for most files, in a fraction of the time.
    return {path[path.rfind(".") + 1 :] for path in paths} <= free or all(endings(path)[0] in free for path in paths)


@cache
def _arrow_free_endings() -> frozenset[str]:
    return frozenset(ending for ending, name in FORMAT_ENDINGS.items() if INPUT_FORMATS[name].arrow_free)


def may_be_other_than_text(head: bytes) -> bool:
    """Whether a file with these first bytes may be compressed, not UTF-8, or not text."""
    other = head.startswith(_READABLE_MARKS) or head.startswith(_UNSUPPORTED_MARKS) or _is_tar(head)
    return other or bool(utf16_without_mark(head))


def is_binary(head: bytes) -> bool:
    """Whether the first bytes are those of no text and of no format that is read."""
    return not head.startswith(_READABLE_MARKS) and (
        b"\0" in head or head.startswith(_UNSUPPORTED_MARKS) or _is_tar(head)
    )


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def guess_format(head: bytes) -> str:
    """Return the format of a source whose name does not show it."""
    for name, format in INPUT_FORMATS.items():
        if format.begins(head):
            return name
    text = head.removeprefix(BOM).lstrip()
    if text[:1] == b"{":
        line, newline, _ = text.partition(b"\n")
        try:
            if isinstance(json.loads(line), dict):
                return "jsonl"
        except (ValueError, RecursionError):
            return "jsonl" if not newline and len(head) == SMALL and text[1:].lstrip()[:1] == b'"' else "text"
    return "text"


def _is_error_page(source: Source, head: bytes) -> bool:
    """Whether a web server has sent HTML for a name that promises something else: a login page, say."""
    if scheme_of(source.name) not in WEB or not re.search(r"\.\w+$", path := path_in(source.name)):
        return False
    return not path.lower().endswith(_PAGES) and bool(re.match(rb"(?i)\s*<(!doctype\s+html|html)\b", head))


def check_content(source: Source, format: str, head: bytes, compression: str) -> None:
    """Raise SourceError when the first bytes are of a kind that does not fit the format."""
    place = source.name
    if compression and compression_from(head):
        raise SourceError("the content is compressed twice", place=place, hint="decompress it once")
    if not INPUT_FORMATS[format].text:
        return
    if _is_error_page(source, head):
        hint = "open the address in a browser: does it need a login? `--input-format text` takes the page as it is"
        raise SourceError("the server sends a web page in place of the file", place=place, hint=hint)
    if _is_tar(head):
        raise SourceError("the source is a tar archive, not text", place=place, hint="unpack it first")
    for mark, kind, hint in UNSUPPORTED:
        if head.startswith(mark):
            raise SourceError(f"the source is {kind}, not text", place=place, hint=hint)
    if path_in(source.path).lower().endswith(_PICKLE_ENDINGS):
        raise SourceError("the source is a pickle, not text", place=place, hint=_PICKLE)
    if encoding := utf16_without_mark(head):
        file = shlex.quote(source.name)
        hint = f"convert it first: `iconv -f {encoding} -t utf-8 {file} > {shlex.quote(f'{source.name}.utf8.txt')}`"
        raise SourceError("the text is UTF-16 without a byte order mark", place=place, hint=hint)
    # In parquet, a page header follows, whose first byte is not text. So a text that begins with PAR1 is accepted.
    if head.startswith(PARQUET_MARK) and head[4:5] == b"\x15":
        raise SourceError(f"the source is parquet, not {format}", place=place, hint="add `--input-format parquet`")
    if head.startswith(ARROW_MARK + b"\0\0"):
        raise SourceError(f"the source is Arrow, not {format}", place=place, hint="add `--input-format arrow`")
