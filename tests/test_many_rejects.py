"""Bad records by the thousand cost time in proportion, and no more calls of the system than needed."""

from __future__ import annotations

import gzip
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.cluster import make_part, merge, plan_parts
from shardmill.dataset import verify
from shardmill.errors import SourceError
from shardmill.storage.files import PartialFile
from shardmill.write import as_text
from shardmill.write.ledger import reject_line
from tests.corpus import documents


def test_rejects_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A call of the system for each lets go of the interpreter, and a worker that judges bad lines takes it for long.
    source = tmp_path / "a.jsonl"
    source.write_bytes(b'{"text": "good"}\n' + b"x\n" * 5_000)
    calls: dict[str, int] = {}
    append = PartialFile.append

    def counted(self: PartialFile, data: bytes) -> None:
        calls[self.path.name] = calls.get(self.path.name, 0) + 1
        append(self, data)

    monkeypatch.setattr(PartialFile, "append", counted)
    shardmill.prepare(str(source), str(tmp_path / "out"), max_bad="any")
    lines = (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["line"] for line in lines] == list(range(2, 5_002))
    assert 1 <= calls["rejects.jsonl"] <= 50


@pytest.mark.parametrize("text", ["", "plain", 'quotes " and \\ and /', "\n\t\x00\x1f\x7f\u2028", "é中😀", "caf\udce9"])
@pytest.mark.parametrize(("number", "byte"), [(3, -1), (0, 7), (12, 0), (0, -1)])
def test_a_line_is_what_json_would_write(text: str, number: int, byte: int) -> None:
    record: dict[str, str | int] = {"source": text}
    record |= {"row": number} if number else {}
    record |= {"byte": byte} if byte >= 0 else {}
    record |= {"reason": f"why {text}", "excerpt": text}
    written = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    assert reject_line(text, "row", number, byte, f"why {text}", text) == written


@pytest.mark.parametrize("lines", [b"{\n  1\n}\n", b'{"text": 3}\n' * 60])
def test_a_run_that_finds_nothing_but_rejects_stops_unless_they_are_allowed(tmp_path: Path, lines: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines)
    for _ in range(2):  # a resumed run stops too
        with pytest.raises(SourceError, match=r"no document was written; bad documents: \d+") as error:
            shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "out", max_bad="50%")
        assert 'max_bad="any"' in str(error.value)
    assert not (tmp_path / "out" / "manifest.json").exists()
    shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "number", max_bad=100)
    summary = as_text(shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "out", max_bad="any"))
    assert "every document was rejected" in summary and "too little text" not in summary
    (tmp_path / "a.jsonl").write_bytes(lines + b'{"text": "a"}\n')
    assert "every document" not in as_text(shardmill.prepare(tmp_path / "a.jsonl", tmp_path / "out", overwrite=True))


END = "<|endoftext|>"


@pytest.mark.parametrize("separator", ["\n", "<sep>"])
@pytest.mark.parametrize("kind", ["plain", "BOM", "invalid bytes", "gzip", "parts"])
def test_the_place_of_a_text_that_the_tokenizer_refuses_is_the_byte_where_it_begins(
    tmp_path: Path, small_chunks: None, kind: str, separator: str
) -> None:
    odd = b"\xff" if kind == "invalid bytes" else b""
    texts = [odd + text.replace("\n", " ").encode() for text in documents(2000)]
    data = (b"\xef\xbb\xbf" if kind == "BOM" else b"") + separator.encode().join(texts)
    source = tmp_path / ("a.txt.gz" if kind == "gzip" else "a.txt")
    source.write_bytes(gzip.compress(data) if kind == "gzip" else data)
    options: dict[str, Any] = {"separator": separator, "specials": "error", "max_bad": "any", "val": 0.2}
    if kind == "parts":
        plan_parts(source, tmp_path / "out", parts=5, **options)
        for number in range(5):
            make_part(tmp_path / "out", number)
        merge(tmp_path / "out")
    else:
        shardmill.prepare(source, tmp_path / "out", **options)
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()]
    assert len(rejects) == sum(END.encode() in text for text in texts) > 5
    for reject in rejects:
        begin = reject["byte"]
        assert not begin or data[:begin].endswith((separator.encode(), b"\xef\xbb\xbf"))
        text = data[begin:].split(separator.encode())[0].decode("utf-8", "replace")
        assert END in text and text.startswith(reject["excerpt"])


def test_the_place_of_a_file_that_the_tokenizer_refuses_is_its_first_byte(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, text in {"a": "good", "b": f"a {END}", "c": f"\ufeff{END}", "d": "word " * 40_000 + END}.items():
        (tmp_path / "in" / f"{name}.txt").write_text(text)
    shardmill.prepare(tmp_path / "in", tmp_path / "out", specials="error", val=0)
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()]
    assert [(Path(reject["source"]).stem, reject["byte"]) for reject in rejects] == [("b", 0), ("c", 0), ("d", 0)]


@pytest.mark.parametrize("chunk", [1 << 16, 1 << 18, 1 << 22])
@pytest.mark.parametrize("val", [0, 0.3])
@pytest.mark.parametrize("text", ["word " * 100_000, "x" * 500_000])
def test_a_long_text_with_a_special_token_is_rejected_as_a_whole_or_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, val: float, chunk: int
) -> None:
    # What of it had been written by then would depend on the size of the chunks, and so on `--memory`.
    monkeypatch.setattr("shardmill.run.budget.LARGEST", chunk)
    monkeypatch.setattr("shardmill.run.budget.SMALLEST", chunk)
    (tmp_path / "a.txt").write_text(f"{text}{END} {text}")
    (tmp_path / "b.txt").write_text("good words")
    call = partial(shardmill.prepare, [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out", specials="error")
    if chunk < 1 << 20:
        with pytest.raises(shardmill.ShardmillError, match=re.escape(END)) as error:
            call(val=val)
        assert "a.txt" in str(error.value)
    else:
        made = call(val=val)
        assert (made.manifest["documents"], made.manifest["rejected"]) == (1, 1)
        assert not verify(tmp_path / "out").damage
