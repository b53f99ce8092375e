"""The script that is passed around: read a million characters, encode them, append to a .bin, repeat."""

from __future__ import annotations

import numpy as np
import tiktoken
from way import OUT, SOURCE, Clock

encoding = tiktoken.get_encoding("gpt2")
clock = Clock()
with SOURCE.open(encoding="utf-8", newline="") as text, (OUT / "tokens.bin").open("wb") as out:
    while chunk := text.read(1_000_000):
        np.array(encoding.encode_ordinary(chunk), dtype=np.uint16).tofile(out)
clock.stop()
