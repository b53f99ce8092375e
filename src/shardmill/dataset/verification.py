"""Check that a dataset is what its manifest says: every byte is read once, in bounded memory, at the disk's speed."""

from __future__ import annotations

import hashlib
import os
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import arguments
from shardmill.dataset.compare import compare_sources
from shardmill.dataset.dataset import Dataset, document_index, row_size, tokenizer_of
from shardmill.dataset.places import CACHE_SIZE, open_place
from shardmill.dataset.scans import TableScan, TokenScan
from shardmill.documents import SPAN
from shardmill.errors import DamageError, MismatchError, UsageError
from shardmill.shards import (
    SPLITS,
    TableIndex,
    format_named,
    unlisted_files,
)
from shardmill.storage import AnyPath, FolderStore, file_blocks, public_url
from shardmill.tokens import Tokenizer
from shardmill.units import plural, show_bytes, show_seconds
from shardmill.write import (
    MANIFEST,
    Destination,
    OtherFile,
    OutputEntry,
    SplitEntry,
    check_source,
    each_output,
    fingerprint,
    read_manifest,
    tables_in,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 4 << 20
_FILES_SHOWN = 10  # files that are not in the manifest
_LONGEST = 1 << 20  # tokens of a document that a sample encodes again; the library takes a second for a few megabytes


@dataclass
class Report:
    """What was checked, and what is wrong."""

    folder: str
    files: int = 0
    bytes: int = 0
    tokens: int = 0
    documents: int = 0
    sampled: int = 0
    compared: bool = False
    """The sources were read again, and gave the same tokens."""
    notes: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        """The report as text."""
        checked = [
            f"{plural(self.files, 'file')}, {show_bytes(self.bytes)}: sizes and sha256",
            f"{plural(self.tokens, 'token')} of {plural(self.documents, 'document')}: counts, ids and EOT",
        ]
        checked += (
            [f"{plural(self.sampled, 'document')} encoded again by the tokenizer's own library"] if self.sampled else []
        )
        checked += ["the sources, read again, give the same tokens"] if self.compared else []
        verdict = f"{self.folder} is complete and undamaged" if not self.damage else f"{self.folder} is damaged"
        lines = [f"  checked: {line}" for line in checked] + [f"  note:    {line}" for line in self.notes]
        return "\n".join(
            [f"{verdict} ({show_seconds(self.seconds)})", *lines, *[f"  damage:  {d}" for d in self.damage]]
        )


def verify(
    folder: str | os.PathLike[str],
    *,
    sample: int = 100,
    source: bool = False,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str = CACHE_SIZE,
    notify: Callable[[str], None] = lambda line: None,
) -> Report:
    """Check a dataset: sizes, sha256, counts, ids, EOT; `sample` documents encoded again; with `source` all of them.

    `cache`, `cache_size`: as for `open`; checksums are those of what the server has, not of what the cache has.
    Return a report, whose `damage` is empty if nothing is wrong. UsageError when there is no dataset.
    """
    started = time.monotonic()
    named = arguments.path("folder", folder)
    sample, source = arguments.number("sample", sample, 0), arguments.flag("source", source)
    check = _Verification(open_place(named, cache, cache_size), public_url(named), sample, notify)
    manifest, report = check.manifest, check.report
    if source and "arranged" in manifest:
        raise UsageError("the documents are in another order than in the sources, so they cannot be compared")
    if source and check.converted:
        raise UsageError(
            "a converted dataset was not made from text", hint="compare the dataset that it was converted from"
        )
    if source and not isinstance(check.folder, Path):
        raise UsageError("sources can be compared with a folder only", hint="copy the dataset down first")
    check.load_tokenizer()
    for described in each_output(manifest):
        check.check_output(described)
    check.check_rejects()
    check.check_names()
    check.check_counts()
    check.check_plan()
    if source and not report.damage:
        notify("reading the sources again")
        try:
            assert isinstance(check.folder, Path)
            compare_sources(check.folder, manifest)
            report.compared = True
        except DamageError as error:
            report.damage.append(f"{error.place}: {error.message}")
    report.seconds = time.monotonic() - started
    return report


class _Verification:
    """A dataset in a folder or at a URL, and the report on it."""

    def __init__(self, folder: AnyPath, named: str, sample: int, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self.report = Report(named)
        self.manifest = read_manifest(self.folder, self.report.damage)
        self._damage, self._notes = self.report.damage, self.report.notes
        self._sample, self._notify = sample, notify
        self._tokenizer: Tokenizer | None = None
        self.converted = "converted" in self.manifest or "arranged" in self.manifest
        self._row = row_size(self.manifest)
        """Tokens of a row, in a packed dataset: there a document may be cut, and EOT fills rows."""
        self._finds_specials = self.manifest["options"].get("specials") == "parse"
        self._is_val_first = str(self.manifest["options"].get("val")).startswith("first:")

    def load_tokenizer(self) -> None:
        """Load the tokenizer for the sample, or note why that cannot be done."""
        try:
            self._tokenizer = tokenizer_of(self.manifest)
            known, found = self.manifest["tokenizer"], self._tokenizer.describe()
            self._damage += [
                f"{MANIFEST}: the {key} of the tokenizer is {known[key]!r}, not {found[key]!r}"
                for key in ("vocab_size", "pattern", "specials", "bos_eos")
                if key in known and known[key] != found[key]
            ]
        except (UsageError, MismatchError) as error:
            self._notes.append(f"no document was encoded again: {error.message}")

    def check_output(self, described: OutputEntry) -> None:
        """Check the files of one format: sizes, sha256, ids, EOT; then a sample of the documents."""
        splits, marks, text = described["splits"], 0, 0
        for name, split in splits.items():
            for table in tables_in(split):
                self._check_table(name, split, table)
            scan = self._scan(described, name, split)
            self.report.tokens += scan.tokens
            marks += scan.marks
            text += scan.text
            for found in (scan.tokens, sum(file["tokens"] for file in split["files"])):
                if found != split["tokens"] and not self._damage:
                    self._damage.append(f"{MANIFEST}: {name} has {found:,} tokens, not {split['tokens']:,}")
        expected = sum(split["documents"] for split in splits.values())
        self.report.documents += expected
        if format_named(described["format"]).indexed and not self._damage:
            self._check_index(described)
        has_ends = described["eot"] != "none" and not self._finds_specials
        if has_ends and not self._damage and self._row is None:
            # Files of other tools may begin or end inside a document; what `--tail drop` left out had EOT too.
            tolerance = len(splits) if self.converted else 0
            dropped = sum(split.get("dropped", 0) for split in splits.values())
            if not -tolerance <= expected - marks <= tolerance + dropped:
                self._damage.append(f"{described['format']}: {marks:,} EOT for {expected:,} documents")
        if not self._damage:
            self._check_text(described, text)
        if has_ends and not self._damage and self._sample and self._tokenizer is not None:
            self._encode_again(described, self._tokenizer)

    def _check_text(self, described: OutputEntry, text: int) -> None:
        """Compare the bytes of text that the tokens stand for with the manifest's, if they are known exactly."""
        splits, tokenizer = described["splits"].values(), self._tokenizer
        dropped = any("dropped" in split for split in splits)
        if self.converted or dropped or tokenizer is None or tokenizer.lengths is None:
            return
        if described["eot"] != "none":
            text -= int(tokenizer.lengths[tokenizer.eot]) * sum(split["documents"] for split in splits)
        # A document between two splits counts where it ends.
        counted = sum(split["bytes"] for split in splits)
        if text != counted:
            self._damage.append(f"{MANIFEST}: the tokens stand for {text:,} bytes of text, not {counted:,}")

    def _check_table(self, name: str, split: SplitEntry, entry: OtherFile) -> None:
        """Check the documents table of a split: its bytes, and that it adds up to what the manifest says."""
        self._notify(entry["name"])
        before, scan = len(self._damage), TableScan(len(self.manifest["sources"]), self._row)
        self._check_file(entry, scan.feed)
        if len(self._damage) > before:
            return
        problems = scan.finish()
        # What `--tail drop` left out is counted, and not listed; a document at the border of `--val first:N` is listed
        # in both splits, and counts where it ends.
        dropped = "dropped" in split
        cut = (self._is_val_first or self.converted) and name == "val"
        # If only tokens were known, the first and last document of a split may be cut or empty, and an empty document
        # is not listed where there is no EOT.
        guessed = self.converted and not scan.bytes
        most = split["documents"] + (2 if guessed else int(cut))
        unlisted = dropped or (guessed and self.manifest["eot"] == "none")
        least = 0 if unlisted else split["documents"] - int(guessed)
        if scan.end != split["tokens"]:
            problems.append(f"its last document ends at token {scan.end:,}, not {split['tokens']:,}")
        if not least <= scan.rows <= most:
            problems.append(f"it lists {scan.rows:,} documents, not {split['documents']:,}")
        if not guessed and not (0 if dropped else split["bytes"]) <= scan.bytes <= split["bytes"]:
            problems.append(f"its documents have {scan.bytes:,} bytes of text, not {split['bytes']:,}")
        self._damage += [f"{entry['name']}: {problem}" for problem in problems[:1]]

    def _table(self, described: OutputEntry, name: str) -> TableIndex | None:
        """The documents table, if it can be compared with the tokens of this format."""
        if self._damage:
            return None
        try:
            return Dataset(self.folder, described["format"])[name].table
        except DamageError as error:
            self._damage.append(f"{name}: {error.message}")
            return None

    def _check_index(self, described: OutputEntry) -> None:
        """Compare the number of documents that the index of each split lists with the manifest's."""
        data, splits = Dataset(self.folder, described["format"]), described["splits"]
        # A document that is cut between two splits is listed in both, and counts where it ends: one at the border of
        # `--val first:N`, and long text without separators of release 0.1.
        long = sum(split["bytes"] for split in splits.values()) // SPAN if self._may_be_spliced(described) else 0
        for name, split in splits.items():
            cut = long + int(self.converted or (name == "val" and self._is_val_first))
            listed, counted = len(document_index(data[name])), split["documents"]
            if not counted - cut * self.converted <= listed <= counted + cut:
                self._damage.append(
                    f"{described['format']}: the index of {name} lists {listed:,} documents of {counted:,}"
                )

    def _may_be_spliced(self, described: OutputEntry) -> bool:
        """Whether a long document may be made of stretches of a text: release 0.1 put no EOT between them."""
        old = self.converted or str(self.manifest["shardmill"]).startswith("0.1.")
        return old and self.manifest["options"].get("separator") is None and "val" in described["splits"]

    def _scan(self, described: OutputEntry, name: str, split: SplitEntry) -> TokenScan:
        """Read all files of a split."""
        kind, ids = format_named(described["format"]), self.manifest["tokenizer"]
        scan = TokenScan(np.dtype(described["dtype"]), ids["vocab_size"], ids["eot"], described["eot"])
        scan.lengths = self._tokenizer.lengths if self._tokenizer else None
        scan.may_begin_with_eot |= name == "train" and self._is_val_first
        scan.allows_empty = self.converted or self._finds_specials
        scan.table = self._table(described, name) if self._row is None else None
        scan.finds_specials = self._finds_specials
        for entry in split["files"]:
            self._notify(entry["name"])
            before = len(self._damage)
            header = entry["bytes"] - entry["tokens"] * scan.dtype.itemsize
            # Where every document has a header of its own, the tokens are read in a second pass.
            scan.skip(entry["bytes"] if entry.get("role") or not kind.contiguous else header)
            self._check_file(entry, scan.feed)
            if len(self._damage) == before:
                self._damage += [f"{entry['name']}: {problem}" for problem in scan.problems]
            scan.problems.clear()
        if kind.contiguous:
            return scan
        if not self._damage:
            scan.skip(0)
            tokens = Dataset(self.folder, kind.name)[name].tokens
            for start in range(0, len(tokens), _BLOCK):
                scan.check(tokens.read(start, min(start + _BLOCK, len(tokens))))
            self._damage += [f"{name}: {problem}" for problem in scan.problems]
        return scan

    def _check_file(self, entry: OtherFile, feed: Callable[[memoryview], None]) -> None:
        """Check size and sha256 of one file, and pass each block to `feed`."""
        digest, name = hashlib.sha256(), entry["name"]
        try:
            path = self.folder / name
            size = path.stat().st_size
            if size != entry["bytes"]:
                self._damage.append(f"{name}: {size:,} bytes, not {entry['bytes']:,}")
                return
            for block in file_blocks(path) if isinstance(path, Path) else path.ranges().stream():
                digest.update(block)
                feed(memoryview(block))
        except OSError as error:
            self._damage.append(f"{name}: {(error.strerror or str(error)).lower()}")
            return
        self.report.files += 1
        self.report.bytes += size
        if digest.hexdigest() != entry["sha256"]:
            self._damage.append(f"{name}: its sha256 is not that of the manifest")

    def check_counts(self) -> None:
        """Check that splits and sources have the documents that the manifest counts in all."""
        manifest, counted = self.manifest, dict.fromkeys(("documents", "empty", "rejected"), 0)
        splits = manifest["splits"].values()
        written = sum(split["documents"] for split in splits)
        if written != manifest["documents"]:
            self._damage.append(f"{MANIFEST}: splits hold {written:,} documents, not {manifest['documents']:,}")
        tokens = sum(split["tokens"] + split.get("dropped", 0) for split in splits)
        tokens -= written if manifest["eot"] != "none" else 0
        encoded: int | None = 0
        try:
            for number, source in enumerate(manifest["sources"]):  # which are parsed only now
                check_source(source, number)
                # 0.1.0 did not count tokens.
                encoded = None if encoded is None or "tokens" not in source else encoded + source["tokens"]
                for kind in counted:
                    counted[kind] += 0 if self.converted else source[kind]  # type: ignore[literal-required]
        except DamageError as error:
            self._damage.append(error.message)
        else:
            self._damage += [
                f"{MANIFEST}: the sources have {count:,} {kind}, not {said:,}"
                for kind, count in counted.items()
                if not self.converted and count != (said := manifest[kind])  # type: ignore[literal-required]
            ]
            if encoded not in (None, tokens) and not self.converted:
                self._damage.append(f"{MANIFEST}: the sources have {encoded:,} tokens, not {tokens:,}")

    def check_plan(self) -> None:
        """Compare the manifest with the plan whose fingerprint it has, if that is there."""
        plan = Destination(self.folder).recorded_plan() if isinstance(self.folder, Path) else None
        if plan is None:
            return
        manifest, limited = self.manifest, plan["options"].get("limit") is not None
        wrong = [key for key in ("options", "tokenizer") if manifest[key] != plan[key]]
        wrong += ["fingerprint"] if manifest["fingerprint"] != fingerprint(plan) else []
        made_of = manifest.get("converted", {})
        listed = made_of.get("inputs") or ([made_of] if "name" in made_of else manifest["sources"])
        for row, source in zip_longest(plan["sources"], () if self._damage else listed):
            if source is None and (limited or self._damage):
                break  # the others were not read
            if row is None or source is None or (row[0], row[1]) != (source["name"], source.get("bytes")):
                wrong.append("list of sources")
                break
        self._damage += [f"{MANIFEST}: the {key} is not that of `.shardmill/plan.json`" for key in wrong]

    def check_rejects(self) -> None:
        """Check that the bad documents are listed, each once."""
        lines, expected = 0, self.manifest["rejected"]
        entry = self.manifest.get("rejects")
        if entry is None:
            if expected and not self.converted:
                self._damage.append(f"{MANIFEST}: no file lists the {expected:,} rejects")
            return

        def count(block: memoryview) -> None:
            nonlocal lines
            lines += bytes(block).count(b"\n")

        self._check_file(entry, count)
        if lines != expected:
            self._damage.append(f"{entry['name']}: {lines:,} lines for {expected:,} rejects")

    def check_names(self) -> None:
        """Check that no other file in the folder could be taken for one of the dataset's: a trainer would read it."""
        outputs = each_output(self.manifest)
        listed = {file["name"] for one in outputs for split in one["splits"].values() for file in split["files"]}
        if isinstance(self.folder, Path):
            names = list(FolderStore(self.folder).list_folders(("", *SPLITS)))
        else:
            names = [name for name in self.folder.folder.names() if _folder_of(name) in ("", *SPLITS)]
        others = sorted(unlisted_files([one["format"] for one in outputs], names, listed))
        self._damage += [
            f"{name}: it looks like a shard of this dataset and is not in {MANIFEST}; move or delete it"
            for name in others[:_FILES_SHOWN]
        ]
        if len(others) > _FILES_SHOWN:
            self._damage.append(f"and {len(others) - _FILES_SHOWN:,} more files that are not in {MANIFEST}")

    def _encode_again(self, described: OutputEntry, tokenizer: Tokenizer) -> None:
        """Decode some documents and encode them again with the tokenizer's own library."""
        if tokenizer.cut is None:  # not byte-level: normalised text cannot be compared
            self._notes.append(f"no document was encoded again: `{tokenizer.name}` does not give its text back")
            return
        try:
            encode = tokenizer.reference()
        except UsageError as error:
            self._notes.append(f"no document was encoded again: {error.message}")
            return
        draw = random.Random(self.manifest["fingerprint"])
        if self._row is not None:
            self._encode_pieces(described, tokenizer, encode, draw)
            return
        spliced = self._may_be_spliced(described)
        skipped = 0
        for file, tokens in _documents(Dataset(self.folder, described["format"]), self._sample, draw):
            text = b"" if tokens is None else tokenizer.decode(tokens)
            if tokens is None or (spliced and len(text) > SPAN):
                skipped += 1
                continue
            self.report.sampled += 1
            if tokens.tolist() != encode(text.decode("utf-8", "surrogateescape")):
                self._damage.append(f"{file}: the library gives other tokens for {text[:60]!r}")
                return
        if skipped:
            were = "document was" if skipped == 1 else "documents were"
            reasons = "first or last of a split, or too long"
            self._notes.append(f"{skipped:,} sampled {were} not encoded again ({reasons})")

    def _encode_pieces(
        self, described: OutputEntry, tokenizer: Tokenizer, encode: Callable[[str], list[int]], draw: random.Random
    ) -> None:
        """Encode pieces of a packed dataset again that are whole documents: those have all bytes of their text."""
        data = Dataset(self.folder, described["format"])
        for split in [data[name] for name in data if len(data[name])]:
            table = split.table
            if table is None:
                continue
            for number in sorted({draw.randrange(len(table)) for _ in range(self._sample)}):
                start, end = table.bounds(number)
                tokens = split.tokens.read(start, end)
                tokens = tokens[tokens != data.eot_id]
                text = tokenizer.decode(tokens)
                if len(text) != table.table[number]["bytes"] or len(tokens) > _LONGEST:
                    continue
                self.report.sampled += 1
                if tokens.tolist() != encode(text.decode("utf-8", "surrogateescape")):
                    self._damage.append(f"{split.name}: the library gives other tokens for {text[:60]!r}")
                    return


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _documents(data: Dataset, sample: int, draw: random.Random) -> Iterator[tuple[str, NDArray[Any] | None]]:
    """Documents around tokens drawn at random, without EOT, each once and with its file; None: a document that is not
    whole in what was read."""
    splits = [data[name] for name in data if len(data[name])]
    weights = list(accumulate(map(len, splits)))
    seen: set[tuple[str, int | None, int | None]] = set()
    for _ in range(min(sample, weights[-1]) if splits else 0):
        [split] = draw.choices(splits, cum_weights=weights)
        at = draw.randrange(len(split))
        low, high = max(0, at - _LONGEST), min(len(split), at + _LONGEST)
        tokens = split.tokens.read(low, high)
        marks = np.flatnonzero(tokens == data.eot_id)
        after = int(np.searchsorted(marks, at - low, side="left" if data.eot == "after" else "right"))
        begin = int(low + marks[after - 1]) if after else None
        end = int(low + marks[after]) if after < len(marks) else None
        if (split.name, begin, end) in seen:
            continue
        seen.add((split.name, begin, end))
        path: Any = split.tokens.files[bisect_right(split.tokens.starts, at) - 1].path
        file = path.relative_to(data.folder).as_posix()
        # The first and the last of a split are left out, and what is longer than what was read.
        yield file, tokens[marks[after - 1] + 1 : marks[after]] if 0 < after < len(marks) else None
