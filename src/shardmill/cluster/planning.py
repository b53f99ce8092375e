"""Cuts a plan into contiguous parts that any machine can make by itself."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from shardmill import __version__, arguments
from shardmill.cluster.place import PLAN, Place, part_name
from shardmill.detection import format_of
from shardmill.documents import Bounds, Reading, check_tails
from shardmill.errors import MismatchError, OutputError, UsageError
from shardmill.input_formats import INPUT_FORMATS
from shardmill.options import Options, Val
from shardmill.run import Plan, make_plan, open_outputs, output_orders
from shardmill.shards import FORMATS, ShardWriter, format_named, open_output
from shardmill.source_list import Skipped, Sources
from shardmill.sources import apply_recipes
from shardmill.storage import Source, compression_of, writing_temporary_files
from shardmill.tokens import Tokenizer, load_tokenizer
from shardmill.write import COMMITS, Destination, Facts, Manifest, fingerprint, open_destination

PART_BYTES = 4 << 30
"""Default size of a part, in bytes of its sources; `docs/clusters.md` says why."""
_MOST_PARTS, _MOST_FILES = 100_000, 1_000_000  # of a plan, and of a split of a part
_NAMED = 3  # sources that a message names at most
_OF_A_CALL = ("memory", "workers", "overwrite", "recipe")  # options that a plan does not hold


class PartBounds(NamedTuple):
    """A part: from a byte of one source to a byte of another."""

    number: int
    first: int
    byte: int
    last: int
    end: int
    """A byte of the last source; 0: nothing of that source is in this part."""
    bytes: int
    """Stored bytes of its sources."""
    line: int
    """The offset of its first source in the list of sources."""


@dataclass(frozen=True)
class PartPlan:
    """A plan and its parts, as they are stored for all machines."""

    out: str
    options: dict[str, Any]
    """Options of `prepare`, as given."""
    fingerprint: str
    """That of the whole plan, as it will stand in the manifest."""
    sources: int
    bytes: int
    listed: str
    """The file that lists the sources. Its name holds the hash of its content."""
    lines: int
    """Size of that file in bytes."""
    parts: list[PartBounds]
    undivided: list[str]
    """Some sources that are larger than a part and cannot be divided."""
    name: str = ""
    """Prefix of shard names."""
    skipped: dict[str, Any] = field(default_factory=dict)
    """What was found beside the sources and is not read."""
    keep: int = 0
    """With `--keep-parts`, the number of parts that was asked for; otherwise 0."""
    id: str = ""
    """Random, so that a node can tell whether it sees the folder in which the plan was made."""
    commits: dict[str, str] = field(default_factory=dict)
    """Repository and revision at the hub, as asked for → commit."""

    def facts(self, plan: Plan | None = None) -> Facts:
        """Return everything that determines the bytes. `plan`: that with all sources, if it is loaded."""
        facts = facts_of(plan or self.load(None, {})[0], self.keep)
        return {**facts, COMMITS: self.commits} if self.commits else facts

    @cached_property
    def place(self) -> Place:
        return Place(self.out, self.options.get("cache"))

    def load(
        self, part: PartBounds | None, settings: Mapping[str, Any], tokenizer: Tokenizer | None = None
    ) -> tuple[Plan, Bounds]:
        """Return the plan with the sources of a part and the bounds of the part in them; None: with all sources.

        `settings`: options of `prepare` that do not change the bytes. `tokenizer`: that of the plan, if it is loaded.
        """
        bounds = part or PartBounds(-1, 0, 0, self.sources, 0, self.bytes, 0)
        wanted = bounds.last + (bounds.end > 0) - bounds.first
        try:
            sources = Sources(_read_sources(self.place, self.listed, bounds.line, self.lines, wanted))
        except (FileNotFoundError, ValueError, TypeError):
            sources = Sources()
        if len(sources) != wanted:
            raise OutputError("the list of sources is missing or damaged", place=f"{self.out}: {self.listed}")
        sources.skipped = Skipped.of(self.skipped)
        options = Options.of({**self.options, **settings})
        plan = Plan(sources, tokenizer or _tokenizer(options), options, source_count=self.sources)
        return plan, Bounds(0, bounds.byte, bounds.last - bounds.first, bounds.end)

    def open_part(self, number: int, plan: Plan, folder: Path) -> list[ShardWriter]:
        """Return the outputs of a part: tokens to be merged, or shards, numbered after those of earlier parts."""
        outputs = open_outputs(plan, folder, name=self.name, first=(_MOST_PARTS + number) * _MOST_FILES)
        if not self.keep:
            # Raw tokens, one file for each split. With EOT if any output wants it: then a document without other tokens
            # is not lost.
            eot = next((output.eot for output in outputs if output.eot != "none"), "none")
            return [open_output(folder=folder, **{**output_orders(plan)[0], "format": FORMATS[0], "eot": eot})]
        for output in outputs:  # the merge writes what belongs to a whole split
            output.shared = True
        return outputs


def plan_parts(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    parts: int | None = None,
    keep_parts: bool = False,
    **options: Any,
) -> PartPlan:
    """Divide a run into parts, and store the plan; the keywords are the options of `prepare`.

    `keep_parts`: the shards of the parts will be those of the dataset. The same call again changes nothing, except for
    options that cannot change the bytes, such as `max_bad`. MismatchError when the folder has another plan, or a
    dataset of one, unless `overwrite` is among the options.
    """
    out = arguments.path("out", out)
    return store_parts(find_plan(sources, out, options), out, parts, keep_parts=keep_parts)


def store_parts(plan: Plan, out: str, parts: int | None, *, keep_parts: bool = False) -> PartPlan:
    """Divide a plan and store it; where it is stored already, its parts stay as they are, unless `parts` says more."""
    if plan.options.shuffle:
        raise UsageError(
            "a plan cannot be shuffled on the way",
            hint="make and merge its parts without `--shuffle`, and then call `shardmill shuffle`",
        )
    found, total, count = plan.sources, plan.sources.total_bytes or 0, _count(plan, parts)
    keep = count if keep_parts else 0
    if keep:
        _check_kept(plan)
    cache, facts = plan.options.cache, facts_of(plan, keep)
    place, destination = Place(out, cache), open_destination(out, cache)
    if plan.options.overwrite:
        remove_all(place, destination, facts, plan)
    _finished(destination, facts)
    divisible = partial(_can_be_entered, plan, keep_parts)
    kept = {name: value for name, value in asdict(plan.options).items() if name not in _OF_A_CALL}
    with writing_temporary_files(), tempfile.TemporaryFile() as listed:  # which has no name that a kill could leave
        starts, digest = _write_sources(found, listed)
        made = PartPlan(
            place.out, kept, fingerprint(facts), len(found), total, f"sources-{digest[:16]}.jsonl", starts[-1],
            list(_divided(found, count, starts, divisible)), _undivided(found, total // count, divisible),
            plan.name, plan.sources.skipped.data(), keep, secrets.token_hex(8), plan.commits,
        )  # fmt: skip
        if (before := _read(place)) is None:
            place.remove_leftovers()
            place.store(made.listed, listed)
            if keep:  # otherwise the merge does both
                if destination.removal_pending():
                    with destination.locked(overwrite=False):
                        destination.finish_removal(facts)
                destination.check_conflicts(open_outputs(plan, destination.folder))
            place.create(PLAN, _as_json(made))  # unless another planner was faster
            before = read_part_plan(place.out)
    _compare(before, made, parts)
    changed = replace(before, options=json.loads(json.dumps(kept)))
    if before.options != changed.options:
        place.replace(PLAN, _as_json(changed))
    return changed


def remove_all(place: Place, destination: Destination, facts: Facts, plan: Plan) -> None:
    """Remove an earlier dataset, and an earlier plan with its parts; with `--keep-parts` they have final files."""
    try:
        before = _read(place)
    except OutputError:
        before = None
    kept = destination.files_of(before.options.get("format"), before.name) if before and before.keep else []
    with destination.locked(overwrite=True):
        destination.remove_dataset(facts, open_outputs(plan, destination.folder), kept)
    place.clear()


def _divided(
    sources: Sources, count: int, starts: array[int], divisible: Callable[[Source], bool]
) -> Iterator[PartBounds]:
    """Yield parts of about equal size. A border lies inside a source only if that can be divided."""
    sizes = sources.sizes
    ends = array("q", accumulate(sizes))
    total = ends[-1] if ends else 0
    borders = [(0, 0)]
    index = 0
    for number in range(1, count):
        at = total * number // count
        while index < len(ends) and ends[index] <= at:
            index += 1
        inside = at - (ends[index] - sizes[index]) if index < len(ends) else 0
        if inside and not divisible(sources[index]):
            index, inside = (index, 0) if 2 * inside < sizes[index] else (index + 1, 0)
        if borders[-1] < (index, inside) < (len(sources), 0):
            borders.append((index, inside))
    borders.append((len(sources), 0))
    before = array("q", accumulate(sizes, initial=0))
    for number, ((first, byte), (last, end)) in enumerate(pairwise(borders)):
        size = before[last] + end - before[first] - byte
        yield PartBounds(number, first, byte, last, end, size, starts[first])


def _undivided(sources: Sources, size: int, divisible: Callable[[Source], bool]) -> list[str]:
    """Return the names of some sources larger than `size` that cannot be divided."""
    large = (sources[index] for index, bytes in enumerate(sources.sizes) if bytes > size)
    return [source.name for source in islice((one for one in large if not divisible(one)), _NAMED)]


def _can_be_entered(plan: Plan, keep_parts: bool, source: Source) -> bool:
    """Whether a part may begin inside a source: not inside a document, and with `keep_parts` not inside a stream."""
    format = source.input_format if source.input_format != "auto" else format_of(source.path) or "text"
    reading = Reading(separator=plan.options.separator_bytes, only_source=plan.only_source)
    whole = format == "text" and reading.separator is None and (keep_parts or not reading.is_stream(source))
    return INPUT_FORMATS[format].sectioned and not whole and not compression_of(source.path)


def finished_dataset(plan: Plan, out: str, parts: int | None, keep_parts: bool) -> Manifest | None:
    """Return the manifest of the dataset, or None. Raise MismatchError if it is of another plan."""
    return _finished(open_destination(out, plan.options.cache), facts_of(plan, _count(plan, parts) * keep_parts))


def _finished(destination: Destination, facts: Facts) -> Manifest | None:
    """Return the manifest of the dataset, or None. Raise MismatchError if it is of another plan."""
    if not destination.has_manifest():
        return None
    with destination.locked(overwrite=False):  # which fetches the plan of a dataset in a store, to say what differs
        return destination.finished(facts)


def facts_of(plan: Plan, keep: int) -> Facts:
    """Return everything that determines the bytes: with `--keep-parts`, also the number of parts."""
    facts = plan.facts()
    return {**facts, "options": {**facts["options"], "keep_parts": keep}} if keep else facts


def find_plan(sources: Any, out: str, options: Mapping[str, Any]) -> Plan:
    """Return the plan as for one machine."""
    specs, given = apply_recipes(arguments.paths("sources", sources), Options.typed(options))
    chosen = Options.of(given)
    destination = open_destination(out, chosen.cache)
    plan = make_plan(specs, chosen, destination, None if chosen.overwrite else recorded_facts(destination, out))
    if Val.parse(chosen.val).tail:
        check_tails(plan.sources)
    return plan


def recorded_facts(destination: Destination, out: str) -> Facts | None:
    """Return what an unfinished run there has recorded of its plan."""
    recorded = destination.recorded_plan()
    if recorded is None and (whole := find_part_plan(out)) is not None:
        recorded = whole.facts()
    return recorded


def _tokenizer(options: Options) -> Tokenizer:
    loaded = load_tokenizer(options.tokenizer, pattern=options.pattern, specials=options.specials)
    return loaded.with_delimiter(options.delimiter)


def _count(plan: Plan, parts: int | None) -> int:
    """Return the number of parts."""
    if plan.sources.total_bytes is None:
        raise UsageError("a stream cannot be cut into parts", hint="store it in a file first")
    if parts is not None and arguments.number("parts", parts, least=1) > _MOST_PARTS:
        raise UsageError(f"`parts` is {parts:,}, and a plan has at most {_MOST_PARTS:,}")
    return parts or max(1, round(plan.sources.total_bytes / PART_BYTES))


def _check_kept(plan: Plan) -> None:
    """Raise UsageError if the shards of parts cannot be those of the dataset."""
    options = plan.options
    single = [name for name in options.format if not format_named(name).sharded]
    val = Val.parse(options.val)
    for wrong, what, way in (
        (single, f"--format {''.join(single[:1])}", "it is one file a split: choose a format with shards"),
        (options.limit is not None, "--limit", "it counts across parts"),
        (val.first, f"--val first:{val.first}", "it counts across parts: choose a fraction"),
        (options.tail == "drop", "--tail drop", "it would drop the end of every part"),
    ):
        if wrong:
            raise UsageError(f"`--keep-parts` cannot be used with `{what}`", hint=way)


def find_part_plan(out: str | os.PathLike[str]) -> PartPlan | None:
    """Return the plan that is stored for a folder or URL, or None."""
    return _read(Place(arguments.path("out", out)))


def read_part_plan(out: str | os.PathLike[str]) -> PartPlan:
    """Return the plan that is stored for a folder or URL. Raise UsageError if there is none."""
    place = Place(arguments.path("out", out))
    plan = _read(place)
    if plan is None:
        raise UsageError("there is no plan here", hint=f"make one: `shardmill plan SOURCE… -o {place.out}`")
    return plan


def missing_parts(plan: PartPlan) -> list[int]:
    """Return the numbers of the parts that are still to be made."""
    there = plan.place.published()
    return [part.number for part in plan.parts if part_name(part.number) not in there]


def _read(place: Place) -> PartPlan | None:
    data = place.read(PLAN)
    if data is None:
        return None
    try:
        stored = json.loads(data)
        del stored["shardmill"]
        stored["parts"] = [PartBounds(*part) for part in stored["parts"]]
        return PartPlan(**{**stored, "out": place.out})
    except (ValueError, KeyError, TypeError) as why:
        raise OutputError("the plan cannot be read", place=f"{place.out}: {PLAN}") from why


def _as_json(plan: PartPlan) -> bytes:
    parts = [list(part) for part in plan.parts]
    return json.dumps({"shardmill": __version__, **asdict(plan), "parts": parts}).encode()


def _compare(before: PartPlan, now: PartPlan, parts: int | None) -> None:
    """Raise MismatchError if the stored plan is another one, or has other parts than were asked for."""
    other = before.fingerprint != now.fingerprint
    if other or (parts is not None and [p[:5] for p in before.parts] != [p[:5] for p in now.parts]):
        what = "other sources, options or tokenizer" if other else "other parts"
        raise MismatchError(
            f"there is a plan here already, with {what}",
            place=before.out,
            hint="use another folder, or start anew with `--overwrite`",
        )


def _write_sources(sources: Sources, file: IO[bytes]) -> tuple[array[int], str]:
    """Write the list of sources. Return the offset of each and of the end, and the SHA-256 of the file."""
    starts, at, digest = array("q"), 0, hashlib.sha256()
    for source in sources:
        if not source.remote:
            source = source._replace(path=os.path.abspath(source.path))
        elif source.path != source.name:
            raise UsageError(
                "the URL holds a secret, which is never written down, so other machines could not read it",
                place=source.name,
                hint="give them credentials in their environment",
            )
        starts.append(at)
        line = json.dumps(source).encode() + b"\n"
        digest.update(line)
        at += file.write(line)
    starts.append(at)
    return starts, digest.hexdigest()


def _read_sources(place: Place, name: str, start: int, end: int, count: int) -> Iterator[Source]:
    """Yield `count` sources from an offset in the list."""
    held = b""
    while count > 0 and (start < end or held):
        block = place.section(name, start, min(end, start + (1 << 20))).tobytes() if start < end else b""
        start += len(block)
        *lines, held = (held + block).split(b"\n")
        for line in lines[:count]:
            yield Source(*json.loads(line))
        count -= len(lines)
        if not block:
            return
