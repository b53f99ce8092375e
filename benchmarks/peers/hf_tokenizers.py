"""Hugging Face tokenizers: encode_batch on a thousand documents at a time, its own threads, EOT after each."""

from __future__ import annotations

import itertools
import json

import numpy as np
from tokenizers import Tokenizer
from way import OUT, SOURCE, VOCABULARY, Clock

tokenizer = Tokenizer.from_file(str(VOCABULARY / "tokenizer.json"))
eot = tokenizer.token_to_id("<|endoftext|>")
clock = Clock()
with SOURCE.open(encoding="utf-8", newline="\n") as lines, (OUT / "tokens.bin").open("wb") as out:
    while batch := list(itertools.islice(lines, 1000)):
        for encoded in tokenizer.encode_batch([json.loads(line)["text"] for line in batch]):
            np.array([*encoded.ids, eot], dtype=np.uint16).tofile(out)
clock.stop()
