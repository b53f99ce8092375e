"""Opens a source for reading. Its name and its first bytes show its compression, encoding and format."""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from shardmill.errors import SourceError
from shardmill.input_formats import ARROW_MARK, INPUT_FORMATS, PARQUET_MARK
from shardmill.storage.compressed import MARKS, compression_from, decompressed
from shardmill.storage.feeds import Feed, FileFeed, Scanner, StreamFeed, pipe_blocks
from shardmill.storage.fetching import Fetcher
from shardmill.storage.names import WEB, compression_of, format_of, path_in, scheme_of
from shardmill.storage.source import SMALL, Source
from shardmill.storage.unicode import BOM, transcoded, utf16_without_mark, wide_encoding

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
_MARKS = (
    *MARKS,
    *(codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE),
    *(mark for mark, _, _ in UNSUPPORTED),
    *(PARQUET_MARK, ARROW_MARK),
)
_NOT_READ = tuple(mark for mark, _, _ in UNSUPPORTED)
_READ = tuple(mark for mark in _MARKS if mark not in _NOT_READ)


@dataclass(frozen=True)
class Opened:
    """The feed of a source, and what was detected."""

    feed: Feed
    format: str
    head: bytes
    compression: str
    """Empty: none."""


def open_source(
    source: Source,
    fetcher: Fetcher | None = None,
    reserve: Callable[[int], object] = lambda amount: None,
    index: int | None = None,
) -> Opened:
    """Open a source; a remote one needs a fetcher. Raise SourceError when it is not what its name or the user says.

    `reserve`: called with the memory that each member of a compressed stream will take, before it takes it.
    `index`: its place among the fetcher's sources; those after it are opened ahead.
    """
    feed = _feed(source, fetcher, index)
    try:
        head = feed.read(0, SMALL)
        expected = compression_of(source.path)
        compression = compression_from(head, expected)
        if expected and not compression and (head or source.size == 0):
            raise SourceError(
                f"the name says {expected}, but the content is something else" if head else "the file is empty",
                place=source.name,
                hint="is the download complete? Without the ending it would be read as it is" if head else None,
            )
        if compression:
            raw = Scanner(feed)
            feed = StreamFeed(source.name, decompressed(raw, compression, source.name, reserve), raw)
            head = feed.read(0, SMALL)
        format = source.input_format
        if format == "auto":
            format = format_of(source.path) or guess(head)
            _check_content(source, format, head, compression)
        if INPUT_FORMATS[format].text and (encoding := wide_encoding(head)):
            raw = Scanner(feed)
            feed = StreamFeed(source.name, transcoded(raw, encoding), raw)
            head = feed.read(0, SMALL)
        return Opened(feed, format, head, compression)
    except BaseException:
        feed.close()
        raise


def may_be_other_than_text(head: bytes) -> bool:
    """Whether a file with these first bytes must be opened by `open_source`: compressed, not UTF-8, or not text."""
    return head.startswith(_MARKS) or head[257:262] == b"ustar" or bool(utf16_without_mark(head))


def is_binary(head: bytes) -> bool:
    """Whether these first bytes are those of no text and of no format that is read."""
    if head.startswith(_READ):
        return False
    return b"\0" in head or head.startswith(_NOT_READ) or head[257:262] == b"ustar"


def _feed(source: Source, fetcher: Fetcher | None, index: int | None) -> Feed:
    if source.size is None:
        return StreamFeed(source.name, pipe_blocks(source, fetcher.stopped if fetcher else None))
    if source.remote:
        assert fetcher is not None
        return fetcher.open(source, index)
    return FileFeed(source, fetcher.stopped if fetcher else None)


def guess(head: bytes) -> str:
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


def _check_content(source: Source, format: str, head: bytes, compression: str) -> None:
    """Raise when the content is of a kind that does not fit the format."""
    place = source.name
    if compression and compression_from(head):
        raise SourceError("the content is compressed twice", place=place, hint="decompress it once")
    if INPUT_FORMATS[format].text:
        if _is_error_page(source, head):
            hint = "open the address in a browser: does it need a login? `--input-format text` takes the page as it is"
            raise SourceError("the server sends a web page in place of the file", place=place, hint=hint)
        if head[257:262] == b"ustar":
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
