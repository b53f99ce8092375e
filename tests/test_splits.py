"""The hash that deals documents: of content and seed alone, even, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.core import content_hash
from shardmill.errors import UsageError
from shardmill.options import Val
from shardmill.run.splits import PREFIX, in_val


def _rows(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    data = np.frombuffer(b"".join(texts), np.uint8)
    return data, np.cumsum([0, *map(len, texts)]).astype(np.int64)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20), st.integers(0, 2**63))
def test_a_row_hashes_alike_wherever_it_stands(texts: list[bytes], seed: int) -> None:
    together = content_hash(*_rows(texts), seed)
    alone = [content_hash(*_rows([text]), seed)[0] for text in texts]
    backwards = content_hash(*_rows(texts[::-1]), seed)
    assert list(together) == alone == list(backwards[::-1])


@given(st.binary(min_size=1, max_size=128), st.data())
def test_every_byte_of_a_short_text_counts(text: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    other = bytearray(text)
    other[at] ^= 1
    one, two = content_hash(*_rows([text, bytes(other)]), 0)
    assert one != two


def test_only_the_first_64_kib_of_a_long_text_count() -> None:
    start = np.random.default_rng(0).bytes(PREFIX)
    one, two, three = content_hash(*_rows([start, start + b"more", start[:-1] + b"x"]), 0)
    assert one == two
    assert one != three


@pytest.mark.parametrize("fraction", [0.0005, 0.1, 0.5, 0.99])
def test_the_share_is_what_was_asked_for(fraction: float) -> None:
    texts = [
        b"document number %d with a little text behind it, and more than sixty-four bytes" % i for i in range(40_000)
    ]
    share = in_val(*_rows(texts), fraction, 0).mean()
    assert abs(share - fraction) < 5 * (fraction * (1 - fraction) / len(texts)) ** 0.5 + 1e-9


def test_all_and_nothing() -> None:
    rows = _rows([b"a", b"b", b""])
    assert in_val(*rows, 1.0, 0).all()
    assert not in_val(*rows, 0.0, 0).any()


def test_the_hash_never_changes() -> None:
    # A split that moved with a new version would put val documents of an old dataset into a new train split.
    texts = [b"", b"a", b"seven b", b"eight by", b"x" * 100, b"y" * 70_000]
    assert [f"{h:016x}" for h in content_hash(*_rows(texts), 7)] == GOLDEN


GOLDEN = [
    "cb806acc8cae4a9c",
    "b673239b8ea21714",
    "b2c30f50731cf0fa",
    "acceb14642a80cb0",
    "4b94ea34768f1a57",
    "8eba7eef24711f7d",
]


@pytest.mark.parametrize(
    ("written", "val"),
    [
        ("0.0005", Val(fraction=0.0005)),
        ("5%", Val(fraction=0.05)),
        ("0", Val()),
        ("first:100M", Val(first=100_000_000)),
        ("tail:0.1", Val(tail=0.1)),
    ],
)
def test_val_is_read_as_it_is_written(written: str, val: Val) -> None:
    assert Val.parse(written) == val
    assert Val.parse(written).nothing == (written == "0")


@pytest.mark.parametrize("written", ["2", "-1", "first:", "tail:2", "middle:3", "x"])
def test_a_val_that_cannot_be_is_refused(written: str) -> None:
    with pytest.raises(UsageError):
        Val.parse(written)
