"""Convert to another format without tokenizing again: a dataset of ours, or token files of other tools."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardmill import arguments
from shardmill.arrange.arranging import ArrangedDocuments, open_outputs_for
from shardmill.arrange.inputs import open_input
from shardmill.dataset import CACHE_SIZE, open_place
from shardmill.errors import UsageError
from shardmill.options import Options
from shardmill.run import settle_allocator
from shardmill.shards import FORMATS
from shardmill.write import Progress, Result, Run, open_destination, progress_of


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str | Sequence[str] = FORMATS[:1],
    eot: str | None = None,
    shard_tokens: int | str = "100M",
    tail: str = "keep",
    name: str | None = None,
    tokenizer: str = "gpt2",
    delimiter: str | None = None,
    source_eot: str | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
    progress: Progress | bool | None = None,
) -> Result:
    """Write the tokens at `source` to `out`, each a folder or URL, in other formats.

    `source` is a dataset, or token files made by another tool; `cache` and `cache_size` are those of `open`. For files
    of other tools, and only for them, `tokenizer` names the tokenizer that made them, `delimiter` the token between
    documents, and `source_eot` its position (`after`, `before`, `none`; detected by default). Raise a ShardmillError
    for any expected failure. The same call resumes an unfinished one.
    """
    options = Options.of(
        {"format": format, "eot": eot, "shard_tokens": shard_tokens, "tail": tail, "name": name, "overwrite": overwrite,
         "tokenizer": tokenizer, "delimiter": delimiter, "memory": memory}
    )  # fmt: skip
    shown = progress_of(progress)
    settle_allocator()
    if source_eot is not None and arguments.text("source_eot", source_eot) not in ("after", "before", "none"):
        raise UsageError(f"`{source_eot}` is no place for EOT", hint="choose one of: after, before, none")
    stored = open_input(open_place(source, cache, cache_size), options.tokenizer, source_eot, options.delimiter)
    destination = open_destination(arguments.path("out", out))
    outputs = open_outputs_for(options, stored, destination, "converted into")
    recorded = None if overwrite else destination.recorded_plan()
    chosen = {"source_eot": source_eot} if source_eot else {}
    documents = ArrangedDocuments([stored], outputs, options, recorded, chosen)
    return Run(documents, destination, outputs, shown, overwrite=overwrite).go()
