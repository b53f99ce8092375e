"""What is compared: for each way its script, the container it reads, and what its tokens must be."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from benchmarks.corpus import SEPARATOR
from benchmarks.environment import PEERS, PYTHON


@dataclass(frozen=True)
class Way:
    """One way from text to tokens."""

    name: str
    script: str
    container: str
    eot: str = "after"
    """`after` or `before` each document, `none`, or `joined`: the text is one document, without EOT."""
    slices: int | None = None
    """Slow ways read so many slices of the text; None: all of it."""
    writes: bool = True
    ours: bool = False
    """Runs in shardmill's environment."""
    arguments: tuple[str, ...] = ()

    def command(self, source: str, out: str, workers: int) -> list[str]:
        python = sys.executable if self.ours else str(PYTHON)
        return [python, str(PEERS / f"{self.script}.py"), source, out, str(workers), *self.arguments]


OF_OTHER_KINDS = {("shardmill_prepare", "jsonl"), ("gigatoken_files", "jsonl"), ("tiktoken_loop", "jsonl")}
"""Script and container of the ways that texts beside the first go too: code, other languages."""


def _shardmill(container: str, *, memory: str, eot: str = "after", separator: str | None = None) -> Way:
    arguments = (memory, separator) if separator else (memory,)
    return Way("shardmill", "shardmill_prepare", container, eot=eot, ours=True, arguments=arguments)


def ways(memory: str) -> list[Way]:
    """All ways; shardmill's own come first, one for each container."""
    return [
        _shardmill("text", memory=memory, separator=SEPARATOR),
        _shardmill("plain", memory=memory, eot="joined"),
        _shardmill("jsonl", memory=memory),
        _shardmill("parquet-zstd", memory=memory),
        _shardmill("jsonl.zst", memory=memory),
        _shardmill("jsonl.gz", memory=memory),
        Way("gigatoken encode_files + tofile", "gigatoken_files", "text", eot="none"),
        Way("gigatoken encode_files + tofile", "gigatoken_files", "jsonl", eot="none"),
        Way("tiktoken, 1,000,000-character chunks", "tiktoken_stream", "plain", eot="joined", slices=3),
        Way("tiktoken, a loop over documents", "tiktoken_loop", "jsonl", slices=3),
        Way("build-nanogpt's pool over tiktoken", "build_nanogpt", "jsonl", eot="before", slices=3),
        Way("Megatron's script over tokenizers", "megatron_script", "jsonl", slices=1),
        Way("HF tokenizers encode_batch", "hf_tokenizers", "jsonl", slices=1),
        Way("nanoGPT's datasets.map", "nanogpt_map", "jsonl", slices=1),
        Way("datatrove DocumentTokenizer", "datatrove_tokens", "jsonl", slices=1),
    ]
