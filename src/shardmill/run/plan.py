"""What is to be done: sources in order, tokenizer, options; and a fingerprint of all that can change the bytes.

There may be a million sources, so a plan's facts are written, read, hashed and compared as streams.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.options import Options
    from shardmill.storage import Sources
    from shardmill.tokens import Tokenizer

Facts = dict[str, Any]
"""`sources` (an iterable of rows), `tokenizer` and `options`."""
Row = Sequence[Any]
"""Name, size and version of a source."""

_BATCH = 1024  # sources that are turned into JSON at once
_BLOCK = 1 << 20
_HEAD, _BEHIND_SOURCES = b'{"sources": [', b'], "tokenizer": '
_SHOWN = 5  # differences, at the most


@dataclass(frozen=True)
class Plan:
    """Everything that the bytes of a dataset are a function of."""

    sources: Sources
    tokenizer: Tokenizer
    options: Options

    def facts(self) -> Facts:
        """The plan as data; two plans with the same facts give the same bytes."""
        return {
            "sources": SourceFacts(self.sources.facts),
            "tokenizer": self.tokenizer.describe(),
            "options": self.options.shaping(),
        }

    @property
    def name(self) -> str:
        """Prefix of shard names: as given, or from the first source."""
        if self.options.name:
            return self.options.name
        first = PurePath(self.sources[0].name.rstrip("/")).name.split(".")[0] if self.sources else ""
        kept = "".join(c if c.isalnum() or c in "-_" else "_" for c in first)
        return kept if kept.strip("_-") else "data"

    @property
    def commits(self) -> dict[str, str]:
        """Repository and revision as asked for → commit."""
        return {asked: name.partition("@")[2].partition("/")[0] for asked, name in self.sources.asked.items()}

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all sources; None when one is a stream of unknown size."""
        return self.sources.total_bytes


class SourceFacts:
    """What a plan's facts say of each source: made one by one, and anew for whoever asks."""

    def __init__(self, make: Callable[[], Iterator[Row]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Row]:
        return self._make()


def fingerprint(facts: Facts) -> str:
    """A hash of the plan's facts."""
    found = hashlib.sha256()
    for piece in _as_json(facts, compact=True):
        found.update(piece)
    return found.hexdigest()


def facts_json(facts: Facts) -> Iterator[bytes]:
    """The facts as they are written to a file, in pieces."""
    return _as_json(facts, compact=False)


def read_facts(path: Path) -> Facts | None:
    """The facts in a file; None when it is not there or damaged."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_HEAD)) == _HEAD and (rest := _after(file, _BEHIND_SOURCES)) is not None:
                facts: Facts = json.loads(b"{" + rest.removeprefix(b"], "))
                return {"sources": SourceFacts(lambda: _stored(path)), **facts}
            file.seek(0)
            facts = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return facts


def _stored(path: Path) -> Iterator[Row]:
    """What a file with facts says of each source."""
    decode = json.JSONDecoder().raw_decode
    with open(path, encoding="ascii") as file:
        text, at = file.read(_BLOCK), len(_HEAD)
        while not text.startswith("]", at):
            try:
                row, end = decode(text, at)
                following = text[end + 1]
            except (ValueError, IndexError):  # the block ends inside of it
                more = file.read(_BLOCK)
                if not more or len(text) - at > _BLOCK:
                    raise ValueError(f"`{path}` is damaged") from None
                text, at = text[at:] + more, 0
                continue
            yield row
            at = end + 2 if following == " " else end


def _after(file: Any, mark: bytes) -> bytes | None:
    """What follows in the file from the first `mark` on. In a text of JSON it would have backslashes."""
    held = b""
    while block := file.read(_BLOCK):
        held += block
        if (found := held.find(mark)) >= 0:
            rest: bytes = held[found:] + file.read()
            return rest
        held = held[-len(mark) :]
    return None


def same_facts(before: Facts, now: Facts) -> bool:
    """Whether two plans say the same."""
    pairs = zip_longest(before["sources"], now["sources"])
    return all(before[key] == now[key] for key in ("tokenizer", "options")) and all(
        a is not None and b is not None and tuple(a) == tuple(b) for a, b in pairs
    )


def differences(before: Facts, now: Facts) -> list[str]:
    """What differs between two plans' facts, in words; the first few."""
    found = []
    for name in {**now["options"], **before["options"]}:
        was, value = before["options"].get(name), now["options"].get(name)
        if was != value:
            found.append(f"--{name.replace('_', '-')} was {_said(was)} and is now {_said(value)}")
    if before["tokenizer"] != now["tokenizer"]:
        was, new = before["tokenizer"], now["tokenizer"]
        keys = [key for key in new if was.get(key) != new[key]]
        found.append(f"the tokenizer was `{was.get('name')}` and is now `{new['name']}` ({', '.join(keys)} differ)")
    total, first_few = _source_differences(before["sources"], now["sources"])
    total += len(found)
    found = [*found, *first_few][:_SHOWN]
    if not found and not same_facts(before, now):
        return ["the order of the sources has changed"]
    return [*found, f"and {total - _SHOWN:,} more"] if total > _SHOWN else found


def _source_differences(before: Iterable[Row], now: Iterable[Row]) -> tuple[int, list[str]]:
    """How many sources differ, and the first few in words; 16 bytes a source are held, and no names."""
    import numpy as np

    (old, old_rest), (new, new_rest) = _hashes(before), _hashes(now)
    order = np.argsort(old, kind="stable")  # of a name that stands there twice, the last counts
    at = order[np.searchsorted(old[order], new, side="right") - 1] if len(old) else np.zeros(len(new), np.int64)
    known = old[at] == new if len(old) else np.zeros(len(new), np.bool_)
    differ = np.flatnonzero(~known | (old_rest[at] != new_rest if len(old) else True))
    _, firsts = np.unique(old, return_index=True)
    gone = np.sort(firsts[~np.isin(old[firsts], new)])
    few, lost = differ[:_SHOWN], gone[:_SHOWN]
    rows_now, rows_before = _rows_at(now, few), _rows_at(before, [*at[few], *lost])
    words = []
    for i in few.tolist():
        name, *rest = rows_now[i]
        if not known[i]:
            words.append(f"source `{name}` is new")
        else:
            words.append(f"source `{name}` has changed ({_change(rows_before[int(at[i])][1:], rest)})")
    return len(differ) + len(gone), words + [f"source `{rows_before[i][0]}` is gone" for i in lost.tolist()]


def _hashes(rows: Iterable[Row]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of each source a number for its name, and one for the rest."""
    import numpy as np

    pairs = np.fromiter(((hash(name), hash((size, version))) for name, size, version in rows), np.dtype("2i8"))
    return pairs[:, 0], pairs[:, 1]


def _rows_at(rows: Iterable[Row], places: Iterable[Any]) -> dict[int, Row]:
    wanted = {int(place) for place in places}
    return {i: row for i, row in enumerate(rows) if i in wanted} if wanted else {}


def _as_json(facts: Facts, *, compact: bool) -> Iterator[bytes]:
    """What `json.dumps` makes of the facts, in pieces; compact: without spaces and with the keys sorted."""
    item, colon = (",", ":") if compact else (", ", ": ")
    dumps = partial(json.dumps, sort_keys=compact, separators=(item, colon))
    before = "{"
    for key in sorted(facts) if compact else facts:
        yield f'{before}"{key}"{colon}'.encode()
        before = item
        if key == "sources":
            yield b"["
            rows, between = iter(facts[key]), ""
            while batch := list(islice(rows, _BATCH)):
                yield f"{between}{dumps(batch)[1:-1]}".encode()
                between = item
            yield b"]"
        else:
            yield dumps(facts[key]).encode()
    yield b"}"


def _said(value: Any) -> str:
    return "not given" if value is None else f"`{','.join(value) if isinstance(value, list) else value}`"


def _change(was: Row, now: Row) -> str:
    if was[0] != now[0] and None not in (was[0], now[0]):
        return f"{was[0]:,} bytes, now {now[0]:,}"
    return "another version"
