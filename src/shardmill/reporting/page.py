"""`report.html`: a dataset, or two side by side, as one page that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import __version__, arguments
from shardmill.dataset import Dataset, open_dataset
from shardmill.errors import OutputError, UsageError
from shardmill.extras import needs
from shardmill.options import Options
from shardmill.reporting import excerpts, figures
from shardmill.reporting.survey import LEAST_TOKENS, OUTLIERS, SplitSurvey, survey, token_bytes
from shardmill.run import read_record
from shardmill.storage import write_whole
from shardmill.units import parse_count, show_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "report.html"
MOST = "2B"
"""Tokens that are read; a larger dataset is sampled."""
_SHOWN = 300  # tokens of a document that are shown; the page has a hundred times as many bytes
_OUTLIERS = 2  # documents of each kind of outlier
_TOP = 30  # tokens in each table of tokens
_OPTIONS = ("val", "seed", "separator", "text_field", "input_format", "limit", "specials", "eot", "tail")
_OURS = '<meta name="generator" content="shardmill'


@dataclass(frozen=True)
class Side:
    """One dataset and what was found in it."""

    name: str
    data: Dataset
    sizes: NDArray[np.uint16]
    """Bytes of each token."""
    splits: list[SplitSurvey]
    whole: SplitSurvey
    rejects: excerpts.Rejects


def report(
    folder: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = NAME,
    *,
    seed: int = 0,
    tokens: str | int = MOST,
    documents: int = 6,
) -> Path:
    """Write a page about a dataset, or about two side by side, and return its path.

    `tokens`: how many are read of each at the most. `documents`: how many of each split are drawn, with the `seed`.
    UsageError, DamageError and OutputError say what is wrong with the call, the dataset and the place of the page.
    """
    jinja2 = needs("jinja2", "report", "a report")
    if "://" in arguments.path("out", out):
        raise UsageError("a page is written to a file of this machine only", place=os.fspath(out))
    path = Path(out)
    seed, documents = arguments.number("seed", seed, 0), arguments.number("documents", documents, 1)
    most = parse_count(arguments.amount("tokens", tokens))
    if most < 1:
        raise UsageError("`tokens` is 0, and at least 1 is needed")
    _check_place(path)
    folders = [folder] if other is None else [folder, other]
    names = _names([Path(arguments.path("folder", one)) for one in folders])
    sides = [_side(name, open_dataset(one), most, seed, documents) for name, one in zip(names, folders, strict=True)]
    parts = {name: _part(name) for name in ("page.html", "style.css", "script.js")}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text: str = environment.from_string(parts["page.html"]).render(
        **_content(sides, seed, documents),
        style=parts["style.css"],
        script=parts["script.js"],
        # Even text that slipped through the escaping could not run: only this script may.
        script_hash=base64.b64encode(hashlib.sha256(parts["script.js"].encode()).digest()).decode(),
        version=__version__,
        show_bytes=show_bytes,
    )
    write_whole(path, text.encode("utf-8", "replace"))
    return path


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _check_place(path: Path) -> None:
    """OutputError when a file of another making is there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as there:
            ours = _OURS in there.read(1000)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        ours = False
    if not ours:
        raise OutputError(
            "the file that is there is not a shardmill report", place=str(path), hint="choose another file with `-o`"
        )


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names; where both have the same one, their paths."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _side(name: str, data: Dataset, most: int, seed: int, draws: int) -> Side:
    sizes = token_bytes(data.tokenizer)
    total = max(1, sum(len(data[split]) for split in data))
    # Each split gets its share of what may be read, a small one is read whole.
    shares = {split: max(min(len(data[split]), most // 10), most * len(data[split]) // total) for split in data}
    splits = [
        survey(data, split, sizes, most=max(1, shares[split]), seed=seed, draws=draws, outliers=_OUTLIERS)
        for split in data
    ]
    return Side(name, data, sizes, splits, figures.joined(name, splits), excerpts.rejects(data))


def _content(sides: list[Side], seed: int, draws: int) -> dict[str, Any]:
    """What the page is filled with; two datasets have no outliers, sources and run, but the same documents."""
    first, alone = sides[0], len(sides) == 1
    facts = [dict(_facts(side)) for side in sides]
    values = {
        name: [one.get(name, "–") for one in facts] for name in dict.fromkeys(name for one in facts for name in one)
    }
    drawn = [(found.name, found) for found in first.splits] if alone else [(side.name, side.whole) for side in sides]
    plots = figures.figures(drawn, first.data.manifest["tokenizer"]["vocab_size"])
    plot, rows, others = figures.sources(first.data.manifest) if alone else (None, [], 0)
    return {
        "title": " and ".join(side.name for side in sides),
        "sides": sides,
        "cards": _cards(first) if alone else [],
        "facts": [(name, some, len(set(some)) > 1) for name, some in values.items()],
        "sampled": _sampled(sides),
        "plots": [*plots, plot] if plot else plots,
        "splits": [(side.name, [_split_row(side, found) for found in side.splits]) for side in sides],
        "sources": (rows, others),
        "tokens_of_sides": [(side.name, *_token_tables(side)) for side in sides],
        "drawn": [(found.name, _drawn(first, found, seed, draws)) for found in first.splits if alone and found.tokens],
        "pairs": [] if alone else _pairs(sides, draws),
        "outliers": _outliers(first) if alone else [],
        "run": figures.run_figures(read_record(first.data.folder)) if alone else [],
        "seed": seed,
        "least": LEAST_TOKENS,
    }


def _outliers(side: Side) -> list[tuple[str, list[tuple[str, excerpts.Excerpt]]]]:
    """Documents by what is unusual in them, each with its split."""
    outliers = {
        kind: [
            (found.name, excerpts.excerpt(side.data, found.name, seen, _SHOWN))
            for found in side.splits
            for seen in found.outliers.get(kind, ())
        ]
        for kind in OUTLIERS
    }
    return [(kind, some) for kind, some in outliers.items() if some]


def _pairs(sides: list[Side], draws: int) -> list[tuple[str, list[tuple[excerpts.Excerpt, excerpts.Excerpt | None]]]]:
    """Documents of the first dataset, each with the same one in the second."""
    one, other = sides
    pairs = []
    for found in one.splits:
        some = []
        for seen in found.random[:draws]:
            there = excerpts.counterpart(one.data, other.data, other.sizes, found.name, seen)
            mine = excerpts.excerpt(one.data, found.name, seen, _SHOWN)
            theirs = excerpts.excerpt(other.data, found.name, there, _SHOWN) if there else None
            some.append((mine, theirs))
        if some:
            pairs.append((found.name, some))
    return pairs


def _drawn(side: Side, found: SplitSurvey, seed: int, draws: int) -> list[excerpts.Excerpt]:
    if found.separated:
        return [excerpts.excerpt(side.data, found.name, seen, _SHOWN) for seen in found.random]
    starts = np.random.default_rng(seed).integers(0, max(1, found.tokens - _SHOWN), draws)
    return [excerpts.stretch(side.data, found.name, start, _SHOWN) for start in np.unique(starts).tolist()]


def _cards(side: Side) -> list[tuple[str, str]]:
    """The figures that stand large at the top."""
    manifest, tokens, text = side.data.manifest, side.whole.tokens, _text_bytes(side)
    cards = [("tokens", f"{tokens:,}"), ("documents", f"{manifest['documents']:,}")]
    cards += [("of text", show_bytes(text))] if text else []
    cards += [("bytes per token", f"{text / tokens:.2f}")] if text and tokens else []
    cards.append(("rejected", f"{manifest['rejected']:,}"))
    return cards


def _text_bytes(side: Side) -> int:
    return sum(side.data[split].described["bytes"] for split in side.data)


def _facts(side: Side) -> list[tuple[str, str]]:
    manifest, data = side.data.manifest, side.data
    tokens, text = side.whole.tokens, _text_bytes(side)
    files = [file for split in data for file in data[split].described["files"]]
    used = int((side.whole.counts > 0).sum())
    options = manifest["options"]
    facts = [
        ("tokens", f"{tokens:,}"),
        ("documents", f"{manifest['documents']:,}"),
        ("empty documents", f"{manifest.get('empty', 0):,}"),
        ("rejected documents", f"{manifest['rejected']:,}"),
        ("bytes of text", f"{text:,}" if text or not tokens else "unknown"),
        ("bytes per token", f"{text / tokens:.3f}" if text and tokens else "–"),
        ("invalid UTF-8 replaced", f"{manifest.get('replaced', 0):,}"),
        ("tokenizer", str(manifest["tokenizer"]["name"])),
        ("vocabulary", f"{manifest['tokenizer']['vocab_size']:,}"),
        ("vocabulary used", f"{used:,}"),
        ("sources", f"{len(manifest['sources']):,}"),
        ("format", data.format),
        ("token type", str(data.dtype)),
        ("end-of-text token", "none" if data.eot == "none" else f"{data.eot} documents"),
        ("files", f"{len(files):,}"),
        ("size on disk", show_bytes(sum(file["bytes"] for file in files))),
    ]
    usual = {field.name: field.default for field in fields(Options)}
    shown = [
        name for name in _OPTIONS if options.get(name) is not None and (name == "val" or options[name] != usual[name])
    ]
    facts += [(f"--{name.replace('_', '-')}", str(options[name])) for name in shown]
    return [*facts, ("fingerprint", str(manifest["fingerprint"])[:12])]


def _split_row(side: Side, found: SplitSurvey) -> tuple[str, ...]:
    text = side.data[found.name].described["bytes"]
    half, most = (f"{found.quantile(share):,}" if found.seen else "–" for share in (0.5, 0.95))
    return (
        found.name,
        f"{found.documents:,}",
        f"{found.tokens:,}",
        show_bytes(text) if text else "–",
        f"{text / found.tokens:.2f}" if text and found.tokens else "–",
        half,
        most,
    )


def _token_tables(side: Side) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The most frequent tokens, and the longest that occur: (token, count, share)."""
    counts = side.whole.counts
    total = max(1, int(counts.sum()))
    sizes = side.sizes
    frequent = (-counts).argsort(kind="stable")[:_TOP]
    longest = (-(sizes.astype("int64") * (counts > 0))).argsort(kind="stable")[:_TOP]
    tables = []
    for ids in (frequent, longest):
        ids = ids[counts[ids] > 0]
        shown = excerpts.tokens_of(side.data.tokenizer, ids)
        tables.append(
            [(one, f"{counts[one.id]:,}", f"{counts[one.id] / total:.2%}", int(sizes[one.id])) for one in shown]
        )
    return tables[0], tables[1]


def _sampled(sides: Sequence[Side]) -> list[str]:
    """What was not read, in sentences."""
    said = []
    for side in sides:
        for found in side.splits:
            if found.sampled:
                share = found.looked / found.tokens
                said.append(
                    f"{side.name}, {found.name}: a sample of {found.looked:,} of {found.tokens:,} tokens "
                    f"({share:.1%}) was read. The plots, token tables and documents come from the sample; the totals "
                    "are those of the whole dataset."
                )
        if side.rejects.read < side.rejects.total:
            said.append(f"{side.name}: {side.rejects.read:,} of {side.rejects.total:,} rejects were read.")
    return said
