"""Megatron's preprocess_data.py: a pool over lines, 32 at a time, `tokenizers` in each process, EOT after each.

Written after its loop, without torch: it reads, encodes, and appends each document to a .bin file with an index.
"""

from __future__ import annotations

import json
import multiprocessing
import os

import numpy as np
from tokenizers import Tokenizer
from way import OUT, SOURCE, VOCABULARY, WORKERS, Clock

os.environ["TOKENIZERS_PARALLELISM"] = "false"
tokenizer = Tokenizer.from_file(str(VOCABULARY / "tokenizer.json"))
eot = int(tokenizer.token_to_id("<|endoftext|>") or 0)


def encode(line: str) -> list[int]:
    return [*tokenizer.encode(json.loads(line)["text"]).ids, eot]


def main() -> None:
    clock = Clock()
    lengths = []
    with (
        SOURCE.open(encoding="utf-8", newline="\n") as lines,
        multiprocessing.Pool(WORKERS) as pool,
        (OUT / "tokens.bin").open("wb") as out,
    ):
        for ids in pool.imap(encode, lines, 32):
            out.write(np.array(ids, np.uint16).tobytes())
            lengths.append(len(ids))
    np.array(lengths, np.int32).tofile(OUT / "tokens.idx")
    clock.stop()


if __name__ == "__main__":
    main()
