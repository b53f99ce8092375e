"""Our files in the hands of the libraries that they are made for; skipped where those are not installed."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.shards import SPLITS
from tests.shards.driving import SHARD, Driven, contents, documents, whole_run

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, not ours


def library(name: str) -> Any:
    """A module of somebody else's, whatever it warns of while it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as why:
            return pytest.skip(f"{name}: {why}")


def streaming_base() -> Any:
    """MosaicML's readers and writers, without its `vision`, which `import streaming` imports and which needs CUDA."""
    spec = importlib.util.find_spec("streaming")
    if spec is None:
        return pytest.skip("streaming is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "streaming", importlib.util.module_from_spec(spec))
        return library("streaming.base")


def of(made: list[tuple[str, np.ndarray]], split: str) -> list[np.ndarray]:
    return [tokens for s, tokens in made if s == split]


def test_numpy_loads_our_shards_and_would_have_written_the_same(tmp_path: Path) -> None:
    made = documents(1)
    run = whole_run("npy", tmp_path / "out", made)
    for split in SPLITS:
        for name in run.names(split):
            np.save(tmp_path / "theirs.npy", np.load(run.folder / name))
            assert (tmp_path / "theirs.npy").read_bytes() == (run.folder / name).read_bytes()


@pytest.mark.parametrize("largest", [50257, 200_000])
def test_megatron_core_reads_our_pair_and_would_have_written_the_same(largest: int, tmp_path: Path) -> None:
    megatron = library("megatron.core.datasets.indexed_dataset")
    import torch

    made = documents(2, largest=largest)
    dtype = np.dtype("uint16" if largest <= 65536 else "uint32")
    run = whole_run("megatron", tmp_path / "out", made, dtype=dtype, vocab_size=largest)
    for split in SPLITS:
        prefix = run.folder / f"web-{split}_text_document"
        dataset = megatron.IndexedDataset(str(prefix))
        assert len(dataset) == len(of(made, split))
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(of(made, split), dataset[:], strict=True))
        builder = megatron.IndexedDatasetBuilder(
            str(tmp_path / "theirs.bin"), dtype=megatron.DType.optimal_dtype(largest)
        )
        for tokens in of(made, split):
            builder.add_document(torch.tensor(tokens.astype(np.int64)), [len(tokens)])
        builder.finalize(str(tmp_path / "theirs.idx"))
        for ending in (".bin", ".idx"):
            assert (tmp_path / f"theirs{ending}").read_bytes() == prefix.with_suffix(ending).read_bytes()


def test_datatrove_reads_our_files_and_would_have_written_the_same(tmp_path: Path) -> None:
    datasets = library("datatrove.utils.dataset")
    writing = library("datatrove.pipeline.tokens.tokenizer")
    made = documents(3)
    run = whole_run("datatrove", tmp_path / "out", made, tokenizer="gpt2", shard_tokens=10**6)
    tokens = np.concatenate(of(made, "train"))
    dataset = datasets.DatatroveFolderDataset(str(run.folder / "train"), seq_len=31, filename_pattern="*.ds")
    assert len(dataset) == len(tokens) // 32
    for i in range(len(dataset)):
        assert np.array_equal(dataset[i]["input_ids"].numpy(), tokens[32 * i : 32 * (i + 1)])
    positions = datasets.DatatroveFileDataset(
        str(run.folder / "train" / "web_000000.ds"), seq_len=31, return_positions=True
    )
    starts = np.cumsum([0] + [len(document) for document in of(made, "train")])
    within = np.arange(len(tokens)) - np.repeat(starts[:-1], np.diff(starts))
    got = positions[0]["positions"].numpy()
    assert np.array_equal(got[: starts[1]], within[:32][: starts[1]])
    for split in SPLITS:
        theirs = writing.TokenizedFile(
            str(tmp_path / "theirs" / split), "web_000000.ds", save_index=True, tokenizer_name_or_path="gpt2",
            save_final_metadata=True, token_size=2,
        )  # fmt: skip
        for document in of(made, split):
            theirs.write(document.tolist(), None)
        theirs.close()
    assert contents(tmp_path / "theirs") == contents(run.folder)


def test_mosaicmls_streaming_reads_our_shards_and_would_have_written_the_same(tmp_path: Path) -> None:
    streaming = streaming_base()
    made = [*documents(4), ("train", np.arange(70_000, dtype=np.uint16))]
    run = whole_run("mds", tmp_path / "out", made)
    assert len(run.names("train")) > 3
    dataset = streaming.StreamingDataset(local=str(run.folder), split="train", shuffle=False, batch_size=1)
    for ours, theirs in zip(of(made, "train"), dataset, strict=True):
        assert np.array_equal(theirs["tokens"], ours)
    together = whole_run("mds", tmp_path / "together", made, shard_tokens=10**9)
    for split in SPLITS:
        with streaming.MDSWriter(out=str(tmp_path / "theirs" / split), columns={"tokens": "ndarray:uint16"}) as writer:
            for tokens in of(made, split):
                writer.write({"tokens": tokens})
    assert contents(tmp_path / "theirs") == contents(together.folder)


def test_torch_takes_our_files_as_llmc_and_modded_nanogpt_take_them(tmp_path: Path) -> None:
    torch = library("torch")
    made = documents(5)
    run = whole_run("llmc", tmp_path / "out", made)
    for name in run.names("train"):
        path = str(run.folder / name)
        head = torch.from_file(path, False, 256, dtype=torch.int32)
        assert (head[0], head[1]) == (20240520, 1)
        count = int(head[2])
        tokens = torch.empty(count, dtype=torch.uint16)
        with open(path, "rb", buffering=0) as file:
            file.seek(256 * 4)
            assert file.readinto(tokens.numpy()) == 2 * count
            assert not file.read(1)
        assert count == SHARD or name == run.names("train")[-1]


@pytest.mark.parametrize("largest", [50257, 200_000])
def test_litdata_reads_our_chunks_as_litgpt_does_and_would_have_written_the_same(largest: int, tmp_path: Path) -> None:
    litdata = library("litdata")
    writer = library("litdata.streaming.writer")
    torch = library("torch")
    made = documents(6, largest=largest)
    dtype = np.dtype("uint16" if largest <= 65536 else "uint32")
    run = whole_run("litdata", tmp_path / "out", made, dtype=dtype, shard_tokens=1500)
    theirs = writer.BinaryWriter(str(tmp_path / "theirs"), chunk_bytes=1 << 30, item_loader=litdata.TokensLoader())
    for i, tokens in enumerate(of(made, "train")):
        theirs[i] = torch.from_numpy(tokens.astype("int32" if largest > 65536 else "uint16"))
    theirs.done()
    theirs.merge()
    together = whole_run("litdata", tmp_path / "together", made, dtype=dtype, shard_tokens=10**9)
    assert (together.folder / "train" / "chunk-0-0.bin").read_bytes() == (
        tmp_path / "theirs" / "chunk-0-0.bin"
    ).read_bytes()
    ours, index = (json.loads((tmp_path / path / "index.json").read_text()) for path in ("together/train", "theirs"))
    assert ours["config"]["data_format"] == index["config"]["data_format"]
    assert [{key: chunk[key] for key in ours["chunks"][0]} for chunk in index["chunks"]] == ours["chunks"]
    dataset = litdata.StreamingDataset(
        str(run.folder / "train"), item_loader=litdata.TokensLoader(block_size=32), shuffle=False
    )
    blocks = [block for tokens in chunks(run) for block in np.split(tokens, range(32, len(tokens), 32))]
    expected = [block for block in blocks if len(block) == 32]
    assert len(run.names("train")) > 3 and len(dataset) == len(expected)
    assert all(np.array_equal(dataset[i].numpy(), block) for i, block in enumerate(expected))


def chunks(run: Driven) -> Iterator[np.ndarray]:
    tokens = {name: data for name, data in contents(run.folder).items() if name in run.names("train")}
    for name in run.names("train"):
        start = 4 * (2 + int(np.frombuffer(tokens[name], "<u4", 1)[0]))
        yield np.frombuffer(tokens[name], run.output.dtype, offset=start)


@pytest.mark.parametrize("largest", [50257, 200_000])
def test_olmo_core_reads_our_files_and_would_have_listed_the_same_documents(largest: int, tmp_path: Path) -> None:
    data = library("olmo_core.data.numpy_dataset")
    utils = library("olmo_core.data.utils")
    eos = largest - 1
    made = [
        (split, np.append(tokens % eos, eos).astype(tokens.dtype)) for split, tokens in documents(7, largest=largest)
    ]
    dtype = np.uint16 if largest <= 65536 else np.uint32
    run = whole_run("olmo", tmp_path / "out", made, dtype=np.dtype(dtype))
    paths = [run.folder / name for name in run.names("train")]
    assert len(paths) > 3
    dataset = data.NumpyFSLDataset(
        *paths, sequence_length=32, pad_token_id=0, eos_token_id=eos, vocab_size=largest, dtype=dtype
    )
    dataset.prepare()
    files = [np.fromfile(path, dtype) for path in paths]
    assert np.array_equal(np.concatenate(files), np.concatenate(of(made, "train")))
    expected = [block for file in files for block in np.split(file, range(32, len(file), 32)) if len(block) == 32]
    assert len(dataset) == len(expected)
    assert all(np.array_equal(dataset[i]["input_ids"].numpy(), block) for i, block in enumerate(expected))
    for path in paths:
        listed = list(utils.iter_document_indices(path, use_array_if_local=False))
        assert listed == list(utils.iter_document_indices(path, eos_token_id=eos, dtype=dtype))
        ours = gzip.decompress(path.with_suffix(".csv.gz").read_bytes())
        utils.write_document_indices(path, dtype=dtype, eos_token_id=eos)
        assert gzip.decompress(path.with_suffix(".csv.gz").read_bytes()) == ours


@pytest.mark.parametrize("largest", [50257, 200_000])
def test_nemo_automodel_reads_our_shards_and_aligns_rows_to_documents(largest: int, tmp_path: Path) -> None:
    nanogpt = library("nemo_automodel.components.datasets.llm.nanogpt_dataset")
    mark = largest - 1
    made = [(split, np.append(mark, tokens[tokens != mark]).astype(tokens.dtype))
            for split, tokens in documents(5, largest=largest)]  # fmt: skip
    run = whole_run("automodel", tmp_path / "out", made, dtype=np.dtype("uint16" if largest <= 65536 else "uint32"))
    for split in SPLITS:
        names = run.names(split)
        read = [nanogpt.load_bin_shard(run.folder / name).numpy() for name in names]
        assert np.array_equal(np.concatenate(read), np.concatenate(of(made, split)))
        rows = nanogpt.NanogptDataset(
            [str(run.folder / names[0])], seq_len=8, bos_token=mark, align_to_bos=True
        )._process_file_tokens(str(run.folder / names[0]), False, 0, 0)
        found = [row["input_ids"] for row in rows]
        assert found
        assert all(row[0] == mark for row in found)
