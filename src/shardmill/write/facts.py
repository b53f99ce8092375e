"""What a plan is as data: sources in order, tokenizer, options; and a fingerprint of all that can change the bytes.

There may be a million sources, so facts are written, read, hashed and compared as streams.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from shardmill.source_list import Skipped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.source_list import Sources
    from shardmill.storage import Store

Facts = dict[str, Any]
"""`sources` (an iterable of rows), `tokenizer` and `options`; `libraries` if the bytes of a format depend on their
release; and `skipped` and `commits`, which are not hashed."""
Row = Sequence[Any]
"""Name, size and version of a source."""

SKIPPED = "skipped"
"""What was found beside the sources when the plan was made. It cannot change the bytes, so it is not hashed."""
COMMITS = "commits"
"""Revisions of the sources, as asked for → commits: what a resumed run reads, even if a branch has moved. The names of
the sources have the commits too, so this is not hashed."""
LIBRARIES = "libraries"
"""The libraries, with their releases, on which the bytes of a format depend; not there if there are none."""
_BATCH = 1024  # sources that are turned into JSON at once
_FIRST_LINE = b'{"sources": [\n'
_CONTENT = re.compile(r"documents: (\d+), sha256: ")
"""The version of a source that is compared by its content."""
_SHOWN = 5  # the most differences that are listed


def shard_name(given: str | None, first_source: str) -> str:
    """Prefix of shard names: as given, or from the first source."""
    if given:
        return given
    first = PurePath(first_source.rstrip("/")).name.split(".")[0]
    kept = "".join(c if c.isalnum() or c in "-_" else "_" for c in first)
    return kept if kept.strip("_-") else "data"


class SourceFacts:
    """What a plan's facts say about each source: an iterable that makes its rows one by one, and again each time."""

    def __init__(self, make: Callable[[], Iterator[Row]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Row]:
        return self._make()


def library_facts(formats: Sequence[str]) -> Facts:
    """The libraries, with their releases, on which the bytes of files of these formats depend, if there are any."""
    from shardmill.shards import libraries_of  # brings numpy

    found = libraries_of(formats)
    return {LIBRARIES: found} if found else {}


def fingerprint(facts: Facts) -> str:
    """The SHA-256 of the facts as JSON without spaces and with sorted keys."""
    dumps = partial(json.dumps, sort_keys=True, separators=(",", ":"))
    hashed = {key: value for key, value in facts.items() if key not in (SKIPPED, COMMITS)}
    before, begin, after = dumps({**hashed, "sources": []}).partition('"sources":[')
    found = hashlib.sha256((before + begin).encode())
    between = ""
    for some in _batches(facts["sources"]):
        found.update((between + dumps(some)[1:-1]).encode())
        between = ","
    found.update(after.encode())
    return found.hexdigest()


def facts_json(facts: Facts) -> Iterator[bytes]:
    """The facts as they are written to a file, in pieces: lines of many sources, and a last line with all else."""
    yield _FIRST_LINE
    between = ""
    for some in _batches(facts["sources"]):
        yield (between + json.dumps(some)[1:-1]).encode()
        between = ",\n"
    others = {key: value for key, value in facts.items() if key != "sources"}
    yield b"\n], " + json.dumps(others)[1:].encode()


def read_facts(store: Store, name: str) -> Facts | None:
    """The facts in a file; None when it is not there or damaged."""
    try:
        lines = store.lines(name)
        if (first := next(lines, b"")) == _FIRST_LINE:
            last = next((line for line in lines if line.startswith(b"]")), b"")
            return {**json.loads(_FIRST_LINE + last), "sources": SourceFacts(lambda: _stored(store, name))}
        facts: Facts = json.loads(b"".join([first, *lines]))  # of another release, or edited
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return facts


def _stored(store: Store, name: str) -> Iterator[Row]:
    """What a file with facts says of each source."""
    for line in islice(store.lines(name), 1, None):
        if line.startswith(b"]"):
            return
        yield from json.loads(b"[" + line.rstrip(b",\n") + b"]")


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rows = iter(rows)
    while some := list(islice(rows, _BATCH)):
        yield some


def as_recorded(sources: Sources, before: Facts | None) -> Sources:
    """The sources under the names in an earlier plan, if they are the same files and only the paths are written in
    another way: relative, absolute or through a link."""
    if before is None:
        return sources
    for row, found in zip_longest(before["sources"], sources.facts()):
        if not row or not found or [*row[1:]] != [*found[1:]] or not _same_file(row[0], found[0]):
            return sources
    recorded = sources.renamed(row[0] for row in before["sources"])
    if SKIPPED in before:  # the folder may hold more by now, which the plan does not know
        recorded.skipped = Skipped.of(before[SKIPPED])
    return recorded


def _same_file(was: str, now: str) -> bool:
    """Whether a path may be the same as one that was perhaps given in another folder."""
    if was == now:
        return True
    if os.path.isabs(was) or os.path.exists(was):
        return os.path.realpath(was) == os.path.realpath(now)
    parts = tuple(part for part in PurePath(os.path.normpath(was)).parts if part != "..")
    return any(PurePath(path(now)).parts[-len(parts) :] == parts for path in (os.path.abspath, os.path.realpath))


def differences(before: Facts, now: Facts) -> list[str]:
    """Sentences about the first few differences between two plans' facts."""
    found = []
    for name in {**now["options"], **before["options"]}:
        was, value = before["options"].get(name), now["options"].get(name)
        if was != value:
            found.append(f"--{name.replace('_', '-')} was {_quoted(was)} and is now {_quoted(value)}")
    if before["tokenizer"] != now["tokenizer"]:
        was, new = before["tokenizer"], now["tokenizer"]
        keys = [key for key in new if was.get(key) != new[key]]
        found.append(f"the tokenizer was `{was.get('name')}` and is now `{new['name']}` ({', '.join(keys)} differ)")
    old, new = before.get(LIBRARIES, {}), now.get(LIBRARIES, {})
    found += [f"{name} was {old[name]} and is now {new[name]}" for name in new if old.get(name, new[name]) != new[name]]
    total, first_few = _source_differences(before["sources"], now["sources"])
    total += len(found)
    found = [*found, *first_few][:_SHOWN]
    if not found and fingerprint(before) != fingerprint(now):
        return ["the order of the sources has changed"]
    return [*found, f"and {total - _SHOWN:,} more"] if total > _SHOWN else found


def _source_differences(before: Iterable[Row], now: Iterable[Row]) -> tuple[int, list[str]]:
    """How many sources differ, and sentences about the first few; 16 bytes are held for each source, and no names."""
    import numpy as np

    (old_names, old_rows), (names, rows) = _hashes(before), _hashes(now)
    differ = np.flatnonzero(~np.isin(rows, old_rows))
    gone = np.flatnonzero(~np.isin(old_names, names))
    few = _rows_at(now, differ[:_SHOWN])
    named = {name for name, _, _ in few}
    known = {row[0]: row for row in before if row[0] in named} if named else {}
    sentences = []
    for name, *rest in few:
        change = f"has changed ({_change(known[name][1:], rest)})" if name in known else "is new"
        sentences.append(f"source `{name}` {change}")
    return len(differ) + len(gone), sentences + [
        f"source `{row[0]}` is gone" for row in _rows_at(before, gone[:_SHOWN])
    ]


def _hashes(rows: Iterable[Row]) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each source a hash of its name, and one of its name, size and version."""
    import numpy as np

    pairs = np.fromiter(((hash(row[0]), hash(tuple(row))) for row in rows), np.dtype("2i8"))
    return pairs[:, 0], pairs[:, 1]


def _rows_at(rows: Iterable[Row], places: Iterable[Any]) -> list[Row]:
    wanted = {int(place) for place in places}
    return [row for i, row in enumerate(rows) if i in wanted] if wanted else []


def _quoted(value: Any) -> str:
    return "not given" if value is None else f"`{','.join(value) if isinstance(value, list) else value}`"


def _change(was: Row, now: Row) -> str:
    if was[0] != now[0] and None not in (was[0], now[0]):
        return f"{was[0]:,} bytes, now {now[0]:,}"
    if _CONTENT.match(was[1]) and _CONTENT.match(now[1]):
        old, new = (int(_CONTENT.match(version)[1]) for version in (was[1], now[1]))  # type: ignore[index]
        return f"{old:,} documents, now {new:,}" if old != new else "as many documents, other text or another order"
    return "another version"
