"""Lines of JSON, good, odd and bad: real text as records, records put together at random, and either damaged."""

from __future__ import annotations

import json
import random
from pathlib import Path

_TEXTS = [
    'A line\nand another, "quoted", with a back\\slash and a tab\t.',
    "Ça coûte 5 € à Noël; größer, straße, naïve — “quoted”.",
    "東京都の天気は晴れです。中文文本也在这里。한국어 문장도 있습니다.",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया।",
    "😀👩‍👩‍👧‍👦🇪🇺 and a\u2028separator, a NUL \x00, a DEL \x7f, a BOM \ufeff.",
    "x" * 31 + '"' + "y" * 32 + "\\" + "z" * 33 + "\n" * 5,
    "The Inf, NaN and -NaN of a text do no harm; nor do {braces], [brackets} and -Inf } ones.",
    "",
]
_WORDS = [
    b"text", b"a", b"b", b"te\\u0078t", b"x", b"\\ud800", b"\\u0061", b"", "é".encode(),
]  # fmt: skip
_ATOMS = [
    b'"plain"', b'"plain"', b'"plain"', b'""', b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\ud800\\ud800"',
    b'"\\u0000"', b'"\\x"', b'"\x01"', b'"\x7f"', b'"\\u12"', b'"\\u00e9\\n\\t\\/"', b"'x'", '"é日😀"'.encode(),
    b'"\xff"', b'"\xed\xa0\x80"', b"1", b"0", b"01", b"-0", b"-", b"1.", b".5", b"1.5", b"1e5", b"1E-5", b"1e",
    b"1e999999", b"+1", b"0x1", b"NaN", b"-NaN", b"Inf", b"-Inf", b"Infinity", b"-Infinity", b"inf", b"nan", b"Infinit",
    b"true", b"false", b"null", b"True", b"nul", b"truefalse", b"/*c*/1", b"1 2", b"{}", b"[]", b"[1,]",
    b'{"a":1,}', b"[,]", b"[1 2]", b'{"a" 1}', b"{1:2}", b'{"b":"v"}', b'{"b":null}', b'{"b":"v","b":"w"}',
    b'{"b":"v","c":Inf}',
    b"9" * 400, b"9" * 5000, b"\xef\xbb\xbf1", b"[[[[]]]]", b'[{"text":"inner"},{"a":{}}]', b"[" * 70 + b"]" * 70,
]  # fmt: skip
_SPACES = [b" ", b"\t", b"\r", b"  ", b"\x0b", b"\x0c", b"\xc2\xa0", b"\x1c"]
_BITS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\\u", b"\\ud83d", b"\\ude00", b"NaN", b"Inf", b"-Inf", b"-NaN",
    b"Infinity", b"-", b"0", b"1e5", b".", b"null", b"true", b"\0", b"\xff", b"\xc3\xa9", b"\xe2\x82",
    b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b" ", b"\t", b"\r", b"\x0b", b"\x7f", b'"text":"z",',
    b'"te\\u0078t":"q",', b"\xef\xbb\xbf",
]  # fmt: skip
_LINES = [b"", b" ", b"\t\r", b"x", b"null", b"{}", b"[1]", b"7", b'"s"']


def real_lines() -> list[bytes]:
    """Records around real text: some in many scripts, and sources of the standard library."""
    sources = sorted(Path(json.__file__).parent.glob("*.py"))
    texts = [*_TEXTS, *(part for path in sources for part in path.read_text(encoding="utf-8").split("\n\n")[:20])]
    lines = []
    for i, text in enumerate(texts):
        record = {"id": i, "text": text, "meta": {"score": i / 7, "tags": ["a", {"b": None}], "url": f"http://x/{i}"}}
        line = json.dumps(record, ensure_ascii=i % 2 == 0, separators=(",", ":") if i % 3 else None)
        lines.append(line.encode())
    return lines


def made_line(chance: random.Random) -> bytes:
    """An object of odd names, values and white space; mostly no JSON."""
    line = _object(chance, 0)
    if chance.random() < 0.05:
        line += chance.choice([b"{}", b" {}", b"x", b",", b"}", b"\0{}"])
    return line if chance.random() < 0.95 else chance.choice(_LINES)


def _object(chance: random.Random, depth: int) -> bytes:
    items = []
    for _ in range(chance.choice([0, 1, 1, 2, 2, 3])):
        name = chance.choice(_WORDS) if chance.random() < 0.4 else chance.choice(_WORDS[:2])
        kind = chance.random()
        if kind < 0.2 and depth < 3:
            value = _object(chance, depth + 1)
        elif kind < 0.3:
            value = b"[" + b",".join(chance.choice(_ATOMS) for _ in range(chance.randrange(3))) + b"]"
        else:
            value = b'"plain"' if kind < 0.7 else chance.choice(_ATOMS)
        parts = [b'"' + name + b'"', b":", value]
        items.append(b"".join(part + (chance.choice(_SPACES) if chance.random() < 0.05 else b"") for part in parts))
    return b"{" + b",".join(items) + b"}"


def damaged(chance: random.Random, line: bytes) -> bytes:
    """The line with up to three small changes, mostly near its beginning; it stays one line."""
    changed = bytearray(line)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        at = chance.randrange(min(60 if chance.random() < 0.5 else len(changed), len(changed)) + 1)
        kind = chance.random()
        if kind < 0.4:
            changed[at:at] = chance.choice(_BITS)
        elif kind < 0.7:
            del changed[at : at + chance.randrange(1, 4)]
        elif kind < 0.9:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        else:
            changed[at : at + 1] = chance.choice(_BITS)
    return bytes(changed).replace(b"\n", b"")


def odd_lines(chance: random.Random, count: int) -> list[bytes]:
    """So many lines of all kinds."""
    real = real_lines()
    return [made_line(chance) if chance.random() < 0.5 else damaged(chance, chance.choice(real)) for _ in range(count)]
