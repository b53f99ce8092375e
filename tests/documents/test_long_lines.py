"""A line of JSON that is larger than the memory gets the verdict and the text that it has in memory."""

from __future__ import annotations

import random

import pytest

from shardmill.documents import long_lines
from shardmill.documents.long_lines import ShortLine, Stretch, stretch_pieces
from shardmill.documents.records import judge
from shardmill.storage import StreamFeed
from tests.odd_lines import odd_lines

PIECES = [
    b"plain", b" ", b"\\n", b'\\"', b"\\\\", b"\\/", b"\\u0041", b"\\u00e9", b"\\ud83d\\ude00", b"\\uD83D\\uDE00", b"[",
    b"}", "é".encode(), "日本".encode(), "😀".encode(), b"u0041", b"\\\\u0041", b"\\\\\\\\", b"\x7f",
]  # fmt: skip
SPOILERS = [
    b"\\", b"\\x", b"\\u12", b"\\ud83d", b"\\ude00", b"\t", b"\x00", b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b'"',
    b'","text":"', b'"}', b"\\ud83d\\ud83d\\ude00",
]  # fmt: skip


def _feed(data: bytes) -> StreamFeed:
    return StreamFeed("a line", (block for block in [data]))


def _long(line: bytes, path: tuple[str, ...]) -> tuple[str | None, str, int]:
    """The text of a line or the reason why it has none, and how many stretches were left out."""
    short = ShortLine(0)
    assert short.read(_feed(line), 1 << 30, lambda amount: None)
    verdict = short.judge(path)
    if verdict.text is None:
        return None, verdict.reason, 0
    parts = short.texts(path)
    text = [
        part.encode() if isinstance(part, str) else b"".join(stretch_pieces(_feed(line), part, "a line"))
        for part in parts
    ]
    return b"".join(text).decode(), "", sum(isinstance(part, Stretch) for part in parts)


def _some_text(chance: random.Random, spoiled: float) -> bytes:
    return b"".join(
        chance.choice(SPOILERS) if chance.random() < spoiled else chance.choice(PIECES)
        for _ in range(chance.randrange(60))
    )


def _lines(chance: random.Random) -> list[bytes]:
    """Lines of all kinds, with texts that are cut at any place."""
    made = [b'{"x":"%s","text":"%s","y":["%s"]}' % tuple(_some_text(chance, 0.0) for _ in range(3)) for _ in range(500)]
    for spoiled in (0.01, 0.1):
        made += [
            b'{"a":{"b":"%s"},"text":"%s"}' % tuple(_some_text(chance, spoiled) for _ in range(2)) for _ in range(500)
        ]
    return [*made, *odd_lines(chance, 1000)]


@pytest.mark.parametrize("path", [("text",), ("a", "b")])
@pytest.mark.parametrize("seed", range(4))
def test_a_line_in_windows_has_the_verdict_and_the_text_of_the_whole(
    seed: int, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{seed} {path}")
    left_out = 0
    for line in _lines(chance):
        line = line.strip(b" \t\r\n")
        if not line or b"\n" in line:
            continue
        monkeypatch.setattr(long_lines, "LINE_WINDOW", chance.randrange(13, 80))
        monkeypatch.setattr(long_lines, "LEAST", chance.randrange(10, 30))  # names are shorter
        verdict = judge(line, path)
        text, reason, stretches = _long(line, path)
        assert (text, reason) == (verdict.text, verdict.reason), line
        left_out += stretches
    assert left_out > 200
