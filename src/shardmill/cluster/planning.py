"""A plan cut into contiguous parts, each of which any machine can make by itself."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardmill import __version__, arguments
from shardmill.cluster.dividing import PartBounds, divided, undivided_sources
from shardmill.cluster.place import PLAN, Place, part_name, place_of
from shardmill.cluster.rows_output import RowsOutput
from shardmill.documents import Bounds, check_tails
from shardmill.errors import MismatchError, OutputError, UsageError
from shardmill.options import Options, Val
from shardmill.run import Facts, Plan, dataset_files, fingerprint, open_destination, open_outputs
from shardmill.shards import SPLITS, Output, format_named
from shardmill.sources import apply_recipes, find_sources
from shardmill.storage import Source, Sources, writing_temporary_files
from shardmill.tokens import Tokenizer, load_tokenizer

PART_BYTES = 4 << 30
"""Bytes of the sources in a part, by default; `docs/scale.md` says why."""
_MOST_PARTS, _MOST_FILES = 100_000, 1_000_000  # of a plan, and of a split of a part
_SOURCES = "sources.jsonl"


@dataclass(frozen=True)
class PartPlan:
    """What is to be done, and how it is divided."""

    out: str
    options: dict[str, Any]
    """Of `prepare`, as they were given."""
    fingerprint: str
    """Of the whole plan, as the manifest will have it."""
    sources: int
    bytes: int
    lines: int
    """Bytes of the list of sources."""
    parts: list[PartBounds]
    undivided: list[str]
    """Some sources that are larger than a part should be, and cannot be entered in their middle."""
    name: str = ""
    """Prefix of shard names."""
    keep: int = 0
    """With `--keep-parts`, the number of parts that was asked for; 0: parts hold rows, to be merged."""

    @cached_property
    def place(self) -> Place:
        return place_of(self.out)

    def load(
        self, part: PartBounds | None, settings: Mapping[str, Any], tokenizer: Tokenizer | None = None
    ) -> tuple[Plan, Bounds]:
        """The plan with the sources of a part, and what of these is in it; None: with all.

        `settings`: options of `prepare` that do not change the bytes. `tokenizer`: that of the plan, if it is loaded.
        """
        bounds = part or PartBounds(-1, 0, 0, self.sources, 0, self.bytes, 0)
        wanted = bounds.last + (bounds.end > 0) - bounds.first
        sources = Sources(_read_sources(self.place, bounds.line, self.lines, wanted))
        if len(sources) != wanted:
            raise OutputError("the list of sources is damaged", place=f"{self.out}: {_SOURCES}")
        options = Options.of({**self.options, **settings})
        plan = Plan(sources, tokenizer or _tokenizer(options), options)
        return plan, Bounds(0, bounds.byte, bounds.last - bounds.first, bounds.end)

    def open_part(self, number: int, plan: Plan, folder: Path) -> list[Output]:
        """What a part writes: rows to be merged, or its own shards, whose numbers follow those of the parts before."""
        outputs = open_outputs(plan, folder, name=self.name, first=(_MOST_PARTS + number) * _MOST_FILES)
        if not self.keep:
            return [RowsOutput(folder, plan.tokenizer.dtype, eot) for eot in dict.fromkeys(one.eot for one in outputs)]
        for output in outputs:  # what a whole split has besides comes with the merge
            output.only = {split: range(_MOST_FILES) for split in SPLITS}
        return outputs


def plan_parts(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    parts: int | None = None,
    keep_parts: bool = False,
    **options: Any,
) -> PartPlan:
    """Write down how a run is divided into parts; the keywords are the options of `prepare`.

    `keep_parts`: the shards of the parts will be those of the dataset. The same call again changes nothing;
    MismatchError when the folder has another plan, or a dataset of one.
    """
    out = arguments.path("out", out)
    plan, given = _find_plan(sources, out, options)
    found, total, count = plan.sources, plan.sources.total_bytes or 0, _count(plan, parts)
    keep = count if keep_parts else 0
    if keep:
        _check_kept(plan)
    place, destination, facts = place_of(out), open_destination(out), facts_of(plan, keep)
    destination.finished(facts)
    whole_texts = keep_parts and plan.options.separator is None
    kept = {name: value for name, value in given.items() if name not in ("memory", "workers", "overwrite", "recipe")}
    with writing_temporary_files(), tempfile.TemporaryDirectory(prefix="shardmill-") as folder:
        listed = Path(folder) / _SOURCES
        starts = _write_sources(found, listed)
        made = PartPlan(
            place.out, kept, fingerprint(facts), len(found), total, starts[-1],
            list(divided(found, count, starts, whole_texts)), undivided_sources(found, total // count, whole_texts),
            plan.name, keep,
        )  # fmt: skip
        before = _read(place)
        if before is not None:
            _compare(before, made)
            return before
        place.create(_SOURCES, listed)
        if keep:  # where files are merged, the merge looks
            destination.check_foreign(open_outputs(plan, destination.folder))
        written = Path(folder) / PLAN
        data = {"shardmill": __version__, **asdict(made), "parts": [list(part) for part in made.parts]}
        written.write_text(json.dumps(data))
        place.create(PLAN, written)
    return _read(place) or made


def finished_parts(
    sources: Any, out: str, parts: int | None, keep_parts: bool, options: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The manifest of the dataset, if there is one; MismatchError for one of another plan."""
    plan, _ = _find_plan(sources, out, options)
    return open_destination(out).finished(facts_of(plan, _count(plan, parts) if keep_parts else 0))


def facts_of(plan: Plan, keep: int) -> Facts:
    """All that the bytes are a function of: with `--keep-parts`, of the number of parts too."""
    facts = plan.facts()
    return {**facts, "options": {**facts["options"], "keep_parts": keep}} if keep else facts


def _find_plan(sources: Any, out: str, options: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The plan of one machine, and the options as they were given."""
    specs, given = apply_recipes(arguments.paths("sources", sources), Options.typed(options))
    chosen = Options.of(given)
    found = find_sources(specs, chosen.input_format, {}, chosen.cache, out=out, owned=dataset_files)
    if Val.parse(chosen.val).tail:
        check_tails(found)
    return Plan(found, _tokenizer(chosen), chosen), given


def _tokenizer(options: Options) -> Tokenizer:
    loaded = load_tokenizer(options.tokenizer, pattern=options.pattern, specials=options.specials)
    return loaded.with_delimiter(options.delimiter)


def _count(plan: Plan, parts: int | None) -> int:
    """How many parts there should be."""
    if plan.sources.total_bytes is None:
        raise UsageError("a stream cannot be cut into parts", hint="store it in a file first")
    if parts is not None and arguments.number("parts", parts, least=1) > _MOST_PARTS:
        raise UsageError(f"`parts` is {parts:,}, and a plan has at most {_MOST_PARTS:,}")
    return parts or max(1, round(plan.sources.total_bytes / PART_BYTES))


def _check_kept(plan: Plan) -> None:
    """UsageError where the shards of parts cannot be those of the dataset."""
    options = plan.options
    single = [name for name in options.format if not format_named(name).sharded]
    val = Val.parse(options.val)
    for wrong, what, way in (
        (single, f"--format {''.join(single[:1])}", "it is one file a split: choose a format with shards"),
        (options.limit is not None, "--limit", "it counts across parts"),
        (val.first, f"--val first:{val.first}", "it counts across parts: choose a fraction"),
        (options.tail == "drop", "--tail drop", "it would drop the end of every part: `keep` or `merge`"),
    ):
        if wrong:
            raise UsageError(f"`--keep-parts` cannot be used with `{what}`", hint=way)


def find_part_plan(out: str | os.PathLike[str]) -> PartPlan | None:
    """The plan that was written for a folder or a URL; None: there is none."""
    return _read(place_of(arguments.path("out", out)))


def read_part_plan(out: str | os.PathLike[str]) -> PartPlan:
    """The same; UsageError when there is none."""
    place = place_of(arguments.path("out", out))
    plan = _read(place)
    if plan is None:
        raise UsageError("there is no plan here", hint=f"make one: `shardmill plan SOURCE… -o {place.out}`")
    return plan


def missing_parts(plan: PartPlan) -> list[int]:
    """The numbers of the parts that are still to be made."""
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


def _compare(before: PartPlan, now: PartPlan) -> None:
    if before.fingerprint != now.fingerprint or [p[:5] for p in before.parts] != [p[:5] for p in now.parts]:
        what = "other parts" if before.fingerprint == now.fingerprint else "other sources, options or tokenizer"
        raise MismatchError(
            f"there is a plan here already, with {what}",
            place=before.out,
            hint="use another folder, or remove `.parts` there to begin again",
        )


def _write_sources(sources: Sources, path: Path) -> array[int]:
    """Write all down; gives where each stands, and where the list ends."""
    starts, at = array("q"), 0
    with open(path, "wb") as file:
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
            at += file.write(json.dumps(source).encode() + b"\n")
    starts.append(at)
    return starts


def _read_sources(place: Place, start: int, end: int, count: int) -> Iterator[Source]:
    """So many sources from a place in the list on."""
    held = b""
    while count > 0 and (start < end or held):
        block = place.section(_SOURCES, start, min(end, start + (1 << 20))).tobytes() if start < end else b""
        start += len(block)
        *lines, held = (held + block).split(b"\n")
        for line in lines[:count]:
            yield Source(*json.loads(line))
        count -= len(lines)
        if not block:
            return
