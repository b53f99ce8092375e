"""What a file in a folder is, where its name is not enough: by its first bytes, and by names beside it."""

from __future__ import annotations

import csv
import json
from typing import Any

from shardmill.detection import FORMAT_ENDINGS, format_of, is_binary
from shardmill.errors import UsageError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.source_list import Skipped
from shardmill.sources.dataset_files import is_data_name
from shardmill.sources.names import is_readable_name, kind_by_name, kind_of, may_be_text
from shardmill.storage import COMPRESSION_ENDINGS, endings

_HEAD = 4096  # bytes that are looked at
_LARGEST_MISFIT = 16 << 20  # bytes; what is larger is data, and not the settings of a program
_RECORDS = frozenset(("json", "csv", "tsv", "tab"))
_ARROW = frozenset(INPUT_FORMATS["arrow"].endings.split())


class FirstLook:
    """Looks into files whose names do not tell enough; most names do, so a million text files are not opened."""

    def __init__(self, input_format: str, text_field: str) -> None:
        self.text_field = text_field
        self.is_misfit = False
        """Whether the last file that was looked at is JSON or CSV, but does not seem to hold records."""
        self._auto = input_format == "auto"
        # Whoever reads a source refuses a format that does not exist.
        self._text = self._auto or (input_format in INPUT_FORMATS and INPUT_FORMATS[input_format].text)
        known = (end for end, name in FORMAT_ENDINGS.items() if self._auto or INPUT_FORMATS[name].text)
        self.sure = frozenset(known) - (_ARROW | _RECORDS if self._auto else frozenset())
        """Endings of files that are read without a look."""

    def is_readable_name(self, name: str) -> bool:
        """Whether a file in a folder may be read, by its name."""
        if self._auto:
            return is_readable_name(name)
        return not kind_by_name(name) or may_be_text(name)

    def kind_if_skipped(self, path: str, size: int) -> str:
        """Why a file is skipped, as a kind; empty: it is read. It sets `is_misfit`."""
        self.is_misfit = False
        ending = path[path.rfind(".") + 1 :]
        if ending in self.sure or not self._text:
            return ""
        ending = ending.lower()
        if ending in self.sure or ending in COMPRESSION_ENDINGS or not size:
            return ""
        head = _first_bytes(path)
        if self._auto and ending in _ARROW:
            is_arrow = INPUT_FORMATS["arrow"].begins(head) or head.startswith(b"FEA1") or b"\0" in head
            return "" if is_arrow else kind_of(path)
        if is_binary(head):
            return "binary file"
        if self._auto and ending in _RECORDS and size <= _LARGEST_MISFIT:
            whole = size <= len(head)
            self.is_misfit = not (_holds_json if ending == "json" else _holds_table)(head, whole, self.text_field)
        return ""


def _first_bytes(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(_HEAD)
    except FileNotFoundError:  # whoever reads it says that it is gone
        return b""
    except OSError as error:
        raise UsageError(f"the source cannot be read: {error.strerror}", place=path) from error


def _holds_json(head: bytes, whole: bool, text_field: str) -> bool:
    """Whether this may be the beginning of JSON Lines: objects, of which one has the field or there are several."""
    lines = head.removeprefix(b"\xef\xbb\xbf").strip().split(b"\n")
    if not whole and len(lines) > 1:
        lines.pop()
    for number, line in enumerate(filter(None, map(bytes.strip, lines))):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            # A long first line cannot be judged.
            return len(lines) == 1 and not whole and line.startswith(b"{")
        if not isinstance(record, dict):
            return False
        if number or _has_field(record, text_field):
            return True
    return False


def _has_field(record: dict[str, Any], text_field: str) -> bool:
    if text_field in record:
        return True
    value: Any = record
    for name in text_field.split("."):
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def _holds_table(head: bytes, whole: bool, text_field: str) -> bool:
    """Whether the first line names the column."""
    lines = head.decode("utf-8-sig", "replace").splitlines()
    if len(lines) < 2 and not whole:
        return True  # a header as long as that cannot be judged
    delimiter = "\t" if lines and "\t" in lines[0] and text_field in lines[0].split("\t") else ","
    return text_field in next(csv.reader(lines[:1], delimiter=delimiter), [])


class Twins:
    """Counts files of the same name that differ in format or compression: usually they hold the same text."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""
        self._begin = self._last = ""

    def check(self, prefix: str, name: str) -> None:
        """Compare a file with the one before it; `prefix`: the folder. Files come sorted, so twins are neighbours."""
        begin = prefix + name.partition(".")[0]
        if begin == self._begin and _are_twins(name, self._last):
            self._count += 1
            self._first = self._first or f"`{prefix}{self._last}` and `{name}`"
        self._begin, self._last = begin, name

    def warn(self, skipped: Skipped) -> None:
        """Keep a warning, if there are any."""
        if self._count:
            more = f", and {self._count - 1:,} more such files" if self._count > 1 else ""
            skipped.warn(
                f"the same name twice: {self._first}{more}; all are read, so if they hold the same text, "
                "leave one out with `--exclude`"
            )


def _are_twins(one: str, other: str) -> bool:
    """Whether names differ only in the compression, or in two formats of data."""
    stem, other_stem = (name.rsplit(".", sum(map(bool, endings(name))))[0] for name in (one, other))
    if stem != other_stem:
        return False
    is_data = is_data_name(one) and is_data_name(other)
    return endings(one)[0] == endings(other)[0] or (is_data and format_of(one) != format_of(other))
