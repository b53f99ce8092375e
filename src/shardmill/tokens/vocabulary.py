"""Rank files, as tiktoken has them: one line for each token, its bytes in base64 and its rank."""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import string
import zlib
from pathlib import Path

from shardmill.errors import UsageError

END_OF_TEXT = "<|endoftext|>"


@functools.cache
def gpt2_ranks() -> bytes:
    """GPT-2's rank file (the same as tiktoken's r50k_base), from this package."""
    return zlib.decompress(Path(__file__).with_name("gpt2.ranks").read_bytes())


def p50k_ranks() -> bytes:
    """The rank file of p50k_base: GPT-2's, and after a gap for the end of text, runs of 2 to 25 spaces."""
    spaces = [f"{base64.b64encode(b' ' * (2 + n)).decode('ascii')} {50257 + n}\n" for n in range(24)]
    return gpt2_ranks() + "".join(spaces).encode("ascii")


def parse(text: bytes, place: str, *, known: bool = False) -> dict[bytes, int]:
    """Rank by token bytes. UsageError where the text is not a rank file; a `known` one is not looked at closely."""
    if known:
        decode = binascii.a2b_base64
        return {decode(token): int(rank) for token, rank in map(bytes.split, text.splitlines())}
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise UsageError(
                "not a rank file (each line: base64, a space, a number)", place=f"{place}, line {number}"
            ) from None
    return ranks


def by_id(ranks: dict[bytes, int], special_tokens: dict[str, int]) -> list[bytes]:
    """The bytes of every id in order; empty for ids that are none."""
    tokens = {rank: token for token, rank in ranks.items()} | {
        id_: name.encode() for name, id_ in special_tokens.items()
    }
    return [tokens.get(id_, b"") for id_ in range(max(tokens) + 1)]


def last_rank(text: bytes, place: str) -> int:
    """The largest rank, which stands in the last line."""
    line = text.rstrip().rpartition(b"\n")[2]
    return max(parse(line, place).values(), default=-1)


def without_gaps(text: bytes, ranks: dict[bytes, int]) -> bytes:
    """The rank file with something in the ranks that it leaves free for special tokens: gigatoken wants every one.

    What fills them is a letter and a digit, which every split pattern parts, so that they are never merged.
    """
    taken = set(ranks.values())
    free = [rank for rank in range(max(taken)) if rank not in taken]
    fillers = [bytes(pair) for pair in itertools.product(string.ascii_letters.encode(), string.digits.encode())]
    fillers = [filler for filler in fillers if filler not in ranks]
    if not free or len(free) > len(fillers):
        return text
    filled = {rank: token for token, rank in ranks.items()} | dict(zip(free, fillers, strict=False))
    return b"".join(b"%b %d\n" % (base64.b64encode(filled[rank]), rank) for rank in sorted(filled))
