"""A run that reads with vector instructions and one that reads without them write the same bytes."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill import core
from tests.odd_lines import odd_lines, real_lines


def lines(path: Path, chance: random.Random) -> None:
    good, odd = real_lines(), iter(odd_lines(chance, 1_000))
    path.write_bytes(
        b"\n".join([good[0], *(next(odd) if chance.random() < 0.05 else chance.choice(good) for _ in range(1_000))])
    )


def text(path: Path, chance: random.Random) -> None:
    rows = chance.choices(real_lines(), k=1_000)
    rows[100:110] = [b"", b"\n", b"\xff", b"\xe2\x82", b"\xed\xa0\x80", b"x" * 100_000, b"\0", b"-", b"--", b"\n-"]
    path.write_bytes(b"\n--\n".join(rows))


@pytest.mark.parametrize(("make", "options"), [(lines, {}), (text, {"separator": "\n--\n"})])
def test_vector_instructions_change_no_byte(
    tmp_path: Path, make: object, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(make)
    source = tmp_path / ("a.jsonl" if make is lines else "a.txt")
    make(source, random.Random(5))
    written = []
    for simd, memory in ((True, "8GB"), (False, "6GB")):
        monkeypatch.setattr("shardmill.documents.jsonl.json_lines", partial(core.json_lines, simd=simd))
        monkeypatch.setattr("shardmill.documents.text.find", partial(core.find, simd=simd))
        monkeypatch.setattr("shardmill.storage.unicode.is_utf8", partial(core.is_utf8, simd=simd))
        monkeypatch.setattr("shardmill.tokens.backends.Encoder", partial(core.Encoder, simd=simd))
        out = tmp_path / f"{simd} {memory}"
        shardmill.prepare(str(source), str(out), val="0.3", max_bad="any", memory=memory, **options)
        names = sorted(path.name for path in out.iterdir() if path.is_file())
        written.append({name: (out / name).read_bytes() for name in names})
    assert written[0] == written[1]
    assert ("rejects.jsonl" in written[0]) is (make is lines)
