"""`report.html`: a dataset, or two side by side, as one page that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
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
from shardmill.reporting.survey import LEAST_TOKENS, OUTLIERS, ChosenDocument, SplitSurvey, joined, survey, token_bytes
from shardmill.run import read_record
from shardmill.storage import write_whole
from shardmill.units import parse_count, show_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME = "report.html"
MOST = "2B"
"""Tokens that are read; a larger dataset is sampled."""
_SHOWN = 300  # tokens of a document that are shown; each takes about a hundred bytes of the page
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
    """All splits together."""
    rejects: excerpts.Rejects

    @property
    def text_bytes(self) -> int:
        return sum(self.data[split].described["bytes"] for split in self.data)

    def shown(self, split: str, documents: Sequence[ChosenDocument]) -> list[excerpts.Excerpt]:
        return [excerpts.excerpt(self.data, split, chosen, _SHOWN) for chosen in documents]


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

    `tokens`: maximum number of tokens to read per dataset. `documents`: number of documents to draw per split, with
    `seed`. Raise UsageError, DamageError or OutputError if the call, the dataset or the output file is wrong.
    """
    jinja2 = needs("jinja2", "report", "a report")
    if "://" in arguments.path("out", out):
        raise UsageError("a page is written to a file of this machine only", place=os.fspath(out))
    path = Path(out)
    seed, documents = arguments.number("seed", seed, 0), arguments.number("documents", documents, 1)
    max_tokens = parse_count(arguments.amount("tokens", tokens))
    if max_tokens < 1:
        raise UsageError("`tokens` is 0, and at least 1 is needed")
    _check_place(path)
    folders = [folder] if other is None else [folder, other]
    names = _names([Path(arguments.path("folder", one)) for one in folders])
    sides = [
        _side(name, open_dataset(one), max_tokens, seed, documents) for name, one in zip(names, folders, strict=True)
    ]
    page, style, script = (
        resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "style.css", "script.js")
    )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": "{:,}".format, "bytes": show_bytes}
    text: str = environment.from_string(page).render(
        **_content(sides, seed, documents),
        style=style,
        script=script,
        # Even text that slipped through the escaping could not run: only this script may.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )
    write_whole(path, text.encode("utf-8", "replace"))
    return path


def _check_place(path: Path) -> None:
    """Raise OutputError if there is a file that is not a report."""
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
    """The folders' names; their paths where both have the same name."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _side(name: str, data: Dataset, max_tokens: int, seed: int, draws: int) -> Side:
    sizes = token_bytes(data.tokenizer)
    total = max(1, sum(len(data[split]) for split in data))
    # Each split gets its share of what may be read, and a small one is read whole.
    shares = {
        split: max(min(len(data[split]), max_tokens // 10), max_tokens * len(data[split]) // total) for split in data
    }
    splits = [
        survey(data, split, sizes, max_tokens=max(1, shares[split]), seed=seed, draws=draws, outliers=_OUTLIERS)
        for split in data
    ]
    return Side(name, data, sizes, splits, joined(name, splits), excerpts.rejects(data))


def _content(sides: list[Side], seed: int, draws: int) -> dict[str, Any]:
    """The content of the page. Two datasets have no outliers, sources and run, but the same documents in pairs."""
    first, alone = sides[0], len(sides) == 1
    manifest = first.data.manifest
    drawn = [(found.name, found) for found in first.splits] if alone else [(side.name, side.whole) for side in sides]
    plots = figures.figures(drawn, manifest["tokenizer"]["vocab_size"])
    content: dict[str, Any] = {
        "title": " and ".join(side.name for side in sides),
        "sides": sides,
        "alone": alone,
        "facts": _facts(sides),
        "sampled": list(_sampled(sides)),
        "plots": plots,
        "tokens_of_sides": [(side.name, *_token_tables(side)) for side in sides],
        "seed": seed,
        "least": LEAST_TOKENS,
        **dict.fromkeys(("sources", "drawn", "pairs", "outliers", "run"), ()),
    }
    if not alone:
        pairs = [(found.name, _pairs(first, sides[1], found, draws)) for found in first.splits]
        return content | {"pairs": [(split, some) for split, some in pairs if some]}
    sources, plot = figures.sources(manifest)
    return content | {
        "plots": [*plots, plot] if plot else plots,
        "sources": sources,
        "drawn": [(found.name, _drawn(first, found, seed, draws)) for found in first.splits if found.tokens],
        "outliers": _outliers(first),
        "run": figures.run_figures(read_record(first.data.folder)),
    }


def _outliers(side: Side) -> list[tuple[str, list[tuple[str, excerpts.Excerpt]]]]:
    """Documents by what is unusual in them, each with its split."""
    outliers = []
    for kind in OUTLIERS:
        some = [
            (found.name, one) for found in side.splits for one in side.shown(found.name, found.outliers.get(kind, ()))
        ]
        if some:
            outliers.append((kind, some))
    return outliers


def _pairs(
    one: Side, other: Side, found: SplitSurvey, draws: int
) -> list[tuple[excerpts.Excerpt, excerpts.Excerpt | None]]:
    """Documents of a split of the first dataset, each with the same document in the second."""
    pairs = []
    for chosen in found.random[:draws]:
        there = excerpts.counterpart(one.data, other.data, other.sizes, found.name, chosen)
        theirs = other.shown(found.name, [there])[0] if there else None
        pairs.append((one.shown(found.name, [chosen])[0], theirs))
    return pairs


def _drawn(side: Side, found: SplitSurvey, seed: int, draws: int) -> list[excerpts.Excerpt]:
    """Documents of a split, or stretches of tokens where nothing separates documents."""
    if found.separated:
        return side.shown(found.name, found.random)
    starts = np.random.default_rng(seed).integers(0, max(1, found.tokens - _SHOWN), draws)
    return [excerpts.stretch(side.data, found.name, start, _SHOWN) for start in np.unique(starts).tolist()]


def _facts(sides: list[Side]) -> list[tuple[str, list[str], bool]]:
    """The table of facts: name, the value of each side, and whether they differ."""
    facts = [_facts_of(side) for side in sides]
    names = dict.fromkeys(name for one in facts for name in one)
    rows = [(name, [one.get(name, "–") for one in facts]) for name in names]
    return [(name, values, len(set(values)) > 1) for name, values in rows]


def _facts_of(side: Side) -> dict[str, str]:
    manifest, data = side.data.manifest, side.data
    tokens, text = side.whole.tokens, side.text_bytes
    files = [file for split in data for file in data[split].described["files"]]
    facts = {
        "tokens": f"{tokens:,}",
        "documents": f"{manifest['documents']:,}",
        "empty documents": f"{manifest.get('empty', 0):,}",
        "rejected documents": f"{manifest['rejected']:,}",
        "bytes of text": f"{text:,}" if text or not tokens else "unknown",
        "bytes per token": f"{text / tokens:.3f}" if text and tokens else "–",
        "invalid UTF-8 replaced": f"{manifest.get('replaced', 0):,}",
        "tokenizer": str(manifest["tokenizer"]["name"]),
        "vocabulary": f"{manifest['tokenizer']['vocab_size']:,}",
        "vocabulary used": f"{int((side.whole.counts > 0).sum()):,}",
        "sources": f"{len(manifest['sources']):,}",
        "format": data.format,
        "token type": str(data.dtype),
        "end-of-text token": "none" if data.eot == "none" else f"{data.eot} documents",
        "files": f"{len(files):,}",
        "size on disk": show_bytes(sum(file["bytes"] for file in files)),
    }
    defaults = {field.name: field.default for field in fields(Options)}
    for name in _OPTIONS:
        value = manifest["options"].get(name)
        if value is not None and (name == "val" or value != defaults[name]):
            facts[f"--{name.replace('_', '-')}"] = str(value)
    return facts | {"fingerprint": str(manifest["fingerprint"])[:12]}


def _token_tables(side: Side) -> list[list[tuple[excerpts.Token, int, float, int]]]:
    """The most frequent tokens, and the longest that occur: (token, count, share, bytes)."""
    counts, sizes = side.whole.counts, side.sizes
    total = max(1, int(counts.sum()))
    tables = []
    for order in (counts, sizes.astype(np.int64) * (counts > 0)):
        ids = (-order).argsort(kind="stable")[:_TOP]
        shown = excerpts.tokens_of(side.data.tokenizer, ids[counts[ids] > 0])
        tables.append([(one, int(counts[one.id]), counts[one.id] / total, int(sizes[one.id])) for one in shown])
    return tables


def _sampled(sides: Sequence[Side]) -> Iterator[str]:
    """What was not read, in sentences."""
    for side in sides:
        for found in side.splits:
            if found.sampled:
                yield (
                    f"{side.name}, {found.name}: a sample of {found.tokens_read:,} of {found.tokens:,} tokens "
                    f"({found.tokens_read / found.tokens:.1%}) was read. The plots, token tables and documents come "
                    "from the sample; the totals are those of the whole dataset."
                )
        if side.rejects.read < side.rejects.total:
            yield f"{side.name}: {side.rejects.read:,} of {side.rejects.total:,} rejects were read."
