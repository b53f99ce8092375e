"""The pages of reference, made from the code: commands, options, formats, the manifest and the Python interface."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import shardmill
from shardmill import cli, errors
from shardmill.options import FORMATS, Options
from shardmill.preparing import prepare
from shardmill.shards import format_named

MANIFEST_KEYS = {
    "shardmill": "the version that made the dataset",
    "fingerprint": "a hash of everything that can change the bytes: sources, tokenizer, options",
    "format": "the first `--format`",
    "dtype": "the type of a token: `uint16`, `uint32` or `int32`, little-endian",
    "eot": "position of the end-of-text token relative to its document: `after`, `before` or `none`",
    "tokenizer.name": "the name as given",
    "tokenizer.sha256": "a hash of its vocabulary and rules; `open` and `verify` compare it",
    "tokenizer.vocab_size": "every id is below this",
    "tokenizer.eot": "the id of the end-of-text token, or of `--delimiter`",
    "tokenizer.pattern": "how it splits text into pieces",
    "tokenizer.specials": "how special tokens in the text were read",
    "tokenizer.bos_eos": "only the end-of-text token is added",
    "splits": "`train` and `val`, if they exist",
    "splits.SPLIT.tokens": "tokens, end-of-text tokens included",
    "splits.SPLIT.documents": "documents",
    "splits.SPLIT.bytes": "bytes of their text in UTF-8",
    "splits.SPLIT.files[].name": "relative to the folder",
    "splits.SPLIT.files[].tokens": "tokens in this file",
    "splits.SPLIT.files[].bytes": "its size, header included",
    "splits.SPLIT.files[].sha256": "its checksum",
    "splits.SPLIT.files[].role": "the role of a file without tokens, such as `index`",
    "splits.SPLIT.documents_table.name": "the documents table, relative to the folder; of the first format only",
    "splits.SPLIT.documents_table.bytes": "its size",
    "splits.SPLIT.documents_table.sha256": "its checksum",
    "sources[].name": "the file or URL, in reading order; files on the hub include their commit",
    "sources[].bytes": "its size",
    "sources[].unit": "what a place in it counts: `line`, `row`, `document` or `byte`",
    "sources[].documents": "documents of this source that were written",
    "sources[].tokens": "tokens of this source, end-of-text tokens included",
    "sources[].empty": "documents of this source without any text",
    "sources[].rejected": "documents of this source in `rejects.jsonl`",
    "sources[].odd": "what looked wrong in its text, if anything did: `invalid` UTF-8, `control` characters, and "
    "special tokens as text, each with its number",
    "documents": "documents that were written, in all splits",
    "empty": "documents without any text; they are counted and not written",
    "rejected": "bad documents, each of them a line of `rejects.jsonl`",
    "replaced": "invalid UTF-8 sequences of plain text that became U+FFFD",
    "skipped.files": "files of the sources' folders that are not read",
    "skipped.folders": "folders in them that are not entered",
    "skipped.kinds": "both, counted by kind",
    "skipped.names": "the first hundred of them, with their kinds",
    "skipped.notes": "choices that were made, such as the split that is read",
    "skipped.warnings": "what looks wrong about the sources, such as the same name twice",
    "rejects.name": "the file of the bad documents",
    "rejects.bytes": "its size",
    "rejects.sha256": "its checksum",
    "options": "the options that can change the bytes, with normalised values",
    "sha256": "a hash of all bytes of the file before this line; `open` and `verify` check it",
    "also[]": "for several formats: `format`, `dtype`, `eot` and `splits` of all but the first",
}
"""What a manifest says. A test compares the keys with those of a manifest that has all of them."""


def reference_pages() -> Iterator[tuple[str, str]]:
    """The path and the Markdown of each."""
    for name, make in (("commands", commands), ("formats", formats), ("manifest", manifest), ("api", api)):
        yield f"docs/reference/{name}.md", make()


def options_table() -> str:
    """Every option of `prepare`, as docs/options.md shows it."""
    rows = [
        "| option | default | meaning |",
        "|---|---|---|",
        "| `-o, --out DIR` | | folder of the dataset, or a URL: s3://, gs://, az:// |",
    ]
    for option in dataclasses.fields(Options):
        meta, default = option.metadata, option.default
        kind = meta["metavar"] or ("" if meta["kind"] == "flag" else "WORD")
        flags = ", ".join(meta["flags"]) + (f" {kind}" if kind else "")
        value = ",".join(default) if isinstance(default, tuple) else default
        shown = "" if value is None or value is False or value == "" else f"`{value}`"
        choices = f": {', '.join(f'`{choice}`' for choice in meta['choices'])}" if meta["choices"] else ""
        rows.append(f"| `{flags}` | {shown} | {_cell(meta['help'])}{choices} |")
    rows.append(
        "| `--json`, `-q`, `-v` | | the summary as JSON on standard output; no progress and no summary; the names of "
        "files that are skipped |"
    )
    return "\n".join(rows)


def _option_row(flags: str, words: str) -> str:
    """An option and its help. Values to choose from are part of the help: they would make the first column wide."""
    flag, _, choices = flags.partition(" [")
    listed = f": {', '.join(f'`{choice}`' for choice in choices.rstrip(']').split('|'))}" if choices else ""
    return f"| `{_cell(flag)}{' WORD' if choices else ''}` | {_cell(words)}{listed} |"


def commands() -> str:
    """What `--help` says of each command."""
    lines = ["# Commands", "", f"`shardmill` {shardmill.__version__}. {_paragraphs(cli.shardmill.help or '')}"]
    with click.Context(cli.shardmill, info_name="shardmill") as context:
        for name in cli.shardmill.list_commands(context):
            command = cli.shardmill.get_command(context, name)
            if command is None or command.hidden:
                continue
            with click.Context(command, info_name=name, parent=context) as inner:
                usage = " ".join(["shardmill", name, *command.collect_usage_pieces(inner)])
                records = [parameter.get_help_record(inner) for parameter in command.get_params(inner)]
            lines += ["", f"## shardmill {name}", "", "```text", usage, "```", "", _paragraphs(command.help or "")]
            lines += ["", "| option | meaning |", "|---|---|"]
            lines += [_option_row(flags, words) for flags, words in filter(None, records) if words]
    return "\n".join(lines) + "\n"


def formats() -> str:
    """What each token format says of itself, and the files that it makes of a small text."""
    lines = [
        "# Token formats", "", "Each format, and the files that it makes from the same small text with",
        " `--shard-tokens 100 --name NAME --val 0.2`. [Output formats](../outputs.md) says how to choose.",
    ]  # fmt: skip
    with _small_text() as folder:
        for name in FORMATS:
            form = format_named(name)
            made = prepare(
                folder / "text.jsonl", folder / name, format=name, shard_tokens=100, name="NAME", val="0.2", workers=1
            )
            lines += [
                "", f"## {name}", "", inspect.cleandoc(_module(form).__doc__ or ""), "",
                f"- End-of-text token: {form.eot} each document",
                f"- Files of a split: {'one for every `--shard-tokens`' if form.sharded else 'one, of any size'}",
                f"- Documents are found by {'an index of its own' if form.indexed else 'end-of-text tokens'}",
                "", "| file | bytes | tokens |", "|---|---:|---:|",
            ]  # fmt: skip
            for split in made.manifest["splits"].values():
                listed = [f"| `{f['name']}` | {f['bytes']:,} | {f['tokens'] or ''} |" for f in split["files"]]
                lines += listed if len(listed) <= 4 else [*listed[:3], "| … | | |", listed[-1]]
    return "\n".join(lines) + "\n"


def manifest() -> str:
    """Every key, and the manifest of a small dataset."""
    rows = [f"| `{key}` | {_cell(meaning)} |" for key, meaning in MANIFEST_KEYS.items()]
    return "\n".join([
        "# The manifest", "",
        "`manifest.json` says what a dataset is. It is written last, so a folder that has one is complete. The same",
        "inputs, tokenizer and options give the same manifest, byte for byte.", "",
        "| key | meaning |", "|---|---|", *rows, "", "## An example", "",
        "The complete manifest of a dataset with two formats and one bad record:", "",
        "```json", example_manifest().rstrip(), "```",
    ]) + "\n"  # fmt: skip


def example_manifest() -> str:
    """The manifest of a run that has every key."""
    with _small_text() as folder:
        prepare("text.jsonl", "out", format=["megatron", "nanogpt"], val="0.2", max_bad="any", workers=1)
        return (folder / "out" / "manifest.json").read_text(encoding="utf-8")


def manifest_keys(value: Any, above: str = "") -> Iterator[str]:
    """The keys of a manifest, as `MANIFEST_KEYS` calls them."""
    if above in MANIFEST_KEYS and above != "splits":
        yield above
    elif isinstance(value, list):
        for one in value:
            yield from manifest_keys(one, f"{above}[]")
    elif isinstance(value, dict):
        if above == "splits":
            yield above
        for key, one in value.items():
            name = "SPLIT" if above == "splits" else key
            yield from manifest_keys(one, f"{above}.{name}" if above else name)
    else:
        yield above


def api() -> str:
    """Signatures and docstrings of what `import shardmill` gives."""
    lines = ["# Python interface", "", "```python", "import shardmill", "```"]
    names = sorted({*shardmill.__all__, "open", "inspect"} - {"__version__", "ShardmillError"}, key=str.lower)
    for name in names:
        lines += _described(f"shardmill.{name}", getattr(shardmill, name))
    lines += ["", "## Parts of a dataset", "", "What you get from the dataset that `shardmill.open(…)` returns."]
    for owner, name in (("dataset", "Split"), ("dataset", "Documents"), ("loader", "Batches")):
        found = getattr(importlib.import_module(f"shardmill.dataset.{owner}"), name)
        lines += _described(name, found, level=3)
    tree = inspect.cleandoc(errors.__doc__ or "")
    first, drawn, last = tree.split("\n\n", 2)
    lines += ["", "## Errors", "", first, "", "```text", drawn, "```", "", last]
    for name, error in vars(errors).items():
        if inspect.isclass(error) and error.__module__ == errors.__name__:
            lines += ["", f"**`shardmill.errors.{name}`**: {inspect.cleandoc(error.__doc__ or '')}"]
    return "\n".join(lines) + "\n"


def _described(name: str, found: Any, level: int = 2) -> Iterator[str]:
    """A function or a class, with the members that have a docstring."""
    shown = name.removeprefix("shardmill.")
    yield from (
        "",
        f"{'#' * level} {shown}",
        "",
        "```python",
        f"{name}{'' if dataclasses.is_dataclass(found) else _signature(found)}",
        "```",
        "",
    )
    yield inspect.cleandoc(found.__doc__ or "")
    if not inspect.isclass(found):
        return
    for member, value in vars(found).items():
        if member.startswith("_"):
            continue
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if inspect.isfunction(value) and value.__doc__:
            yield from ("", f"- **`.{member}{_one_line(_signature(value))}`**: {_one_line(value.__doc__)}")
        elif value.__doc__ and (isinstance(value, property) or hasattr(value, "func")):  # func: a cached property
            yield from ("", f"- **`.{member}`**: {_one_line(value.__doc__)}")
    if dataclasses.is_dataclass(found):
        told = _field_docs(found)
        yield from ("", "| field | meaning |", "|---|---|")
        yield from (f"| `{field.name}: {_cell(str(field.type))}` | {_cell(told.get(field.name, ''))} |"
                    for field in dataclasses.fields(found) if not field.name.startswith("_"))  # fmt: skip


class _Raw:
    """An annotation that shows itself as it was written."""

    def __init__(self, text: object) -> None:
        text = text.__name__ if inspect.isclass(text) else text
        self.text = re.sub(r"\b(?:shardmill|os|np|collections)(?:\.[a-z_]+)*\.(?=[A-Z])", "", str(text))

    def __repr__(self) -> str:
        return self.text


def _signature(found: Any) -> str:
    """With one parameter a line where it is long."""
    known = inspect.signature(found)
    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(annotation=empty if parameter.annotation is empty else _Raw(parameter.annotation))
        for parameter in known.parameters.values()
        if parameter.name != "self"
    ]
    result = empty if known.return_annotation is empty or inspect.isclass(found) else _Raw(known.return_annotation)
    text = str(known.replace(parameters=parameters, return_annotation=result))
    if len(text) < 80:
        return text
    parts = re.split(r", (?=\*|\w+: |\w+=)", text[1 : text.rindex(")")])
    return "(\n" + "".join(f"    {part},\n" for part in parts) + text[text.rindex(")") :]


def _field_docs(found: type) -> dict[str, str]:
    """The string below a field of a dataclass, which Python itself forgets."""
    source = inspect.getsource(found)
    told = re.compile(r'^    (\w+):[^\n]*\n    """(.*?)"""', re.MULTILINE | re.DOTALL)
    return {name: _one_line(text) for name, text in told.findall(source)}


def _module(form: object) -> ModuleType:
    return importlib.import_module(type(form).__module__)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _paragraphs(text: str) -> str:
    """A docstring as click keeps it: a block after \\b stays as it is."""
    blocks = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        "```text\n" + inspect.cleandoc(block.strip("\b\n")) + "\n```" if "\b" in block else _one_line(block)
        for block in blocks
    )


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


@contextlib.contextmanager
def _small_text() -> Iterator[Path]:
    """A folder with a small source, in which a run may leave what it makes; it is the current one."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = [f"Document {i} of a small text: " + "one word after the other. " * (i % 5) for i in range(30)]
        texts[0] += "</s>"  # the manifest says that it holds a special token
        lines = [json.dumps({"text": text}) for text in texts]
        (folder / "text.jsonl").write_text("\n".join([*lines, '{"title": "without text"}']) + "\n")
        os.utime(folder / "text.jsonl", (0, 0))  # a source's time is part of the fingerprint
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
