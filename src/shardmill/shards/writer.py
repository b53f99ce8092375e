"""Tokens and document lengths → files: one writer for all formats. A format says what its files look like."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.errors import OutputError
from shardmill.output_formats import SPLITS
from shardmill.shards.borders import take
from shardmill.shards.documents_table import TABLES
from shardmill.shards.format import Format, OutputSettings, ShardLayout, format_named
from shardmill.storage import PARTIAL, PartialFile, Written, sync_folder, writing_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATASET_FOLDERS = ("", *SPLITS, TABLES)
"""The folders in which a dataset has files."""
_MAX_OPEN = 8  # full shards; more of them are closed until they get their names
_BLOCK_DOCUMENTS = 1 << 16
_BLOCK_BYTES = 1 << 22
_NO_ENDS = np.empty(0, np.int64)


@dataclass
class Shard:
    """A shard that is being written: a file of tokens, and for an indexed format a file about its documents."""

    kind: Format
    settings: OutputSettings
    split: str
    stem: str
    """The names of its files without their endings."""
    layout: ShardLayout
    files: list[PartialFile]
    token_count: int = 0
    document_count: int = 0
    """Documents that have ended in it."""
    unfinished: int = 0
    """Tokens of the document that has not ended yet."""

    @property
    def tokens(self) -> PartialFile:
        return self.files[0]

    @property
    def lengths(self) -> PartialFile:
        return self.files[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    def append(self, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Append tokens, and to the second file what the format stores of the documents that end in them.

        OutputError for a document that is too long for the format.
        """
        if self.kind.indexed:
            lengths = np.diff(ends, prepend=-self.unfinished, append=len(tokens))  # the last has not ended
            self._check(int(lengths.max()))
            if len(ends):
                stored = ends + self.token_count if self.kind.cumulative else lengths[:-1]
                self.lengths.append(stored.astype(self.kind.length_dtype))
            self.document_count += len(ends)
            self.unfinished = int(lengths[-1])
        self.tokens.append(tokens)
        self.token_count += len(tokens)

    def _check(self, longest: int) -> None:
        if longest > self.layout.longest:
            raise OutputError(
                f"a document of {longest:,} tokens or more does not fit in a file of {self.kind.name}, which takes "
                f"{self.layout.longest:,}",
                place=self.tokens.name,
                hint="choose another format, or cut the text into documents with `--separator`",
            )

    def length_blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the second file: the lengths of documents, or where they end."""
        dtype = self.kind.length_dtype
        for first in range(0, self.document_count, _BLOCK_DOCUMENTS):
            count = min(_BLOCK_DOCUMENTS, self.document_count - first)
            data = self.lengths.read(dtype.itemsize * first, dtype.itemsize * count)
            yield np.frombuffer(data, dtype).astype(np.int64)

    def token_blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the first file."""
        for start in range(0, self.tokens.length, _BLOCK_BYTES):
            yield self.tokens.read(start, min(_BLOCK_BYTES, self.tokens.length - start))

    def write(self, ending: str, blocks: Iterable[bytes | NDArray[Any]], role: str = "") -> Written:
        """Write another file of the shard from its blocks. `role`: what it is, if it does not hold the tokens."""
        with closing(_create(self.settings.folder, self.stem + ending)) as file:
            for block in blocks:
                file.append(block)
            if role:
                return file.finish(0, role=role)
            return replace(file.finish(self.token_count), documents=self.document_count)


@dataclass
class _Split:
    """How far a split has come."""

    index: int = 0
    """The number of its open shard."""
    shard: Shard | None = None
    dropped: int = 0
    closed: bool = False
    """Nothing will be appended."""


class ShardWriter:
    """Writes the shards of all splits in one format.

    One thread appends and asks for positions. Another runs the functions that `prepare_sync` returns, at the same time.
    Lengths of documents go to disk as documents end, so no memory grows with their number. With `tail="drop"` a last
    shard that is shorter than the others is left out; a split's only shard stays.
    """

    def __init__(self, kind: Format, settings: OutputSettings) -> None:
        self._kind, self._settings, self.layout = kind, settings, kind.layout(settings)
        self.format, self.eot, self.dtype = kind.name, settings.eot or kind.eot, self.layout.dtype
        self.memory_bytes = kind.memory_bytes
        self.shared = False
        """Other processes write files of the same splits, so files with its names are not foreign, and what belongs to
        a whole split is not written: an index, or an empty file if the split has no tokens."""
        # Right for every shard but the last, so that the hash need not be computed twice.
        self._header = kind.header(self.layout.limit.tokens or 1, self.dtype)
        self.drops_tail = settings.tail == "drop" and kind.sharded and self.layout.limit.cuts_documents
        self._row = settings.row if kind.holds_rows else 0
        self._splits = {split: _Split() for split in SPLITS}
        self._full: list[Shard] = []
        self._syncing: list[Shard] = []
        self._growing_at_sync: list[Shard] = []
        """Shards that the syncing thread may be reading, because they were growing when `prepare_sync` was called."""
        self._unneeded: list[Shard] = []
        """Shards that are not needed any more."""
        self._ended_splits: list[str] = []
        self._obsolete: list[PartialFile] = []
        """Closed, and not needed once the present position is recorded. Until then a crash would continue from them."""
        self._listed: list[Written] = []
        """The complete files that the split files of the format will describe."""

    @property
    def file_tokens(self) -> int:
        """Tokens after which a file ends; 0: there is one file per split."""
        return self.layout.limit.tokens

    @property
    def dropped(self) -> dict[str, int]:
        """Tokens at the end of each split that `tail="drop"` left out of the files."""
        return {name: split.dropped for name, split in self._splits.items() if split.dropped}

    @property
    def full(self) -> int:
        """How many files wait for their names."""
        return len(self._full)

    def append(self, split: str, tokens: NDArray[Any], ends: NDArray[np.int64] = _NO_ENDS) -> None:
        """Append tokens to a split. `ends`: where documents end, counted from the start of `tokens`.

        OutputError for a document that is too long for the format.
        """
        if tokens.dtype != self.dtype:
            tokens = tokens.astype(self.dtype)
        if not self._kind.indexed:
            ends = _NO_ENDS
        elif self._row:
            open_shard = self._splits[split].shard  # a shard has whole rows
            held = open_shard.token_count % self._row if open_shard else 0
            ends = np.arange(self._row - held, len(tokens) + 1, self._row)
        while len(tokens):
            shard = self._splits[split].shard or self._begin(split)
            taken = take(self.layout.limit, shard.token_count, shard.document_count, len(tokens), ends)
            shard.append(tokens[: taken.tokens], ends[: taken.documents])
            if taken.full:
                self._end(split)
            tokens, ends = tokens[taken.tokens :], ends[taken.documents :] - taken.tokens

    def end_document(self) -> None:
        """End the document that is open in any split. Rows end by themselves."""
        if self._row:
            return
        limit = self.layout.limit
        for name, split in self._splits.items():
            if split.shard and split.shard.unfinished:
                split.shard.append(np.empty(0, self.dtype), np.zeros(1, np.int64))
                size = split.shard.token_count + limit.per_document * split.shard.document_count
                if limit.tokens and size >= limit.tokens:
                    self._end(name)

    def finish(self, wanted: tuple[str, ...]) -> None:
        """End every open file. Each split in `wanted` gets a file even if it has no tokens. `prepare_sync` follows."""
        self.end_document()
        for name in wanted:
            split = self._splits[name]
            if split.closed:
                continue
            if not split.shard and not split.index and not self.shared:
                self._begin(name)
            if split.shard and split.index and self.drops_tail:
                split.dropped = split.shard.token_count
                self._unneeded.append(split.shard)
                split.shard = None
            elif split.shard:
                self._end(name)
            split.closed = True
            self._ended_splits.append(name)

    def position(self) -> dict[str, list[int]]:
        """For each split: the number of its open shard; the tokens, the ended documents and the tokens of the
        unfinished document in it; the tokens that were dropped; and whether the split is closed."""
        position = {}
        for name, split in self._splits.items():
            shard = split.shard
            counts = [shard.token_count, shard.document_count, shard.unfinished] if shard else [0, 0, 0]
            position[name] = [split.index, *counts, split.dropped, int(split.closed)]
        return position

    def restore(self, position: dict[str, list[int]], complete: Collection[Written]) -> None:
        """Continue from a recorded position: truncate files to it and delete later ones. All zeros: start.

        The files that are `complete` need not be in the folder.
        """
        for name, (index, tokens, documents, unfinished, dropped, closed) in position.items():
            self._splits[name] = _Split(index, None, dropped, bool(closed))
            if tokens:
                shard = self._open(name, len(self._header) + tokens * self.dtype.itemsize, documents)
                shard.token_count, shard.document_count, shard.unfinished = tokens, documents, unfinished
        self._listed = self._described(complete)
        growing = {file.name + PARTIAL for shard in self._growing() for file in shard.files}
        for name in set(self.matching_files()) - growing - {written.name for written in complete}:
            path = self._settings.folder / name  # it came after the position
            with writing_to(path):
                os.unlink(path)

    def prepare_sync(self) -> Callable[[], list[tuple[str, Written]]]:
        """Return a function that syncs what was written so far, and returns the completed files with their splits."""
        full, self._full = self._full, []
        self._syncing = full
        unneeded, self._unneeded = self._unneeded, []
        ended, self._ended_splits = self._ended_splits, []
        self._growing_at_sync = self._growing()
        lengths = [(file, file.length) for shard in self._growing_at_sync for file in shard.files]
        # The hash waits if the header, which comes first, is known only at the end.
        hashed = not self._header or bool(self.layout.limit.tokens)

        def sync() -> list[tuple[str, Written]]:
            done = [(shard.split, written) for shard in full for written in self._complete(shard)]
            if not self.shared and self._kind.split_file:
                done += [(split, self._write_split_file(split)) for split in ended]
            for file, length in lengths:
                file.sync(length, hashed=hashed)
            for file in (file for shard in unneeded for file in shard.files):
                self._discard(file)  # not earlier: an earlier function of this kind may have been using it
            return done

        return sync

    def recorded(self) -> None:
        """Remove what only an earlier position needed.

        Called by the syncing thread, after the journal's line for the synced position is on disk.
        """
        while self._obsolete:
            self._obsolete.pop().remove()

    def matching_files(self, names: Iterable[str] | None = None) -> list[str]:
        """Return those of `names`, or of the files in the folder, that may be among these files."""
        if self.shared:
            return []
        owned = self._kind.file_names(self._settings.name)
        names = _names_in_folder(self._settings.folder) if names is None else names
        return sorted(name for name in names if owned.fullmatch(name.removesuffix(PARTIAL)))

    def warnings(self, splits: Mapping[str, Any]) -> list[str]:
        """Return warnings about what the format's readers cannot handle; `splits` as in the manifest."""
        return [] if self.shared else self._kind.warnings(splits, self.dtype, self.eot)

    def close(self) -> None:
        """Close all files as they are."""
        for shard in (*self._growing(), *self._full, *self._syncing, *self._unneeded):
            for file in shard.files:
                file.close()

    def _growing(self) -> list[Shard]:
        """The shards that may still be appended to."""
        return [split.shard for split in self._splits.values() if split.shard]

    def _begin(self, split: str) -> Shard:
        shard = self._open(split)
        if self._header:
            shard.tokens.append(self._header)
        return shard

    def _open(self, split: str, kept_bytes: int = 0, kept_documents: int = 0) -> Shard:
        """Create the files of the next shard of a split, or reopen them with what they hold already."""
        kind, settings = self._kind, self._settings
        number = self._splits[split].index + settings.first + (kind.train_from if split == "train" else 0)
        stem = kind.stem_of_one_split if len(settings.splits) == 1 and kind.stem_of_one_split else kind.stem
        stem = stem.format(name=settings.name, split=split, index=number)
        kept = [kept_bytes, kept_documents * kind.length_dtype.itemsize] if kind.indexed else [kept_bytes]
        names = (stem + ending for ending in kind.endings)
        files = [_create(settings.folder, name, size) for name, size in zip(names, kept, strict=False)]
        shard = self._splits[split].shard = Shard(kind, settings, split, stem, self.layout, files)
        return shard

    def _end(self, split: str) -> None:
        """End the open shard of a split: it waits for its name."""
        shard, self._splits[split].shard = self._splits[split].shard, None
        assert shard is not None
        self._splits[split].index += 1
        self._full.append(shard)
        # One batch may fill thousands of tiny shards, and a process may have only some hundred files open.
        if len(self._full) > _MAX_OPEN and all(shard is not growing for growing in self._growing_at_sync):
            for file in shard.files:
                file.close()

    def _complete(self, shard: Shard) -> list[Written]:
        written = self._kind.complete(shard)
        named = {one.name for one in written}
        for file in shard.files:
            if file.name not in named:
                self._discard(file)
        self._listed += self._described(written)
        return written

    def _described(self, files: Iterable[Written]) -> list[Written]:
        return [file for file in files if not file.role] if self._kind.split_file else []

    def _write_split_file(self, split: str) -> Written:
        """Describe the files of a split. They themselves may have been moved elsewhere by now."""
        files = [file for file in self._listed if file.name.startswith(f"{split}/")]
        with closing(_create(self._settings.folder, self._kind.split_file.format(split=split))) as described:
            for block in self._kind.describe(files, self.dtype):
                described.append(block)
            return described.finish(0, role="index")

    def _discard(self, file: PartialFile) -> None:
        """Delete a file as soon as the present position is recorded. Called by the syncing thread."""
        file.close()
        self._obsolete.append(file)


def _create(folder: Path, name: str, keep: int = 0) -> PartialFile:
    """Create a file, or reopen it with its first `keep` bytes; its name may begin with a folder."""
    path = folder / name
    if path.parent != folder and not path.parent.is_dir():
        with writing_to(folder):
            path.parent.mkdir(exist_ok=True)
            sync_folder(folder)
    return PartialFile(path, keep, name=name)


def open_output(format: str, folder: Path, **settings: Any) -> ShardWriter:
    """Return the output of a format; nothing is written yet. `settings`: the other fields of `OutputSettings`.

    Raise UsageError if the format's readers could not read such files.
    """
    return ShardWriter(format_named(format), OutputSettings(folder, **settings))


def _names_in_folder(folder: Path) -> Iterator[str]:
    """Yield the names of the files in a dataset's folder, and in the folders of splits and tables in it."""
    for prefix in DATASET_FOLDERS:
        if (folder / prefix).is_dir():
            slash = "/" if prefix else ""
            yield from (prefix + slash + entry.name for entry in os.scandir(folder / prefix) if not entry.is_dir())
