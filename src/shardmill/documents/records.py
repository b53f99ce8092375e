"""One JSON record, judged by the standard library: its text, or the reason why it is not a document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_NO_VALUE = "not valid JSON: expecting value (column 1)"
_VALUES = frozenset('{["-0123456789tfnNI')  # what a value begins with: true, false, null, NaN and Infinity too
DEEP = 500
"""Levels that are never too many. Python's own limit, about a thousand, depends on who calls it and on its version."""

_SPACE = re.compile(r"[ \t\r\n]*")
# A string is one match, so that brackets in it do not count; one that is not closed goes to the end.
_BRACKETS = re.compile(r'[\[{]|[\]}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


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
    bytes: "bytes",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: Any) -> str:
    """What a value is, for people."""
    return _KINDS.get(type(value)) or f"a {type(value).__name__}"


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
        return Verdict(reason=f"not an object but {kind_of(value)}")
    verdict = field_of(value, path)
    try:
        (verdict.text or "").encode()
    except UnicodeEncodeError:
        return Verdict(reason="lone surrogate in {field}")
    return verdict


def _plain(message: str) -> str:
    """The library's message as it would stand inside a sentence."""
    return message[:1].lower() + message[1:]


def field_of(record: Mapping[str, Any], path: Sequence[str]) -> Verdict:
    """The verdict on the field at this path; whether its text is valid Unicode is not looked at."""
    value: Any = record
    for step in path:
        if value is None:
            return Verdict(reason="{field} is null")
        if not isinstance(value, Mapping):
            held = f"{{field}} is missing: what should hold it is {kind_of(value)}"
            return Verdict(reason=held, fields=_names(record))
        if step not in value:
            return Verdict(reason="{field} is missing", fields=_names(record))
        value = value[step]
    if isinstance(value, str):
        return Verdict(text=value)
    return Verdict(reason="{field} is " + ("null" if value is None else f"{kind_of(value)}, not a string"))


def _names(record: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(name).encode("utf-8", "replace").decode() for name in record)


# JSON that is nested too deeply for Python's `json`, which calls itself for every level, is made shallow here.


def is_deep(text: str) -> bool:
    """Whether brackets are open more than `DEEP` levels deep; the text need not be JSON."""
    if text.count("[") + text.count("{") <= DEEP:
        return False
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > DEEP:
                return True
        elif match[0] in "]}":
            depth -= 1
    return False


def shallow(text: str, decoder: json.JSONDecoder, levels: int) -> str:
    """The same JSON, with arrays and objects emptied that stand below so many levels. ValueError if it is none."""
    kept: list[str] = []
    done = 0
    closers: list[str] = []
    at = 0
    while True:  # a value begins here
        if text[at : at + 1] in ("[", "{"):
            if len(closers) == levels:
                kept.append(text[done : at + 1])
            closers.append("]" if text[at] == "[" else "}")
            at = _behind_space(text, at + 1)
            if text[at : at + 1] != closers[-1]:
                at = _behind_key(text, at, decoder, closers[-1])
                continue
        else:
            _, at = decoder.raw_decode(text, at)
        while closers:  # behind a value, or in an empty container
            at = _behind_space(text, at)
            if text[at : at + 1] == closers[-1]:
                closers.pop()
                if len(closers) == levels:
                    done = at
                at += 1
            elif text[at : at + 1] == ",":
                at = _behind_key(text, _behind_space(text, at + 1), decoder, closers[-1])
                break
            else:
                raise ValueError("neither a comma nor an end")
        else:
            if at < len(text):
                raise ValueError("more text after the end")
            return "".join([*kept, text[done:]])


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _behind_key(text: str, at: int, decoder: json.JSONDecoder, closer: str) -> int:
    """Where the next value begins: in an object after a key and its colon."""
    if closer == "]":
        return at
    if text[at : at + 1] != '"':
        raise ValueError("no key")
    _, at = decoder.raw_decode(text, at)
    at = _behind_space(text, at)
    if text[at : at + 1] != ":":
        raise ValueError("no colon")
    return _behind_space(text, at + 1)
