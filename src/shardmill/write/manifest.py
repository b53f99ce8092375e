"""`manifest.json`: what a dataset is, with checksums. It comes last; a folder without one is not a dataset.

The classes here are its entries, for the type checker and for the check of a file that may come from an untrusted
place. Its last entry, `sha256`, is the hash of all bytes of the file before that line.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path, PurePath
from types import UnionType
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

from shardmill.errors import DamageError, UsageError
from shardmill.output_formats import FORMATS, SPLITS
from shardmill.shards import format_named
from shardmill.storage import BLOCK_ROWS, AnyPath, BlockSequence, ObjectStore, scheme_of

if TYPE_CHECKING:
    from shardmill.shards import ShardWriter
    from shardmill.storage import Written

NAME = "manifest.json"
REJECTS = "rejects.jsonl"
"""Beside it: every record that is not a document, with its place and the reason."""
UNITS = ("byte", "line", "row", "document", "token")
"""What a place in a source may count."""
_WIDTHS = {"uint16": 2, "uint32": 4, "int32": 4}
_VALUES = {"format": FORMATS, "dtype": tuple(_WIDTHS), "eot": ("after", "before", "none")}
_BEGIN, _END = b' "sources": [\n', b" ]"
_CHECKSUM = "sha256"
_UNCHECKED = frozenset(
    "shardmill fingerprint format dtype eot tokenizer splits sources documents empty rejected replaced rejects options "
    "also converted part made output".split()
)
"""The entries of manifests from before there was a checksum. Any other in a manifest without one is a damaged key."""


class OtherFile(TypedDict):
    """A file without tokens: a documents table, or `rejects.jsonl`."""

    name: str
    """From the dataset's folder on."""
    bytes: int
    sha256: str


class FileEntry(OtherFile):
    """A file of a split."""

    tokens: int
    role: NotRequired[str]
    """`index` or `metadata` if it does not hold tokens."""
    documents: NotRequired[int]


class SplitEntry(TypedDict):
    tokens: int
    documents: int
    bytes: int
    """Of text."""
    files: list[FileEntry]
    dropped: NotRequired[int]
    """Tokens that `--tail drop` left out."""
    documents_table: NotRequired[OtherFile]


class OutputEntry(TypedDict):
    """One format."""

    format: str
    dtype: str
    eot: str
    splits: dict[str, SplitEntry]


class SourceEntry(TypedDict):
    name: str
    bytes: int | None
    unit: NotRequired[str]
    documents: int
    empty: int
    rejected: int
    tokens: NotRequired[int]
    odd: NotRequired[dict[str, int]]


class Manifest(OutputEntry):
    """The whole: the first format, and all that is said once."""

    shardmill: NotRequired[str]
    """The release that made it."""
    fingerprint: str
    tokenizer: dict[str, Any]
    sources: SourceLines
    documents: int
    empty: int
    rejected: int
    replaced: NotRequired[int]
    rejects: NotRequired[OtherFile]
    skipped: NotRequired[dict[str, Any]]
    """What was found beside the sources."""
    options: dict[str, Any]
    also: NotRequired[list[OutputEntry]]
    """The other formats."""
    converted: NotRequired[dict[str, Any]]
    """What it was made of, if not of text."""
    arranged: NotRequired[dict[str, Any]]
    part: NotRequired[dict[str, Any]]
    """What the merge has to know of a part."""
    made: NotRequired[str]
    """Where the files of a part are."""


class _Tokenizer(TypedDict):
    """What is needed to find the tokenizer again."""

    name: str
    sha256: str
    vocab_size: int
    eot: int | None


class _Options(TypedDict, total=False):
    """The options that are used when a dataset is read."""

    tokenizer: str
    pattern: str | None
    specials: str
    delimiter: str | None
    separator: str | None
    name: str | None


class SourceLines(BlockSequence[SourceEntry]):
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

    def block(self, number: int) -> list[SourceEntry]:
        lines = zlib.decompress(self._blocks[number]).rstrip(b"\n").replace(b"\n", b",")
        try:
            parsed: list[SourceEntry] = json.loads(b"[" + lines + b"]")
        except ValueError as error:
            raise DamageError(
                f"{NAME} cannot be read: {error}", place=f"its sources after {number * BLOCK_ROWS:,}"
            ) from None
        return parsed


def read_manifest(folder: AnyPath, problems: list[str] | None = None) -> Manifest:
    """The manifest in a folder; UsageError when there is none, DamageError when it is damaged.

    `problems`: as for `parse_manifest`.
    """
    file = folder / NAME
    try:
        with file.open("rb") as lines:
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


def parse_manifest(data: bytes | Iterable[bytes], place: str, problems: list[str] | None = None) -> Manifest:
    """Parse and check a manifest; DamageError when it is damaged. Its sources are parsed only when asked for.

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
    if not isinstance(manifest, dict):
        raise DamageError(f"{NAME} is not one of shardmill's", place=place)
    if sources is None and isinstance(listed := manifest.get("sources"), list):  # none, or written by another hand
        sources = SourceLines(map(json_line, listed))
    if sources is not None:
        manifest["sources"] = sources
    if b"".join(end) != _last_lines(digest) and manifest.keys() - _UNCHECKED:
        problem = "it does not match its own checksum: it was damaged or edited"
        if problems is None:
            hint = "bring the file back, or make the dataset again"
            raise DamageError(f"{NAME} is damaged: {problem}", place=place, hint=hint)
        problems.append(f"{NAME}: {problem}")
    manifest.pop(_CHECKSUM, None)
    _check(manifest, place)
    return cast("Manifest", manifest)


def _check(manifest: dict[str, Any], place: str) -> None:
    """Raise DamageError when a manifest lacks something, or names files outside its folder."""
    wrong = _misfit(manifest, Manifest, "")
    wrong = wrong or _misfit(manifest["tokenizer"], _Tokenizer, "tokenizer")
    wrong = wrong or _misfit(manifest["options"], _Options, "options")
    if wrong:
        raise DamageError(f"{NAME} is not one of shardmill's: {wrong}", place=place)
    files = [(manifest["rejects"], 0)] if "rejects" in manifest else []
    for described in each_output(cast("Manifest", manifest)):
        for key, known in _VALUES.items():
            if (found := cast("dict[str, Any]", described)[key]) not in known:
                raise DamageError(f"{NAME} has an unknown {key}: `{found}`", place=place)
        if others := set(described["splits"]).difference(SPLITS):
            raise DamageError(f"{NAME} has unknown splits: {', '.join(sorted(others))}", place=place)
        width = 0 if format_named(described["format"]).compressed else _WIDTHS[described["dtype"]]
        for split in described["splits"].values():
            files += [(file, file["tokens"] * width) for file in split["files"]]
            files += [(table, 0) for table in tables_in(split)]
    for file, token_bytes in files:
        path = PurePath(file["name"])
        if not path.parts or path.is_absolute() or path.drive or ".." in path.parts or "\0" in file["name"]:
            raise DamageError(f"{NAME} names a file outside the dataset's folder: `{file['name']}`", place=place)
        if token_bytes > file["bytes"]:
            raise DamageError(f"{NAME} says that `{file['name']}` has more tokens than bytes", place=place)


def check_source(source: Any, number: int) -> None:
    """Raise DamageError when the manifest does not describe a source as shardmill does."""
    wrong = _misfit(source, SourceEntry, f"sources[{number}]")
    if not wrong and source.get("unit", UNITS[0]) not in UNITS:
        wrong = f"`sources[{number}].unit` is {source['unit']!r}"
    if wrong:
        raise DamageError(f"{NAME}: a source is not described as shardmill does it: {wrong}")


def _misfit(value: Any, kind: Any, where: str) -> str | None:
    """A sentence about how a value differs from the type of an entry: in its keys, elements, or own type."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind) or origin is dict:
        if not isinstance(value, dict):
            return f"`{where}` is not an object"
        known, required = _keys(kind) if is_typeddict(kind) else (dict.fromkeys(value, inner[1]), ())
        if missing := [key for key in required if key not in value]:
            return f"`{where or NAME}` has no `{missing[0]}`"
        parts = [(f"{where}.{key}".lstrip("."), value[key], known[key]) for key in known if key in value]
    elif origin is list:
        if not isinstance(value, list):
            return f"`{where}` is not a list"
        parts = [(f"{where}[{i}]", one, inner[0]) for i, one in enumerate(value)]
    elif kind is Any:
        return None
    else:
        types = inner if isinstance(kind, UnionType) else (kind,)
        right = isinstance(value, types) and not isinstance(value, bool) and (not isinstance(value, int) or value >= 0)
        return None if right else f"`{where}` is {value!r}"
    return next(filter(None, (_misfit(one, part, name) for name, one, part in parts)), None)


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


@cache
def _keys(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keys of an entry with their types, and those that it must have."""
    hints = get_type_hints(kind, include_extras=True)
    optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired or not kind.__total__}
    known = {key: get_args(hint)[0] if get_origin(hint) is NotRequired else hint for key, hint in hints.items()}
    return known, tuple(key for key in hints if key not in optional)


def each_output(manifest: Manifest) -> tuple[OutputEntry, ...]:
    """What a manifest says of each format."""
    return manifest, *manifest.get("also", ())


def tables_in(split: SplitEntry) -> list[OtherFile]:
    """The documents table of a split, as the manifest describes it, if it has one."""
    return [split["documents_table"]] if "documents_table" in split else []


def describe_outputs(
    outputs: Sequence[ShardWriter], files: list[tuple[int, str, Written]], counts: list[dict[str, dict[str, int]]]
) -> list[OutputEntry]:
    """What the manifest says of each output: `counts` of each of its splits, the files, and the documents tables."""
    described: list[OutputEntry] = []
    for i, output in enumerate(outputs):
        splits: dict[str, SplitEntry] = {}
        for name, count in counts[i].items():
            dropped = output.dropped.get(name, 0)
            splits[name] = {
                "tokens": count["tokens"] - dropped,
                "documents": count["documents"],
                "bytes": count["bytes"],
                **({"dropped": dropped} if dropped else {}),  # type: ignore[typeddict-item]
                "files": [cast("FileEntry", written.entry()) for j, split, written in files if (j, split) == (i, name)],
            }
        described.append({"format": output.format, "dtype": str(output.dtype), "eot": output.eot, "splits": splits})
    for _, name, written in files:
        if written.role == "documents":
            table: OtherFile = {"name": written.name, "bytes": written.bytes, "sha256": written.sha256}
            described[0]["splits"][name]["documents_table"] = table
    return described


def dataset_files(folder: str | os.PathLike[str]) -> Iterator[str]:
    """The names, relative to a folder or URL, of the files of the dataset there, also of an unfinished one."""
    manifest: Manifest | None = None
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
    for described in each_output(manifest) if manifest else ():
        for split in described["splits"].values():
            yield from (file["name"] for file in (*split["files"], *tables_in(split)))
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


def manifest_json(manifest: Manifest) -> Iterator[bytes]:
    """The file's content in pieces, with its checksum at the end."""
    digest, last = hashlib.sha256(), b""
    for piece in _manifest_json(manifest):
        digest.update(last)
        yield last
        last = piece
    last = last.removesuffix(b"\n}\n") + b",\n"
    digest.update(last)
    yield last + _last_lines(digest)


def _manifest_json(manifest: Manifest) -> Iterator[bytes]:
    """The same without a checksum. Each source is a line, since there may be a million."""
    lines = manifest["sources"]
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


def json_line(value: Any) -> bytes:
    """A value as one line of JSON, as in the manifest and in `rejects.jsonl`."""
    return as_bytes(json.dumps(value, ensure_ascii=False)) + b"\n"


def as_bytes(written: str) -> bytes:
    """JSON in UTF-8. A byte of a file name that is not UTF-8 is `\\udcff` in Python, and is written so in JSON."""
    return written.encode("utf-8", "backslashreplace")
