"""One JSON record, judged by the standard library: its text, or the reason why it is not a document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardmill.documents.nesting import is_deep, shallow

_NO_VALUE = "not valid JSON: expecting value (column 1)"
_VALUES = frozenset('{["-0123456789tfnNI')  # what a value begins with: true, false, null, NaN and Infinity too


class Verdict(NamedTuple):
    """Either a text, or a reason in which {field} stands for the field's name."""

    text: str | None = None
    reason: str = ""
    fields: tuple[str, ...] | None = None
    """The names that the record has, when it is an object without the field."""


_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def _number(_: str) -> int:
    """Python refuses integers of more than 4,300 digits; their value does not matter here."""
    return 0


_DECODER = json.JSONDecoder(parse_int=_number, parse_float=float)


def judge(line: bytes, path: Sequence[str]) -> Verdict:
    """The verdict on one line; of keys that stand twice the last counts. MemoryError where there is no room for it."""
    try:
        text = line.decode("utf-8").strip(" \t\r\n")
    except UnicodeDecodeError as error:
        return Verdict(reason=f"invalid UTF-8 (column {error.start + 1})")
    if text[:1] not in _VALUES:  # what `json` would say, in a fifth of its time: whole files are so
        return Verdict(reason=_NO_VALUE)
    if is_deep(text):
        try:
            text = shallow(text, _DECODER, len(path))
        except ValueError:
            return Verdict(reason="not valid JSON, and nested too deeply to say where")
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        return Verdict(reason=f"not valid JSON: {_plain(error.msg)} (column {error.pos + 1})")
    if end < len(text):
        end = len(text) - len(text[end:].lstrip(" \t\r\n"))
        return Verdict(reason=f"not valid JSON: more text after the end of the record (column {end + 1})")
    if not isinstance(value, dict):
        return Verdict(reason=f"not an object but {_KINDS[type(value)]}")
    return _field(value, path)


def _plain(message: str) -> str:
    """The library's message as it would stand inside a sentence."""
    return message[:1].lower() + message[1:]


def _field(record: dict[str, Any], path: Sequence[str]) -> Verdict:
    value: Any = record
    for step in path:
        if value is None:
            return Verdict(reason="{field} is null")
        if not isinstance(value, dict):
            return Verdict(reason=f"{{field}} is missing: what should hold it is {_KINDS[type(value)]}")
        if step not in value:
            return Verdict(reason="{field} is missing", fields=tuple(_text(name) for name in record))
        value = value[step]
    if value is None:
        return Verdict(reason="{field} is null")
    if not isinstance(value, str):
        return Verdict(reason=f"{{field}} is {_KINDS[type(value)]}, not a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        return Verdict(reason="lone surrogate in {field}")
    return Verdict(text=value)


def _text(name: str) -> str:
    return name.encode("utf-8", "replace").decode()
