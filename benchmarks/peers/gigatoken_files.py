"""gigatoken by itself: encode_files on the whole text, then tofile. All tokens are in memory in between; no EOT."""

from __future__ import annotations

import gigatoken
import numpy as np
from way import OUT, SOURCE, VOCABULARY, Clock

tokenizer = gigatoken.Tokenizer.from_tiktoken(str(VOCABULARY / "gpt2.tiktoken"), pretokenizer="gpt2")
clock = Clock()
if SOURCE.suffix == ".txt":
    source = gigatoken.TextFileSource([str(SOURCE)], separator=b"<|endoftext|>")
else:
    source = gigatoken.JsonlFileSource([str(SOURCE)])
tokens = tokenizer.encode_files(source)
np.asarray(tokens.layout.content.data).astype(np.uint16).tofile(OUT / "tokens.bin")
clock.stop()
