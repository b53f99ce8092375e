"""A hard text, on which two libraries must agree before the faster one is trusted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardmill.tokens.engines import Backend

# Nothing here has changed its class between the Unicode versions of the libraries; rows with such characters go to
# the reference anyway.
FRAGMENTS = [
    *"aZéßǅʰªж中日かカ한ไกनि1٣²Ⅷ!'’\"/-_.,<|>{}\\~^\x00\x1f\x7f",
    *"\t\n\v\f\r \x85\xa0\u1680\u2003\u200b\u200d\u2028\u202f\u3000\ufeff\ufffd",
    *["'s", "'S", "'ll", "'LL", "'ve", "'ſ", "n't", " the", " The", "HTTPServer", "camelCase", "12345", "3.14", "\r\n"],
    *[
        "\n\n",
        "  ",
        "    ",
        " \n",
        "\n ",
        "\t\t",
        "e\u0301",
        "\u0301",
        "\u1100\u1161\u11a8",
        "Å",
        "ﬁ",
        "漢字、",
        "ました。",
        "😀",
    ],
    *[
        "👩\u200d👩\u200d👧",
        "🇩🇪",
        "\U0001d518",
        "//",
        "/\n",
        "://",
        "a/b",
        "--",
        "...",
        "!!!\n",
        "#include <x>",
        "▁",
        " ▁",
    ],
    *[
        "e" * 40,
        "=" * 70,
        " " * 90,
        "\n" * 20,
        "0" * 17,
        "AbC" * 9,
        "ا" * 30,
        "中" * 25,
        "<unk>",
        "<s>",
        "</s>",
        "<0x0A>",
    ],
]


def texts(names: Sequence[str], rows: int = 400) -> list[bytes]:
    """Rows of fragments in a fixed disorder, with the names of special tokens among them."""
    disorder = random.Random(20)
    fragments = FRAGMENTS + list(names)[:40]
    made = ["".join(disorder.choices(fragments, k=disorder.randint(1, 24))) for _ in range(rows)]
    return [text.encode() for text in ["", *fragments, *made]]


def agree(backend: Backend, reference: Callable[[str], list[int]], names: Sequence[str]) -> bool:
    """Whether the backend gives the reference's ids for all of the hard text."""
    rows = texts(names)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    ids, bounds = backend.rows(np.frombuffer(b"".join(rows), np.uint8), offsets, 0)
    return all(
        ids[begin : end - 1].tolist() == list(reference(row.decode()))
        for row, begin, end in zip(rows, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    )


def trusted(make: Callable[[], Backend], reference: Callable[[str], list[int]], names: Sequence[str]) -> bool:
    """Whether a backend can be made and agrees with the reference."""
    try:
        return agree(make(), reference, names)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - gigatoken refuses what it does not know with errors of many types
        return False
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return False
