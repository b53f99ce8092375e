"""Sources at a hub or on the web are looked into by ranges, in seconds, and told as local ones are."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.errors import OutputError
from shardmill.run import inspect
from tests.hub import Fault, Hub
from tests.hub_answers import TOKEN
from tests.inspection.material import Disk, corpus, found, true_tokens
from tests.meter import SHARDMILL

pytestmark = pytest.mark.thorough

EDU = "HuggingFaceFW/fineweb-edu"


def told(hub: Hub, *arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [*SHARDMILL, "inspect", *map(str, arguments)],
        env={**os.environ, **hub.environment, "SHARDMILL_PAUSE": "0.01", **environment},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return done


def sample_of_fineweb(hub: Hub, folder: Path, size: int) -> list[str]:
    """Four files with columns beside the text, one of them larger than the text."""
    made = corpus(size, 11)
    files = {}
    for i in range(4):
        part = made[i::4]
        table = pa.table({"text": part, "url": [os.urandom(len(text) // 2).hex() for text in part]})
        path = folder / f"00{i}_00000.parquet"
        pq.write_table(table, path, row_group_size=150, compression="zstd")
        files[f"sample/10BT/{path.name}"] = path
    hub.add(EDU, files)
    return made


def test_a_recipe_is_told_from_a_part_of_its_bytes(tmp_path: Path, hub: Hub) -> None:
    made = sample_of_fineweb(hub, tmp_path, 12_000_000)
    said = json.loads(told(hub, "fineweb-edu/sample-10BT", "--json").stdout)
    truth = true_tokens(made)
    assert said["documents"] == {"value": len(made), "margin": 0}
    assert 0 < said["tokens"]["margin"] < 0.1 * truth
    assert abs(said["tokens"]["value"] - truth) <= said["tokens"]["margin"]
    assert said["kinds"][0]["format"] == "parquet" and said["sources"] == 4
    stored = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    assert said["stored_bytes"] == stored
    # The text is a part of the files, and no more of them is downloaded.
    column = sum(
        pq.read_metadata(path).row_group(i).column(0).total_compressed_size
        for path in tmp_path.glob("*.parquet") for i in range(pq.read_metadata(path).num_row_groups)
    )  # fmt: skip
    assert abs(said["fetched_bytes"] / column - 1) < 0.02 and column < 0.6 * stored
    assert "to download" in told(hub, "fineweb-edu/sample-10BT").stdout


def test_a_wrong_field_is_told_with_the_names_of_those_there_are(tmp_path: Path, hub: Hub) -> None:
    sample_of_fineweb(hub, tmp_path, 200_000)
    done = told(hub, "fineweb-edu/sample-10BT", "--text-field", "body", code=1)
    assert "would stop:" in done.stdout
    assert "`text`, `url`" in done.stdout


@pytest.mark.parametrize(("name", "said"), [("fineweb/sample-10BT", "fineweb"), ("fineweb-2/xyz_Latn", "fineweb-2")])
def test_a_recipe_that_the_hub_does_not_have_is_an_error(tmp_path: Path, hub: Hub, name: str, said: str) -> None:
    assert said in told(hub, name, code=1).stderr


def test_a_server_that_falls_silent_does_not_hold_it_up(tmp_path: Path, hub: Hub) -> None:
    sample_of_fineweb(hub, tmp_path, 200_000)
    hub.faults.append(Fault("/cdn/", stall=170, times=99))
    started = time.monotonic()
    done = told(hub, "fineweb-edu/sample-10BT", code=1, SHARDMILL_TRIES="2", SHARDMILL_TIMEOUT="0.5")
    assert "would stop:" in done.stdout
    assert time.monotonic() - started < 100


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_a_file_on_the_web_is_entered_anywhere_or_read_from_its_start(
    tmp_path: Path, hub: Hub, few_places: None, name: str
) -> None:
    import gzip

    made = corpus(6_000_000, 4)
    if "csv" in name:
        raw = b"id,text\n" + b"".join(f'{i},"{text}"\n'.encode() for i, text in enumerate(made))
    else:
        raw = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in made)
    hub.web[name] = gzip.compress(raw, 1) if name.endswith("gz") else raw
    report = inspect(f"{hub.url}/web/{name}")
    assert not report.troubles
    assert not report.tokens.exact
    assert abs(report.tokens.value / true_tokens(made) - 1) < 0.1
    assert abs(report.documents.value / len(made) - 1) < 0.1


def test_prepare_looks_at_remote_sources_too_before_it_begins(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = corpus(400_000, 5)
    hub.web["a.jsonl"] = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in made)
    url = f"{hub.url}/web/a.jsonl"
    needed = 2 * true_tokens(made) + 28 * len(made) + 2 * 192  # tokens, and the documents tables
    monkeypatch.setattr("shardmill.run.encoded_text.shutil.disk_usage", lambda path: Disk(10**9, 0, needed - 1))
    with pytest.raises(OutputError, match="the output would take about"):
        shardmill.prepare(url, tmp_path / "out", val="0")
    assert not list((tmp_path / "out").glob("*.bin*"))
    monkeypatch.setattr("shardmill.run.encoded_text.shutil.disk_usage", lambda path: Disk(10**9, 0, needed))
    assert shardmill.prepare(url, tmp_path / "out", val="0").manifest["documents"] == len(made)


def test_the_troubles_of_a_remote_source_name_no_secret(hub: Hub) -> None:
    hub.web["a.jsonl"] = b'{"text": \n' * 300
    report = inspect(f"{hub.url}/web/a.jsonl?token=hushhush")
    assert found(report, "rejects") or found(report, "source")
    assert "hushhush" not in json.dumps(report.data()) + report.text()
