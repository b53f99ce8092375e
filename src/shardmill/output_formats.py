"""The table of output formats. To add one is a file in shards/ that ends with `FORMAT = …`, and a line here."""

from __future__ import annotations

OUTPUT_FORMATS = {
    "nanogpt": "nanogpt",
    "shards": "raw_shards",
    "npy": "npy",
    "llmc": "llmc",
    "megatron": "megatron",
    "datatrove": "datatrove",
    "mds": "mds",
    "litdata": "litdata",
    "olmo": "olmo",
    "torchtitan": "torchtitan",
    "automodel": "automodel",
    "parquet": "parquet",
}
"""The module of each in `shards`, which is imported when the format is first used: `--help` must answer at once."""

FORMATS = tuple(OUTPUT_FORMATS)
"""Their names; the first is the default."""

SPLITS = ("train", "val")
