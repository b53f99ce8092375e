"""`report.html`: a dataset as one page that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import __version__, arguments
from shardmill.dataset import CACHE_SIZE, Dataset, open_dataset
from shardmill.errors import OutputError, UsageError
from shardmill.extras import needs
from shardmill.reporting import excerpts, figures
from shardmill.reporting.duplicates import Duplicates
from shardmill.reporting.findings import findings, made_by
from shardmill.reporting.survey import LEAST_TOKENS, OUTLIERS, ChosenDocument, SplitSurvey, survey, token_bytes
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
_OURS = '<meta name="generator" content="shardmill'


@dataclass(frozen=True)
class Surveyed:
    """A dataset and what was found in it."""

    data: Dataset
    sizes: NDArray[np.uint16]
    """Bytes of each token."""
    splits: list[SplitSurvey]
    rejects: excerpts.Rejects
    duplicates: Duplicates

    @property
    def tokens(self) -> int:
        return sum(found.tokens for found in self.splits)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each id occurs."""
        return np.asarray(sum(found.counts for found in self.splits))

    @property
    def text_bytes(self) -> int:
        return sum(self.data[split].described["bytes"] for split in self.data)

    def shown(self, split: str, documents: Sequence[ChosenDocument]) -> list[excerpts.Excerpt]:
        return [excerpts.excerpt(self.data, split, chosen, _SHOWN) for chosen in documents]


def report(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] = NAME,
    *,
    seed: int = 0,
    tokens: str | int = MOST,
    documents: int = 6,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
) -> Path:
    """Write a page about a dataset, and return its path.

    `cache`, `cache_size`: as for `open`. `tokens`: maximum number of tokens to read. `documents`: number of documents
    to draw per split, with `seed`. Raise UsageError, DamageError or OutputError if the call, the dataset or the output
    file is wrong.
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
    surveyed = _survey(open_dataset(folder, cache=cache, cache_size=cache_size), max_tokens, seed, documents)
    page, style, script = (
        resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "style.css", "script.js")
    )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": "{:,}".format, "bytes": show_bytes}
    text: str = environment.from_string(page).render(
        **_content(surveyed, seed, documents),
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


def _survey(data: Dataset, max_tokens: int, seed: int, draws: int) -> Surveyed:
    sizes = token_bytes(data.tokenizer)
    total = max(1, sum(len(data[split]) for split in data))
    # Each split gets its share of what may be read, and a small one is read whole.
    shares = {
        split: max(min(len(data[split]), max_tokens // 10), max_tokens * len(data[split]) // total) for split in data
    }
    duplicates = Duplicates(list(data))
    splits = [
        survey(
            data, split, sizes, duplicates, max_tokens=max(1, shares[split]), seed=seed, draws=draws, outliers=_OUTLIERS
        )
        for split in data
    ]
    return Surveyed(data, sizes, splits, excerpts.rejects(data), duplicates)


def _content(surveyed: Surveyed, seed: int, draws: int) -> dict[str, Any]:
    """The content of the page."""
    manifest = surveyed.data.manifest
    sources, plot = figures.sources(manifest)
    frequent, longest = _token_tables(surveyed)
    return {
        "title": surveyed.data.folder.resolve().name,
        "surveyed": surveyed,
        "manifest": manifest,
        "wrong": list(findings(surveyed)),
        "command": made_by(surveyed.data),
        "totals": _totals(surveyed),
        "facts": _facts(surveyed),
        "sampled": list(_sampled(surveyed)),
        "plots": figures.figures(surveyed.splits, manifest["tokenizer"]["vocab_size"]) + ([plot] if plot else []),
        "frequent": frequent,
        "longest": longest,
        "seed": seed,
        "least": LEAST_TOKENS,
        "sources": sources,
        "drawn": [(found.name, _drawn(surveyed, found, seed, draws)) for found in surveyed.splits if found.tokens],
        "outliers": _outliers(surveyed),
    }


def _outliers(surveyed: Surveyed) -> list[tuple[str, list[tuple[str, excerpts.Excerpt]]]]:
    """Documents by what is unusual in them, each with its split."""
    outliers = []
    for kind in OUTLIERS:
        some = [
            (found.name, one)
            for found in surveyed.splits
            for one in surveyed.shown(found.name, found.outliers.get(kind, ()))
        ]
        if some:
            outliers.append((kind, some))
    return outliers


def _drawn(surveyed: Surveyed, found: SplitSurvey, seed: int, draws: int) -> list[excerpts.Excerpt]:
    """Documents of a split, or stretches of tokens where nothing separates documents."""
    if found.separated:
        return surveyed.shown(found.name, found.random)
    starts = np.random.default_rng(seed).integers(0, max(1, found.tokens - _SHOWN), draws)
    return [excerpts.stretch(surveyed.data, found.name, start, _SHOWN) for start in np.unique(starts).tolist()]


def _facts(surveyed: Surveyed) -> dict[str, str]:
    manifest, data = surveyed.data.manifest, surveyed.data
    files = [file for split in data for file in data[split].described["files"]]
    facts = {
        "empty documents": f"{manifest.get('empty', 0):,}",
        "repeated documents": _repeated(surveyed),
        "invalid UTF-8 replaced": f"{manifest.get('replaced', 0):,}",
        "tokenizer": str(manifest["tokenizer"]["name"]),
        "vocabulary": f"{manifest['tokenizer']['vocab_size']:,}",
        "vocabulary used": f"{int((surveyed.counts > 0).sum()):,}",
        "sources": f"{len(manifest['sources']):,}",
        "format": data.format,
        "token type": str(data.dtype),
        "end-of-text token": "none" if data.eot == "none" else f"{data.eot} documents",
        "files": f"{len(files):,}",
        "size on disk": show_bytes(sum(file["bytes"] for file in files)),
    }
    return facts | {"fingerprint": str(manifest["fingerprint"])[:12]}


def _repeated(surveyed: Surveyed) -> str:
    about = "" if surveyed.duplicates.exact else "about "
    return about + ", ".join(
        f"{surveyed.duplicates.repeated(found.name):,} in {found.name}" for found in surveyed.splits if found.tokens
    )


def _totals(surveyed: Surveyed) -> str:
    """How the tokens are made up, in a sentence; empty if not all were counted."""
    data = surveyed.data
    if data.eot == "none" or data.eot_id is None or any(found.sampled for found in surveyed.splits):
        return ""
    ends = int(surveyed.counts[data.eot_id])
    return (
        f"{surveyed.tokens:,} tokens are {surveyed.tokens - ends:,} of text and {ends:,} end-of-text tokens. "
        "Tokens of a source are counted without the latter."
    )


def _token_tables(surveyed: Surveyed) -> list[list[tuple[excerpts.Token, int, float, int]]]:
    """The most frequent tokens, and the longest that occur: (token, count, share, bytes)."""
    counts, sizes = surveyed.counts, surveyed.sizes
    total = max(1, int(counts.sum()))
    tables = []
    for order in (counts, sizes.astype(np.int64) * (counts > 0)):
        ids = (-order).argsort(kind="stable")[:_TOP]
        shown = excerpts.tokens_of(surveyed.data.tokenizer, ids[counts[ids] > 0])
        tables.append([(one, int(counts[one.id]), counts[one.id] / total, int(sizes[one.id])) for one in shown])
    return tables


def _sampled(surveyed: Surveyed) -> Iterator[str]:
    """What was not read, in sentences."""
    for found in surveyed.splits:
        if found.sampled:
            yield (
                f"{found.name}: a sample of {found.tokens_read:,} of {found.tokens:,} tokens "
                f"({found.tokens_read / found.tokens:.1%}) was read. The plots, token tables and documents come "
                "from the sample; the totals are those of the whole dataset."
            )
    if surveyed.rejects.read < surveyed.rejects.total:
        yield f"{surveyed.rejects.read:,} of {surveyed.rejects.total:,} rejects were read."
