"""build-nanogpt's fineweb.py: a pool of processes over tiktoken, 16 documents at a time, EOT before each."""

from __future__ import annotations

import json
import multiprocessing

import numpy as np
import tiktoken
from way import OUT, SOURCE, WORKERS, Clock

SHARD = 100_000_000
encoding = tiktoken.get_encoding("gpt2")
eot = encoding._special_tokens["<|endoftext|>"]


def tokenize(line: str) -> np.ndarray:
    tokens = np.array([eot, *encoding.encode_ordinary(json.loads(line)["text"])])
    assert (tokens >= 0).all() and (tokens < 2**16).all()
    return tokens.astype(np.uint16)


def main() -> None:
    clock = Clock()
    shard, held, number = np.empty(SHARD, dtype=np.uint16), 0, 0
    with SOURCE.open(encoding="utf-8", newline="\n") as lines, multiprocessing.Pool(WORKERS) as pool:
        for tokens in pool.imap(tokenize, lines, chunksize=16):
            room = SHARD - held
            shard[held : held + len(tokens)] = tokens[:room]
            held += min(room, len(tokens))
            if len(tokens) >= room:
                np.save(OUT / f"train_{number:06}.npy", shard)
                number += 1
                held = len(tokens) - room
                shard[:held] = tokens[room:]
    if held:
        np.save(OUT / f"train_{number:06}.npy", shard[:held])
    clock.stop()


if __name__ == "__main__":
    main()
