"""One JSON record, judged by the standard library: its text, or the reason why it is not a document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_VALUES = frozenset('{["-0123456789tfnNI')  # what a value begins with: true, false, null, NaN and Infinity too
# Levels of nesting that are parsed at once. Python's own limit, about a thousand, depends on version and caller.
_DEEP = 500
# A string is one match, so that brackets in it do not count; one that is not closed goes to the end.
_BRACKETS = re.compile(r'[\[{]|[\]}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


class Verdict(NamedTuple):
    """Either a text, or a reason in which {field} stands for the field's name."""

    text: str | None = None
    reason: str = ""
    fields: tuple[str, ...] | None = None
    """The fields of a record that is an object without the wanted one."""


CHAT_EXAMPLE = "examples/chat_records.py"
"""How conversations become documents."""
_CHAT = ({"messages"}, {"conversations"}, {"conversation"}, {"instruction", "output"}, {"prompt", "completion"})
_SHOWN_FIELDS = 20


def fields_hint(names: Sequence[str], what: str) -> str:
    """What to do about records that lack the wanted field and have these instead; `what`: fields or columns."""
    listed = ", ".join(f"`{name}`" for name in names[:_SHOWN_FIELDS])
    if any(fields <= {*names} for fields in _CHAT):
        written = f"the {what} are {listed}: a conversation becomes a document by a template of yours"
        return f"{written}; pass a callable to `shardmill.prepare` in Python, as {CHAT_EXAMPLE} does"
    return f"the {what} are {listed}: choose with `--text-field`"


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
    """The type of a value, for messages."""
    return _KINDS.get(type(value)) or f"a {type(value).__name__}"


def _number(_: str) -> int:
    """Python refuses integers of more than 4,300 digits; their value does not matter here."""
    return 0


_DECODER = json.JSONDecoder(parse_int=_number, parse_float=float)


def judge(line: bytes, path: Sequence[str]) -> Verdict:
    """The verdict on one line; of duplicate keys the last counts. MemoryError where there is no room for it."""
    try:
        text = line.decode("utf-8").strip(" \t\r\n")
    except UnicodeDecodeError as error:
        return Verdict(reason=f"invalid UTF-8 (column {error.start + 1})")
    if text[:1] not in _VALUES:  # what `json` would say, in a fifth of its time: whole files are so
        return Verdict(reason="not valid JSON: expecting value (column 1)")
    try:
        parsed = _shallow(text, max(_DEEP, len(path)))
        try:
            value, end = _DECODER.raw_decode(parsed)
            if end < len(parsed):
                end = len(parsed) - len(parsed[end:].lstrip(" \t\r\n"))
                raise json.JSONDecodeError("more text after the end of the record", parsed, end)
        except json.JSONDecodeError as error:
            if parsed is text:
                message = error.msg[:1].lower() + error.msg[1:]
                return Verdict(reason=f"not valid JSON: {message} (column {error.pos + 1})")
            raise
    except ValueError:
        return Verdict(reason="not valid JSON, and nested too deeply to say where")
    if not isinstance(value, dict):
        return Verdict(reason=f"not an object but {kind_of(value)}")
    verdict = field_of(value, path)
    try:
        (verdict.text or "").encode()
    except UnicodeEncodeError:
        return Verdict(reason="lone surrogate in {field}")
    return verdict


def _shallow(text: str, levels: int) -> str:
    """The same text where it has no more than so many levels; else with every array and object below them emptied.

    What is emptied was parsed by itself. ValueError if it is not JSON, or if the brackets do not match.
    """
    if text.count("[") + text.count("{") <= levels:
        return text
    depth, done = 0, 0
    outer: list[list[str]] = []  # the beginnings of the texts around this one
    kept: list[str] = []  # and of this one
    for match in _BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > levels and depth % levels == 1:
                outer.append([*kept, text[done : match.end()]])
                kept, done = [], match.start()
        elif match[0] in "]}":
            if depth > levels and depth % levels == 1:
                inner = "".join([*kept, text[done : match.end()]])
                if _DECODER.raw_decode(inner)[1] < len(inner):
                    raise ValueError("more text after the end")
                kept, done = outer.pop(), match.start()
            depth -= 1
    if outer:
        raise ValueError("a bracket is not closed")
    return "".join([*kept, text[done:]]) if kept else text


def field_of(record: Mapping[str, Any], path: Sequence[str]) -> Verdict:
    """The verdict on the field at this path; lone surrogates in its text are not looked for."""
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
