"""The oracle itself: it accepts what is right and refuses what is nearly right."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import shardmill
from tests.reference import Twin, check, dealt, twin

DOCUMENTS = [np.array(tokens, dtype=np.uint32) for tokens in ([1, 2], [1, 2, 3], [4], [1, 2], [5, 6])]


def joined(*which: int) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.uint32), *(DOCUMENTS[i] for i in which)])


@pytest.mark.parametrize("val", [(), (1,), (0, 3), (0, 1, 2, 3, 4), (2, 4)])
def test_documents_that_were_dealt_in_order_are_accepted(val: tuple[int, ...]) -> None:
    train = [i for i in range(len(DOCUMENTS)) if i not in val]
    assert dealt(DOCUMENTS, joined(*train), joined(*val))


@pytest.mark.parametrize(
    ("train", "val"),
    [((1, 0, 3, 4), (2,)), ((0, 1, 3), (4, 2)), ((0, 1, 2, 3), ()), ((0, 1, 2, 3, 4), (4,)), ((0, 0, 2, 4), (1,))],
)
def test_documents_out_of_order_lost_or_doubled_are_refused(train: tuple[int, ...], val: tuple[int, ...]) -> None:
    assert not dealt(DOCUMENTS, joined(*train), joined(*val))


def test_a_document_that_was_torn_in_two_is_refused() -> None:
    assert not dealt(DOCUMENTS, np.array([1, 2, 1, 4, 1, 2, 5, 6]), np.array([2, 3]))


def dataset(folder: Path, train: list[int] | np.ndarray) -> None:
    data = np.array(train, dtype="<u2").tobytes()
    (folder / "train.bin").write_bytes(data)
    entry = {"name": "train.bin", "bytes": len(data), "tokens": len(train), "sha256": hashlib.sha256(data).hexdigest()}
    split = {"tokens": len(train), "documents": 1, "files": [entry]}
    manifest = {"dtype": "uint16", "splits": {"train": split}, "empty": 0, "rejected": 0}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_one_wrong_token_and_one_flipped_bit_are_noticed(tmp_path: Path) -> None:
    expected = Twin(tokens=[np.array([7, 8, 9], dtype=np.uint32)])
    dataset(tmp_path, [7, 8, 9, 50256])
    check(tmp_path, expected)
    dataset(tmp_path, [7, 8, 8, 50256])
    with pytest.raises(AssertionError, match="first at token 2"):
        check(tmp_path, expected)
    dataset(tmp_path, [7, 8, 9, 50256])
    (tmp_path / "train.bin").write_bytes(b"\0" + (tmp_path / "train.bin").read_bytes()[1:])
    with pytest.raises(AssertionError, match=r"train\.bin"):
        check(tmp_path, expected)


def test_documents_empty_ones_and_rejects_are_told_apart(tmp_path: Path) -> None:
    good = [b'{"text": "one"}', b"", b'{"text": ""}', b'{"text": "two"}\r', b"  "]
    good += [b'{"text": "NaN", "x": [NaN, -Infinity, ' + b"9" * 5000 + b"]}"]
    bad = [b"{", b'["text"]', b'{"other": 1}', b'{"text": null}', b'{"text": 2}']
    bad += [b'{"text": "\\ud800"}', b'{"text": "\xff"}', b'{"text": "a", "x": Inf}']
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(good)) + gzip.compress(b"\n" + b"\n".join(bad)))
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfthree\n\n\n\nfo\xffur\n\n")
    (tmp_path / "c.csv").write_bytes(b'id,text\n1,"fi\nve"\n2\n3,\n')
    (tmp_path / "_d.txt").write_bytes(b"hidden")
    found = twin(tmp_path, separator="\n\n")
    assert found.texts == ["one", "two", "NaN", "three", "fo\ufffdur", "fi\nve"]
    assert (found.empty, found.rejected) == (3, 9)
    shardmill.prepare(tmp_path, tmp_path / "out", separator="\n\n", val=0)
    check(tmp_path / "out", found)
