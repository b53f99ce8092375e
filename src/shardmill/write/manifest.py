"""`manifest.json`: what a dataset is, with checksums. It comes last; a folder without one is not a dataset.

Its last entry, `sha256`, is the hash of all bytes of the file before that line.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill.arguments import path
from shardmill.errors import DamageError, UsageError
from shardmill.storage import BLOCK_ROWS, BlockSequence, ObjectStore, scheme_of

if TYPE_CHECKING:
    from shardmill.shards import Output
    from shardmill.storage import Written

NAME = "manifest.json"
REJECTS = "rejects.jsonl"
"""Beside it: every record that is not a document, with its place and the reason."""
TABLE = "documents_table"
"""The entry of a split of the first format for its documents table."""
_BEGIN, _END = b' "sources": [\n', b" ]"
_CHECKSUM = "sha256"
_UNCHECKED = frozenset(
    "shardmill fingerprint format dtype eot tokenizer splits sources documents empty rejected replaced rejects options "
    "also converted part made output".split()
)
"""The entries of manifests from before there was a checksum. Any other in a manifest without one is a damaged key."""


class SourceLines(BlockSequence[dict[str, Any]]):
    """What a manifest says of each source, held as compressed text, 20 bytes a source, and parsed when asked for.

    `list(...)` makes an ordinary list of it.
    """

    def __init__(self, lines: Iterable[bytes] = ()) -> None:
        """Each line holds one source, as `json_line` gives it."""
        self._blocks: list[bytes] = []
        self._count = 0
        lines = iter(lines)
        while block := list(islice(lines, BLOCK_ROWS)):
            self._blocks.append(zlib.compress(b"".join(block), 1))
            self._count += len(block)

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return NotImplemented
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} sources>"

    def blocks(self) -> Iterator[bytes]:
        """The lines, many at a time."""
        return map(zlib.decompress, self._blocks)

    def block(self, number: int) -> list[dict[str, Any]]:
        lines = zlib.decompress(self._blocks[number]).rstrip(b"\n").replace(b"\n", b",")
        try:
            parsed: list[dict[str, Any]] = json.loads(b"[" + lines + b"]")
        except ValueError as error:
            raise DamageError(
                f"{NAME} cannot be read: {error}", place=f"its sources after {number * BLOCK_ROWS:,}"
            ) from None
        return parsed


def read_manifest(folder: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """The manifest in a folder; UsageError when there is none, DamageError when it is damaged.

    `problems`: as for `parse_manifest`.
    """
    file = folder / NAME
    try:
        with open(file, "rb") as lines:
            return parse_manifest(lines, str(file), problems)
    except (FileNotFoundError, NotADirectoryError):
        unfinished = (folder / ".shardmill").is_dir()
        raise UsageError(
            f"`{folder}` is not a dataset: it has no {NAME}" if folder.is_dir() else f"there is no folder `{folder}`",
            hint="its run has not finished: run the same `shardmill prepare` again"
            if unfinished
            else "make one with `shardmill prepare SOURCE -o DIR`",
        ) from None
    except OSError as error:
        raise UsageError(f"{NAME} cannot be read: {error.strerror}", place=str(file)) from error


def parse_manifest(data: bytes | Iterable[bytes], place: str, problems: list[str] | None = None) -> dict[str, Any]:
    """Parse a manifest; DamageError when it is damaged. Its sources are parsed only when asked for.

    With `problems`, a wrong checksum is added there instead, so that the caller can find out what else is wrong.
    """
    digest, end = hashlib.sha256(), [b"", b""]
    lines = _hashed(io.BytesIO(data) if isinstance(data, bytes) else data, digest, end)
    others: list[bytes] = []
    sources: SourceLines | None = None
    for line in lines:
        others.append(line)
        if line == _BEGIN:
            sources = SourceLines(_until_end(lines, others))
    try:
        manifest = json.loads(b"".join(others))
    except ValueError as error:
        raise DamageError(f"{NAME} cannot be read: {error}", place=place) from None
    if not isinstance(manifest, dict) or "fingerprint" not in manifest or "splits" not in manifest:
        raise DamageError(f"{NAME} is not one of shardmill's", place=place)
    if sources is not None:
        manifest["sources"] = sources
    if b"".join(end) != _last_lines(digest) and manifest.keys() - _UNCHECKED:
        problem = "it does not match its own checksum: it was damaged or edited"
        if problems is None:
            hint = "bring the file back, or make the dataset again"
            raise DamageError(f"{NAME} is damaged: {problem}", place=place, hint=hint)
        problems.append(f"{NAME}: {problem}")
    manifest.pop(_CHECKSUM, None)
    return manifest


def _hashed(lines: Iterable[bytes], digest: Any, end: list[bytes]) -> Iterator[bytes]:
    """Yield the lines; hash all but the last two, which are left in `end`."""
    for line in lines:
        digest.update(end[0])
        end[:] = end[1], line
        yield line


def _last_lines(digest: Any) -> bytes:
    return f' "{_CHECKSUM}": "{digest.hexdigest()}"\n}}\n'.encode()


def _until_end(lines: Iterator[bytes], others: list[bytes]) -> Iterator[bytes]:
    """The sources, a line each; the line that ends them goes to the others."""
    for line in lines:
        if line.startswith(_END):
            others.append(line)
            return
        yield line.strip().removesuffix(b",") + b"\n"


def each_output(manifest: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """What a manifest says of each format."""
    return manifest, *manifest.get("also", ())


def tables_in(split: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents table of a split, as the manifest describes it, if it has one."""
    return [split[TABLE]] if TABLE in split else []


def describe_outputs(
    outputs: Sequence[Output], files: list[tuple[int, str, Written]], counts: list[dict[str, dict[str, int]]]
) -> list[dict[str, Any]]:
    """What the manifest says of each output: `counts` of each of its splits, and the files."""
    described = []
    for i, output in enumerate(outputs):
        splits: dict[str, dict[str, Any]] = {}
        for name, count in counts[i].items():
            splits[name] = dict(count)
            if dropped := output.dropped.get(name):
                splits[name] |= {"tokens": count["tokens"] - dropped, "dropped": dropped}
            splits[name]["files"] = [written.entry() for j, split, written in files if (j, split) == (i, name)]
        described.append({"format": output.format, "dtype": str(output.dtype), "eot": output.eot, "splits": splits})
    return described


def tables_of(files: list[tuple[int, str, Written]]) -> dict[str, dict[str, Any]]:
    """What the manifest says of the documents table of each split."""
    return {
        split: {"name": written.name, "bytes": written.bytes, "sha256": written.sha256}
        for _, split, written in files
        if written.role == "documents"
    }


def dataset_files(folder: str | os.PathLike[str]) -> Iterator[str]:
    """The names, relative to a folder or URL, of the files of the dataset there, also of an unfinished one."""
    manifest: dict[str, Any] = {"splits": {}}
    entries: Iterable[dict[str, Any]] = ()
    # What cannot be read is unfinished, or not ours; a folder that may not be read has no journal either.
    with suppress(UsageError, DamageError, OSError, ValueError):
        if scheme_of(url := os.fspath(folder)):
            store = ObjectStore(url)
            if not store.list_folders([".shardmill"]):
                return
            entries = [json.loads(found)] if (found := store.read(".shardmill/journal.json")) else ()
            manifest = parse_manifest(found, url, []) if (found := store.read(NAME)) else manifest
        else:
            entries = journal_entries(Path(folder))
            manifest = read_manifest(Path(folder), [])
    yield from (NAME, REJECTS)
    for described in each_output(manifest):
        for split in described.get("splits", {}).values():
            yield from (file["name"] for file in (*split.get("files", ()), *tables_in(split)))
    with suppress(OSError):
        for entry in entries:
            yield from (file["name"] for _, _, file in entry["files"])


def journal_entries(folder: Path) -> Iterator[dict[str, Any]]:
    """What the journal of a run in a folder says, line by line; nothing when there is none."""
    try:
        journal = open(folder / ".shardmill" / "journal.jsonl", "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    with journal:
        for line in journal:
            try:
                yield json.loads(line)
            except ValueError:  # the last one, torn by a crash
                return


def dataset_folder(named: str | os.PathLike[str]) -> Path:
    """The folder of a dataset; UsageError for the URL of one, which has to be copied first."""
    named = path("folder", named)
    if "://" in named:
        raise UsageError(
            f"`{named}` is not a folder, and this works on folders only",
            hint="copy the dataset down first, with `aws s3 cp --recursive` for example",
        )
    return Path(named)


def manifest_json(manifest: dict[str, Any]) -> Iterator[bytes]:
    """The file's content in pieces, with its checksum at the end."""
    digest, last = hashlib.sha256(), b""
    for piece in _manifest_json(manifest):
        digest.update(last)
        yield last
        last = piece
    last = last.removesuffix(b"\n}\n") + b",\n"
    digest.update(last)
    yield last + _last_lines(digest)


def _manifest_json(manifest: dict[str, Any]) -> Iterator[bytes]:
    """The same without a checksum. Each source is a line, since there may be a million."""
    listed = manifest["sources"]
    lines = listed if isinstance(listed, SourceLines) else SourceLines(map(json_line, listed))
    whole = as_bytes(json.dumps({**manifest, "sources": []}, ensure_ascii=False, indent=1)) + b"\n"
    head, _, tail = whole.partition(b'\n "sources": []')
    if not len(lines):
        yield whole
        return
    yield head + b"\n" + _BEGIN
    between = b"  "
    for block in lines.blocks():
        yield between + block.rstrip(b"\n").replace(b"\n", b",\n  ")
        between = b",\n  "
    yield b"\n" + _END + tail


def json_line(value: dict[str, Any]) -> bytes:
    """A value as one line of JSON, as in the manifest and in `rejects.jsonl`."""
    return as_bytes(json.dumps(value, ensure_ascii=False)) + b"\n"


def as_bytes(written: str) -> bytes:
    """JSON in UTF-8. A byte of a file name that is not UTF-8 is `\\udcff` in Python, and is written so in JSON."""
    return written.encode("utf-8", "backslashreplace")
