"""JSON that is nested too deeply for Python's `json`, which calls itself for every level, is made shallow here."""

from __future__ import annotations

import json
import re

DEEP = 500
"""Levels that are never too many. Python's own limit, about a thousand, depends on who calls it and on its version."""

_SPACE = re.compile(r"[ \t\r\n]*")
# A string is one match, so that brackets in it do not count; one that is not closed goes to the end.
_BRACKETS = re.compile(r'[\[{]|[\]}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


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
