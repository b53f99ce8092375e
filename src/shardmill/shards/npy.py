"""build-nanogpt's `.npy` shards: NumPy files of version 1.0 with a header of 128 bytes, EOT before each document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardmill.errors import DamageError
from shardmill.output_formats import SPLITS
from shardmill.shards.format import Format, Recognised, recognised, short_tails
from shardmill.shards.token_files import TokenFile
from shardmill.storage import AnyPath

_MAGIC = b"\x93NUMPY"
_ARRAY = re.compile(
    rb"\{'descr': '(<[ui][24])', 'fortran_order': (?:False|True), 'shape': \((\d{1,18}),\), *\}\s*", re.ASCII
)


class Npy(Format):
    name, eot = "npy", "before"
    stem, endings, train_from = "{name}_{split}_{index:06}", (".npy",), 1

    def header(self, tokens: int, dtype: np.dtype[Any]) -> bytes:
        shape = f"{{'descr': '<u{dtype.itemsize}', 'fortran_order': False, 'shape': ({tokens},), }}"
        return _MAGIC + b"\x01\x00\x76\x00" + shape.ljust(117).encode() + b"\n"

    def recognise(self, path: AnyPath, raw: np.dtype[Any]) -> Recognised | None:
        if path.suffix != ".npy":
            return None
        with path.open("rb") as file:
            start = file.read(12)
            if start[:6] != _MAGIC:
                return None
            # Version 1 has two bytes for the length of what describes the array, version 2 has four.
            wide = 4 if start[6:8] == b"\x02\x00" else 2
            length = int.from_bytes(start[8 : 8 + wide], "little")
            file.seek(8 + wide)
            array = _ARRAY.fullmatch(file.read(min(length, 1 << 16)))
        if start[6:8] not in (b"\x01\x00", b"\x02\x00") or array is None:
            raise DamageError("the file is not an array of tokens as NumPy writes it", place=str(path))
        return recognised(np.dtype(array[1].decode()), TokenFile(path, int(array[2]), 8 + wide + length))

    def early_warnings(self, *, alone: bool) -> list[str]:
        crowded = (
            "build-nanogpt takes every file with `train` or `val` in its name, those of the other formats too: give "
            "npy a folder of its own"
        )
        olmo = "OLMo-core reads `.npy` files without a head: use `-f olmo` for it"
        return [olmo] if alone else [crowded, olmo]

    def warnings(self, splits: Mapping[str, Any], dtype: np.dtype[Any], eot: str) -> list[str]:
        warnings = short_tails(splits, "build-nanogpt's loader")
        for split, described in splits.items():
            for file in described["files"][:1]:
                warnings += [
                    f"build-nanogpt will take {file['name']} for {other}, since that word is in its name: see `--name`"
                    for other in SPLITS
                    if other != split and other in file["name"]
                ]
        return warnings


FORMAT = Npy()
