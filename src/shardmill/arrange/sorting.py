"""Documents of a dataset in the order of their keys, within a limit of memory.

First pass: documents are read in their order until the memory is full, sorted by key, and written as a *run*: their
tokens, keys and facts in the order of the keys. Second pass: the next range of keys that fits into the memory is read,
one extent from every run, sorted, and handed on. The keys alone define the order, so neither memory nor a kill between
two steps can change it: a later call may use another amount of memory, and goes on with the runs that are there.

    FOLDER/runs.jsonl    a line for each run, appended when all of the run is written
    FOLDER/N.tokens      the tokens of its documents in the order of the keys
    FOLDER/N.keys        their keys, ascending
    FOLDER/N.ends        where the tokens of each document end in the file
    FOLDER/N.facts       for each document a row of FACTS

A document larger than an eighth of the memory stays where it is, and the second pass reads it from there. If all
documents fit into the memory together, there are no runs.

Runs are not synced: they outlive the process, and after a crash of the system, which the log can tell, they are made
again.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from shardmill.core import gathered
from shardmill.errors import DamageError, UsageError
from shardmill.storage import writing_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

FACTS = np.dtype(
    [("length", "<i8"), ("source", "<i4"), ("record", "<i8"), ("bytes", "<i8"), ("giant", "<i8"), ("padding", "<i8")]
)
"""Of a document: its tokens, EOT included; its source and record; bytes of its text; the token at which it begins in
the dataset if it was too large for a run, else -1; and how many tokens of padding follow it."""
LEAST_MEMORY = 32 << 20
"""Bytes of memory below which sorting would take too many runs."""
_DOCUMENT_BYTES = 2 * FACTS.itemsize + 15 * 8  # memory for the columns of a document, before and after sorting
_BLOCK_DOCUMENTS = 1 << 16  # documents that are handed on at once
_SAMPLED = 1 << 12  # keys of a run of which one is kept
_BLOCK_BYTES = 4 << 20  # bytes of tokens that are handed on at once
_KEYS, _ENDS = np.dtype("<u8"), np.dtype("<i8")
LEFT_OUT = (1 << 64) - 1
"""The key of a document that is left out."""
_STEP = 1 << 16  # documents that are looked at together


class Documents(Protocol):
    """Documents by their number, and their keys."""

    dtype: np.dtype[Any]

    def __len__(self) -> int: ...

    def facts(self, first: int, last: int) -> NDArray[Any]:
        """Return the rows of FACTS of some documents; `giant` is not set."""

    def keys(self, first: int, facts: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the keys of documents from the first on, given their facts; LEFT_OUT: leave the document out.

        It may set `padding` in the facts.
        """

    def read_into(self, start: int, out: NDArray[Any]) -> None:
        """Fill an array with the tokens from `start` on."""


class Block(NamedTuple):
    """Some documents in their new order, or a piece of one that is larger than a block."""

    tokens: NDArray[Any]
    facts: NDArray[Any]
    begins: bool = True
    """False: the document began in an earlier block."""
    ends: bool = True
    """False: the document continues in the next block."""


class _Columns:
    """The keys of a run, ascending, and where its documents end.

    They are read, not mapped, since mapped pages count as memory; every `_SAMPLED`-th key is kept.
    """

    def __init__(self, run: Path) -> None:
        self._keys, self._ends = run.with_suffix(".keys"), run.with_suffix(".ends")
        with open(self._keys, "rb", buffering=0) as file:
            places = range(0, os.fstat(file.fileno()).st_size, _SAMPLED * _KEYS.itemsize)
            sample = b"".join(os.pread(file.fileno(), _KEYS.itemsize, place) for place in places)
        self._sample = np.frombuffer(sample, _KEYS)

    def before(self, key: int) -> tuple[int, int]:
        """Return how many documents have a smaller key, and how many tokens of them are in the file."""
        block = int(np.searchsorted(self._sample, np.uint64(key))) - 1
        if block < 0:
            return 0, 0
        first = block * _SAMPLED
        some = np.fromfile(self._keys, _KEYS, _SAMPLED, offset=first * _KEYS.itemsize)
        count = first + int(np.searchsorted(some, np.uint64(key)))
        return count, int(np.fromfile(self._ends, _ENDS, 1, offset=(count - 1) * _ENDS.itemsize)[0])


class _Chosen(NamedTuple):
    """The documents of a run, in the order of the dataset."""

    last: int
    """The document after the last that was looked at, and the token at which it begins."""
    token: int
    facts: NDArray[Any]
    keys: NDArray[np.uint64]
    begins: NDArray[np.int64]


class Sorter:
    """Sorts the documents of a split by key. Call `make_runs`, then `blocks`."""

    def __init__(self, documents: Documents, folder: Path, memory: int) -> None:
        """Documents with equal keys keep their order.

        `memory`: bytes that sorting may take. `folder`: for the runs, of these documents and keys alone. UsageError if
        the memory is too little.
        """
        if memory < LEAST_MEMORY:
            raise UsageError(f"{memory:,} bytes do not suffice to sort", hint=f"the least is {LEAST_MEMORY:,}")
        self._documents, self._folder = documents, folder
        self._width = documents.dtype.itemsize
        self._room = memory - 2 * _BLOCK_BYTES
        self._giant = self._room // 8 // self._width
        self._runs: list[Path] = []
        self._made = 0  # runs, with those that have no documents
        self._whole: _Chosen | None = None  # all documents, if they fit into the memory
        self.count = 0
        """Documents in all runs."""
        self._tokens = np.empty(0, documents.dtype)

    def _buffer(self, tokens: int) -> NDArray[Any]:
        """Return room for so many tokens: one buffer for all runs, since to touch new pages costs more than to copy."""
        if tokens > len(self._tokens):
            self._tokens = np.empty(0, self._documents.dtype)
            self._tokens = np.empty(max(tokens, min(self._room // self._width, 2 * tokens)), self._documents.dtype)
        return self._tokens[:tokens]

    def make_runs(self, made: Callable[[int], None] = lambda documents: None) -> None:
        """Sort all documents into runs, as far as that was not done before; `made` is told how many are sorted."""
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        first = 0
        for name, last, count in self._logged():
            self._add(name, count)
            first = last
        token = self._tokens_before(first)
        while first < len(self._documents):
            chosen = self._choose(first, token)
            if not first and chosen.last == len(self._documents):
                self._whole, self.count = chosen, len(chosen.keys)
                return
            name = str(self._made)
            if len(chosen.keys):
                self._write_run(name, chosen)
            self._log(name, chosen.last, len(chosen.keys))
            self._add(name, len(chosen.keys))
            first, token = chosen.last, chosen.token
            made(first)

    def _add(self, name: str, count: int) -> None:
        if count:
            self._runs.append(self._folder / name)
        self._made, self.count = self._made + 1, self.count + count

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """Yield the documents in the order of their keys, from the one with the `first`-th smallest key on."""
        if self._whole is not None:
            chosen, kept = self._whole, _kept(self._whole.facts)
            buffer, starts = self._read_kept(chosen.begins, kept)
            order = np.argsort(chosen.keys, kind="stable")[first:]
            yield from self._handed_on(buffer, starts[order], chosen.facts[order])
            return
        columns = [_Columns(run) for run in self._runs]
        low, skip = self._range_of(first, columns)
        while low < LEFT_OUT:
            high = self._next_border(low, columns)
            extents = [
                (run, *each.before(low), *each.before(high)) for run, each in zip(self._runs, columns, strict=True)
            ]
            yield from self._sorted(extents, skip)
            low, skip = high, 0

    def _tokens_before(self, first: int) -> int:
        """Return the token at which a document begins, by adding up in steps."""
        total = 0
        for start in range(0, first, _STEP):
            total += int(self._documents.facts(start, min(first, start + _STEP))["length"].sum())
        return total

    def _choose(self, first: int, token: int) -> _Chosen:
        """Return the documents from `first` on, which begins at a token, that fit into the memory together."""
        facts, keys, last, used = [np.empty(0, FACTS)], [np.empty(0, _KEYS)], first, 0
        begins = [np.empty(0, np.int64)]
        while last < len(self._documents):
            some = self._documents.facts(last, min(last + _STEP, len(self._documents)))
            ends, some_keys = token + np.cumsum(some["length"]), self._documents.keys(last, some)
            some_begins = ends - some["length"]
            wanted, giant = some_keys != np.uint64(LEFT_OUT), some["length"] > self._giant
            some["giant"] = np.where(giant, some_begins, -1)
            cost = np.where(giant, 0, some["length"]) * self._width + _DOCUMENT_BYTES
            costs = np.cumsum(np.where(wanted, cost, 0))
            count = int(np.searchsorted(costs, self._room - used, side="right"))
            count = max(count, int(last == first))
            taken = np.flatnonzero(wanted[:count])
            facts.append(some[taken])
            keys.append(some_keys[taken])
            begins.append(some_begins[taken])
            last, token = last + count, int(ends[count - 1]) if count else token
            if count < len(some):
                break
            used += int(costs[-1])
        return _Chosen(last, token, np.concatenate(facts), np.concatenate(keys), np.concatenate(begins))

    def _write_run(self, name: str, chosen: _Chosen) -> None:
        facts, keys = chosen.facts, chosen.keys
        kept = _kept(facts)
        buffer, starts = self._read_kept(chosen.begins, kept)
        order = np.argsort(keys, kind="stable")
        starts, kept = starts[order], kept[order]
        path = self._folder / name
        _write(path.with_suffix(".tokens"), self._gathered(buffer, starts, kept))
        for ending, column in ((".keys", keys[order]), (".ends", np.cumsum(kept)), (".facts", facts[order])):
            _write(path.with_suffix(ending), [column])

    def _read_kept(self, begins: NDArray[np.int64], kept: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Read the documents of a run, without its giants. Return their tokens, and where each begins in these."""
        stops = np.cumsum(kept)
        starts, ends = stops - kept, begins + kept
        buffer, first, most = self._buffer(int(kept.sum())), 0, _BLOCK_BYTES // self._width
        while first < len(kept):
            last = max(first + 1, int(np.searchsorted(ends, begins[first] + most, side="right")))
            begin, end = int(begins[first]), int(ends[last - 1])
            out = buffer[int(starts[first]) : int(stops[last - 1])]
            if end - begin == len(out):
                self._documents.read_into(begin, out)
            elif len(out):  # others are between them
                read = np.empty(end - begin, buffer.dtype)
                self._documents.read_into(begin, read)
                places, sizes = (begins[first:last] - begin) * self._width, kept[first:last] * self._width
                out[:] = gathered(read.view(np.uint8), places, sizes).view(buffer.dtype)
            first = last
        return buffer, starts

    def _gathered(
        self, buffer: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Iterator[NDArray[Any]]:
        """Yield documents of a buffer in a new order, some at a time."""
        data = buffer.view(np.uint8)
        for first, last in _cut(lengths, _BLOCK_BYTES // self._width):
            out = gathered(data, starts[first:last] * self._width, lengths[first:last] * self._width)
            yield out.view(buffer.dtype)

    def _range_of(self, rank: int, columns: list[_Columns]) -> tuple[int, int]:
        """Return the key of the document with this rank, and how many of the same key come before it."""
        low, high = 0, LEFT_OUT
        while low < high:
            middle = (low + high + 1) // 2
            if sum(each.before(middle)[0] for each in columns) <= rank:
                low = middle
            else:
                high = middle - 1
        return low, rank - sum(each.before(low)[0] for each in columns)

    def _next_border(self, low: int, columns: list[_Columns]) -> int:
        """Return the end of the range of keys that begins with `low` and fits into the memory; one key at the least."""

        def cost(high: int) -> int:
            counts = np.array([each.before(high) for each in columns], np.int64).reshape(-1, 2).sum(axis=0)
            return int(counts[0]) * _DOCUMENT_BYTES + int(counts[1]) * self._width

        allowed, least, most = cost(low) + self._room, low + 1, LEFT_OUT
        while least < most:
            middle = (least + most + 1) // 2
            if cost(middle) <= allowed:
                least = middle
            else:
                most = middle - 1
        return least

    def _sorted(self, extents: list[tuple[Path, int, int, int, int]], skip: int) -> Iterator[Block]:
        """Yield the documents of some extents in order, without the first `skip`.

        An extent: a run, the first document and its first token in the run, and those after the last.
        """
        documents = sum(last - first for _, first, _, last, _ in extents)
        buffer = self._buffer(sum(end - begin for _, _, begin, _, end in extents))
        facts, keys, ends = np.empty(documents, FACTS), np.empty(documents, _KEYS), np.empty(documents, _ENDS)
        starts = np.empty(documents, np.int64)
        at = token = 0
        for run, first, begin, last, end in extents:
            here = slice(at, at + last - first)
            if first == last:
                continue
            for ending, column in ((".keys", keys), (".ends", ends), (".facts", facts)):
                _fill(run.with_suffix(ending), first * column.itemsize, column[here])
            _fill(run.with_suffix(".tokens"), begin * self._width, buffer[token : token + end - begin])
            starts[here] = np.concatenate([[begin], ends[here][:-1]]) - begin + token
            at, token = here.stop, token + end - begin
        order = np.argsort(keys, kind="stable")[skip:]
        yield from self._handed_on(buffer, starts[order], facts[order])

    def _handed_on(self, buffer: NDArray[Any], starts: NDArray[np.int64], facts: NDArray[Any]) -> Iterator[Block]:
        """Yield documents, sorted by key, of which all but the giants are in a buffer."""
        giants = np.flatnonzero(facts["giant"] >= 0).tolist()
        for first, last in zip([0, *(giant + 1 for giant in giants)], [*giants, len(facts)], strict=True):
            yield from self._in_memory(buffer, starts[first:last], facts[first:last])
            if last < len(facts):
                yield from self._from_the_dataset(facts[last : last + 1])

    def _in_memory(self, buffer: NDArray[Any], starts: NDArray[np.int64], facts: NDArray[Any]) -> Iterator[Block]:
        lengths = np.ascontiguousarray(facts["length"])
        cuts = _cut(lengths, _BLOCK_BYTES // self._width)
        for tokens, (first, last) in zip(self._gathered(buffer, starts, lengths), cuts, strict=True):
            yield Block(tokens, facts[first:last])

    def _from_the_dataset(self, facts: NDArray[Any]) -> Iterator[Block]:
        """Yield a document that is in no run, in pieces."""
        begin, length = int(facts["giant"][0]), int(facts["length"][0])
        step = _BLOCK_BYTES // self._width
        for done in range(0, length, step):
            tokens = np.empty(min(step, length - done), self._documents.dtype)
            self._documents.read_into(begin + done, tokens)
            yield Block(tokens, facts, begins=done == 0, ends=done + len(tokens) == length)

    def _is_whole(self, name: str, documents: int) -> bool:
        """Whether the files of a run are there as they were written."""
        path = self._folder / name
        sizes = ((".keys", _KEYS.itemsize), (".ends", _ENDS.itemsize), (".facts", FACTS.itemsize))
        if not all(_size(path.with_suffix(ending)) == documents * size for ending, size in sizes):
            return False
        last = np.fromfile(path.with_suffix(".ends"), _ENDS, 1, offset=(documents - 1) * _ENDS.itemsize)
        return _size(path.with_suffix(".tokens")) == int(last[0]) * self._width

    def _logged(self) -> list[tuple[str, int, int]]:
        """Return the runs that can be used: name, the document after the last that was looked at, and how many.

        Those of a system that has crashed since, and whatever follows them, are forgotten.
        """
        path = self._folder / "runs.jsonl"
        found, length = [], 0
        with suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):  # torn by a kill
                    break
                booted, name, last, count = json.loads(line)
                if booted != _booted() or (count and not self._is_whole(name, count)):
                    break
                found.append((name, last, count))
                length += len(line)
            with writing_to(path):
                os.truncate(path, length)
        return found

    def _log(self, name: str, last: int, count: int) -> None:
        path = self._folder / "runs.jsonl"
        with writing_to(path), open(path, "a") as log:
            log.write(json.dumps([_booted(), name, last, count]) + "\n")


def _kept(facts: NDArray[Any]) -> NDArray[np.int64]:
    """The tokens of each document that are in the file of a run."""
    return np.where(facts["giant"] >= 0, 0, facts["length"])


@cache
def _booted() -> str:
    """What differs after the system was started again; where nothing tells that, in every process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return secrets.token_hex(16)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _cut(lengths: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield stretches of documents with at most so many tokens, or of one longer document; never too many of them."""
    ends, first = np.cumsum(lengths), 0
    while first < len(lengths):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        last = min(last, first + _BLOCK_DOCUMENTS)
        yield first, last
        first = last


def _write(path: Path, blocks: Iterable[NDArray[Any]]) -> None:
    """Write a file."""
    with writing_to(path), open(path, "wb", buffering=0) as file:
        for block in blocks:
            view = memoryview(np.ascontiguousarray(block).view(np.uint8))  # type: ignore[arg-type,unused-ignore]
            while len(view):
                view = view[file.write(view) :]


def _fill(path: Path, offset: int, out: NDArray[Any]) -> None:
    """Fill an array from a file."""
    view = memoryview(out.view(np.uint8))  # type: ignore[arg-type,unused-ignore]
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while len(view):
            got = file.readinto(view)
            if not got:
                raise DamageError("a sorted run ends too early", place=str(path))
            view = view[got:]
