"""Each kind of recipe from a hub to the files that its trainer reads, undisturbed and killed on the way."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.corpus import contents, documents
from tests.hub import Fault, Hub
from tests.meter import SHARDMILL
from tests.reference import gpt2

pytestmark = pytest.mark.thorough

EDU, WEB, WEB_2, OPEN = (
    "HuggingFaceFW/fineweb-edu", "HuggingFaceFW/fineweb", "HuggingFaceFW/fineweb-2", "Skylion007/openwebtext",
)  # fmt: skip
STORIES, WIKIPEDIA, C4, DCLM, CLIMBMIX, SMOLLM = (
    "roneneldan/TinyStories", "wikimedia/wikipedia", "allenai/c4", "mlfoundations/dclm-baseline-1.0",
    "karpathy/climbmix-400b-shuffle", "HuggingFaceTB/smollm-corpus",
)  # fmt: skip
EOT = 50256

# Recipe → the repository, its files in order as they are called at the hub, the format, and the prefix of its files.
KINDS = {
    "fineweb-edu/sample-10BT": (EDU, [f"sample/10BT/00{i}_00000.parquet" for i in range(2)], "npy", "edufineweb"),
    "fineweb-edu/CC-MAIN-2024-10": (
        EDU, [f"data/CC-MAIN-2024-10/train-0000{i}-of-00002.parquet" for i in range(2)], "llmc", "edu_fineweb",
    ),
    "fineweb-edu": (
        EDU, [f"data/CC-MAIN-{week}/train-00000-of-00001.parquet" for week in ("2013-20", "2024-10")], "npy",
        "edufineweb",
    ),
    "fineweb/sample-100BT": (WEB, [f"sample/100BT/00{i}_00000.parquet" for i in range(2)], "llmc", "fineweb"),
    "fineweb/CC-MAIN-2024-10": (WEB, [f"data/CC-MAIN-2024-10/000_0000{i}.parquet" for i in range(2)], "npy", "fineweb"),
    "fineweb": (WEB, [f"data/CC-MAIN-{week}/000_00000.parquet" for week in ("2013-20", "2024-10")], "npy", "fineweb"),
    "fineweb-2/deu_Latn": (
        WEB_2, [f"data/deu_Latn/train/00{i}_00000.parquet" for i in range(2)], "npy", "fineweb2_deu_Latn",
    ),
    "openwebtext": (OPEN, [f"plain_text/train-0000{i}-of-00002.parquet" for i in range(2)], "nanogpt", None),
    "tinystories": (
        STORIES, [f"data/train-0000{i}-of-00004-2d5a1467fff1081b.parquet" for i in range(2)], "nanogpt", None,
    ),
    "wikipedia/en": (WIKIPEDIA, [f"20231101.en/train-0000{i}-of-00041.parquet" for i in range(2)], "nanogpt", None),
    "c4": (C4, [f"en/c4-train.0000{i}-of-01024.json.gz" for i in range(2)], "nanogpt", None),
    "dclm": (
        DCLM, [f"global-shard_0{i}_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst" for i in (1, 2)],
        "nanogpt", None,
    ),
    "climbmix": (CLIMBMIX, [f"shard_0000{i}.parquet" for i in range(2)], "nanogpt", None),
    "cosmopedia-v2": (SMOLLM, [f"cosmopedia-v2/train-0000{i}-of-00104.parquet" for i in range(2)], "nanogpt", None),
    "fineweb-edu-dedup": (
        SMOLLM, [f"fineweb-edu-dedup/train-0000{i}-of-00234.parquet" for i in range(2)], "nanogpt", None,
    ),
}  # fmt: skip
KILLED = ("fineweb-edu/sample-10BT", "fineweb/sample-100BT", "openwebtext")
"""Those that are killed in every run of the tests, one for each format; the others in the slow ones."""
BESIDE = {
    EDU: ["README.md", "sample/100BT/000_00000.parquet"],
    WEB: ["README.md", "sample/10BT/000_00000.parquet"],
    WEB_2: ["README.md", "data/deu_Latn/test/000_00000.parquet", "data/deu_Latn_removed/train/000_00000.parquet"],
    OPEN: ["README.md"],
    STORIES: ["README.md", "TinyStories-train.txt", "data/validation-00000-of-00001-869c898b519ad725.parquet"],
    WIKIPEDIA: ["README.md", "20231101.de/train-00000-of-00020.parquet"],
    C4: ["README.md", "en/c4-validation.00000-of-00008.json.gz", "en.noclean/c4-train.00000-of-07168.json.gz"],
    DCLM: ["README.md"],
    CLIMBMIX: ["README.md"],
    SMOLLM: ["README.md", "python-edu/train-00000-of-00001.parquet"],
}


def parquet(texts: list[str]) -> bytes:
    """As those at the hub: the text and columns about it, in small row groups."""
    table = pa.table(
        {
            "text": texts,
            "id": [f"<urn:uuid:{i}>" for i in range(len(texts))],
            "dump": ["CC-MAIN-2024-10"] * len(texts),
            "token_count": [len(text) // 4 for text in texts],
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=100)
    return out.getvalue()


def stored(path: str, texts: list[str]) -> bytes:
    """The texts in the format that the file's name shows."""
    if path.endswith(".parquet"):
        return parquet(texts)
    lines = "".join(
        json.dumps({"text": text, "url": f"https://host/{i}"}) + "\n" for i, text in enumerate(texts)
    ).encode()
    return gzip.compress(lines, 1) if path.endswith(".gz") else zstandard.compress(lines, 1)


def texts(name: str, size: int = 7000) -> list[str]:
    made = [text for text in documents(size, seed=sum(map(ord, name))) if text]
    return [f"Über {text}" for text in made] if "fineweb-2" in name else made


def serve(hub: Hub, name: str) -> list[str]:
    """The files of a recipe, and others that are not for it; gives its texts in order."""
    repo, paths, _, _ = KINDS[name]
    made = texts(name)
    # The second is large enough to be read by ranges.
    files = {path: stored(path, some) for path, some in zip(paths, (made[:500], made[500:]), strict=True)}
    assert len(files[paths[1]]) > 1 << 20 or not paths[1].endswith(".parquet")
    others = {path: stored(path, ["not of this recipe"]) for path in BESIDE[repo] if path not in files}
    hub.add(repo, files | others)
    return made


def shardmill(hub: Hub, *arguments: object) -> subprocess.Popen:
    environment = {**os.environ, **hub.environment, "SHARDMILL_PAUSE": "0.01"}
    return subprocess.Popen(
        [*SHARDMILL, *map(str, arguments)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def done(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def small(format: str) -> list[str]:
    """Figures that fit the size of the test; everything else is the recipe's own."""
    return [] if format == "nanogpt" else ["--val", "first:20k", "--shard-tokens", "20k"]


class Loader:
    """Finds and walks shards the way build-nanogpt's own loader does: by the split's name in the file's, in order."""

    def __init__(self, folder: Path, split: str, batch: int = 2, block: int = 64) -> None:
        self.shards = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if split in name]
        assert self.shards, f"no shards found for split {split}"
        self.batch, self.block = batch, block
        self.current, self.tokens, self.position = 0, self._load(0), 0

    def _load(self, number: int) -> np.ndarray:
        tokens = np.load(self.shards[number])
        assert tokens.dtype == np.uint16
        return tokens.astype(np.int32)

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        step = self.batch * self.block
        buffer = self.tokens[self.position : self.position + step + 1]
        x, y = buffer[:-1].reshape(self.batch, self.block), buffer[1:].reshape(self.batch, self.block)
        self.position += step
        if self.position + step + 1 > len(self.tokens):
            self.current = (self.current + 1) % len(self.shards)
            self.tokens, self.position = self._load(self.current), 0
        return x, y


def stream(made: list[str]) -> np.ndarray:
    """All tokens with EOT before each document, by the tokenizer's own library."""
    encode = gpt2()
    return np.concatenate([[EOT, *encode(text)] for text in made]).astype(np.uint16)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in KILLED])
def test_a_recipe_gives_what_its_trainer_expects(tmp_path: Path, hub: Hub, name: str) -> None:
    made = serve(hub, name)
    _, paths, format, prefix = KINDS[name]
    done(shardmill(hub, "prepare", name, "-f", format, *small(format), "-o", tmp_path))
    check(tmp_path, made, paths, format, prefix)


@pytest.mark.parametrize(
    "name", [name if name in KILLED else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_a_recipe_gives_what_its_trainer_expects_also_when_it_is_killed_on_the_way(
    tmp_path: Path, hub: Hub, name: str
) -> None:
    made = serve(hub, name)
    repo, paths, format, prefix = KINDS[name]
    call = ["prepare", name, "-f", format, *small(format)]
    done(shardmill(hub, *call, "-o", tmp_path / "whole"))
    check(tmp_path / "whole", made, paths, format, prefix)
    # The least memory: then chunks are small. The middle of the text comes late and the end not at all: the run
    # is on its way when it is killed, and has recorded some of it.
    least = shardmill(hub, *call, "-o", tmp_path / "out", "--workers", "2", "--memory", "1MB").communicate()[1]
    memory = re.search("`--memory ([0-9]+MB)`", least)[1]
    hub.latency, late = 0.1, 700_000
    hub.faults.append(Fault(lambda request: 200_000 < (request.range or (0,))[0] <= late, stall=1, times=999))
    hub.faults.append(Fault(lambda request: late < (request.range or (0,))[0] < 900_000, stall=170, times=999))
    with shardmill(hub, *call, "-o", tmp_path / "out", "--workers", "2", "--memory", memory) as run:
        journal = tmp_path / "out" / ".shardmill" / "journal.jsonl"
        until(lambda: journal.exists() and journal.stat().st_size > 0)
        run.send_signal(signal.SIGKILL)
        run.communicate()
    hub.latency = 0.0
    hub.faults.clear()
    assert not (tmp_path / "out" / "manifest.json").exists()
    hub.commit(repo, {paths[0]: parquet(["the branch has moved on"])})
    done(shardmill(hub, *call, "-o", tmp_path / "out", "--workers", "1"))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def check(out: Path, made: list[str], paths: list[str], format: str, prefix: str | None) -> None:
    """The sources in order, names, numbers and tokens as the training script finds them."""
    manifest = json.loads((out / "manifest.json").read_text())
    assert all(source["name"].endswith(path) for source, path in zip(manifest["sources"], paths, strict=True))
    assert manifest["documents"] == len(made)
    if format == "nanogpt":
        assert sorted(path.name for path in out.glob("*.bin")) == ["train.bin", "val.bin"]
        assert manifest["options"]["val"] == "0.0005" and manifest["eot"] == "after"
        assert np.fromfile(out / "train.bin", np.uint16)[-1] == EOT
        return
    ending = {"npy": "npy", "llmc": "bin"}[format]
    names = sorted(path.name for path in out.glob(f"*.{ending}"))
    trains = [f"{prefix}_train_{i:06}.{ending}" for i in range(1, len(names))]
    assert names == [*trains, f"{prefix}_val_000000.{ending}"]
    assert len(trains) > 2
    if format == "npy":
        val, train = Loader(out, "val"), Loader(out, "train")
        assert [os.path.basename(path) for path in val.shards] == [f"{prefix}_val_000000.npy"]
        assert [os.path.basename(path) for path in train.shards] == trains
        written = [np.load(path) for path in (*val.shards, *train.shards)]
        assert {len(shard) for shard in written[:-1]} == {20_000}
        assert np.array_equal(np.concatenate(written), stream(made))
        for x, y in islice(iter(train.next_batch, None), 400):
            assert x.shape == y.shape == (2, 64)
            assert np.array_equal(x.ravel()[1:], y.ravel()[:-1])


def until(ready: Callable[[], object], seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it never came so far"
        time.sleep(0.02)


def test_the_command_that_a_recipe_stands_for_finds_the_dataset_complete(tmp_path: Path, hub: Hub) -> None:
    serve(hub, "openwebtext")
    done(shardmill(hub, "prepare", "openwebtext", "-o", tmp_path / "out"))
    spelt = ["prepare", f"hf://datasets/{OPEN}/plain_text/*.parquet", "-o", tmp_path / "out", "--json"]
    assert json.loads(done(shardmill(hub, *spelt)))["already"] is True
