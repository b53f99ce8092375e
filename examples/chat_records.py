"""Tokenize conversations, with a template of your own.    python examples/chat_records.py OUT FILE.jsonl…

Records with `messages` (role, content), `conversations` (from, value), or alpaca's instruction, input and output.
"""

# ruff: noqa: T201
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shardmill

TEMPLATE = "<|im_start|>{role}\n{content}<|im_end|>\n"  # ChatML; use the one that your model was trained with


def turns(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the role and the content of each turn."""
    if "instruction" in record:
        yield "user", "\n\n".join(filter(None, [record["instruction"], record.get("input")]))
        yield "assistant", record["output"]
    for turn in record.get("messages") or record.get("conversations") or ():
        yield turn.get("role") or turn["from"], turn.get("content") or turn.get("value") or ""


def documents(*files: str) -> Iterator[str]:
    """Yield a text for each record. For many gigabytes, let it yield Arrow batches: see filter_documents.py."""
    for file in files:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                yield "".join(TEMPLATE.format(role=role, content=content) for role, content in turns(json.loads(line)))


def prepare(out: str, *files: str, **options: Any) -> shardmill.Result:
    # The version identifies the files and the template: with another one, an unfinished run is not continued.
    version = repr((TEMPLATE, [(file, Path(file).stat().st_mtime_ns) for file in files]))
    source = shardmill.Source(lambda: documents(*files), name="chat", version=version)
    # `parse`: the marks of the template become the tokens of that name, if the tokenizer has them.
    return shardmill.prepare(source, out, **{"specials": "parse", **options})


if __name__ == "__main__":
    print(f"{prepare(*sys.argv[1:]).manifest['documents']:,} conversations")
