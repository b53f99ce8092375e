"""A loop over tiktoken.encode_ordinary, one document at a time, EOT after each."""

from __future__ import annotations

import json

import numpy as np
import tiktoken
from way import OUT, SOURCE, Clock

encoding = tiktoken.get_encoding("gpt2")
clock = Clock()
with SOURCE.open(encoding="utf-8", newline="\n") as lines, (OUT / "tokens.bin").open("wb") as out:
    for line in lines:
        tokens = encoding.encode_ordinary(json.loads(line)["text"])
        tokens.append(encoding.eot_token)
        np.array(tokens, dtype=np.uint16).tofile(out)
clock.stop()
