"""Which files of a dataset are read: its default config, and the split `train`, by its card and the names of files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardmill.detection import FORMAT_ENDINGS
from shardmill.source_list import Skipped
from shardmill.sources.cards import CARD, Config, chosen, configs_in
from shardmill.sources.names import named_by, pattern_segments
from shardmill.storage import endings

_MOST_NAMED = 10  # configs in a sentence
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\b")
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}
_SPLIT_WORD = re.compile(rf"(?i)(?<![^-._ 0-9/])({'|'.join(_SPLITS)})(?![^-._ 0-9/])")
_MOST_SKELETONS = 1000  # that are kept while names are compared
_DATA = frozenset(ending for ending, format in FORMAT_ENDINGS.items() if format != "text") | {"txt", "text"}
METADATA = frozenset(("dataset_infos.json", "dataset_info.json", "state.json", "dataset_dict.json"))
"""Files in which `datasets` describes data."""


def split_of(path: str) -> str:
    """The split that a name or a folder above shows, as Hugging Face's `datasets` reads them; empty if none."""
    for segment in reversed(path.split("/")):
        if found := _SPLIT_WORD.search(segment):
            return _SPLITS[found[1].lower()]
    return ""


def is_data_name(path: str) -> bool:
    """Whether a file holds data by its name, rather than prose or code."""
    return endings(path)[0] in _DATA


def splits_beside_train(paths: Iterable[str]) -> dict[str, str]:
    """Return paths of other splits that lie beside one of `train` and are named alike, as a glob → the split.

    `wiki.train.txt` and `wiki.test.txt` are named alike, `how-to-train-a-dog.txt` and `test-flight.txt` are not.
    """
    alike: dict[str, dict[str, str]] = {}
    for path in paths:
        words = list(_SPLIT_WORD.finditer(path))
        if words and len(alike) < _MOST_SKELETONS:
            start, end = words[-1].span(1)
            skeleton = re.sub(r"\d+", "0", f"{path[:start]}*{path[end:]}")
            in_folder = path[end : end + 1] == "/"
            glob = f"/{path[:end]}" if in_folder else path[:end] + re.sub(r"\d.*", "*", path[end:])
            alike.setdefault(skeleton, {}).setdefault(_SPLITS[words[-1][1].lower()], glob)
    together = [splits for splits in alike.values() if "train" in splits]
    return {glob: split for splits in together for split, glob in splits.items() if split != "train"}


def warn_of_splits(where: str, others: dict[str, str], skipped: Skipped) -> None:
    """Warn that a folder holds other splits beside `train`, all of which are read."""
    if others:
        splits = ", ".join(f"`{one}`" for one in ("train", *sorted(set(others.values()))))
        options = " ".join(f"--exclude '{glob}'" for glob in sorted(others)[:4])
        skipped.warn(f"{where} holds the splits {splits}, and all are read as one text (`{options}` leaves others out)")


class DatasetFiles:
    """Chooses the files of a dataset of the hub: those of the split `train`, without cards and scripts.

    It is told the paths of all readable files, relative to the dataset's root; then it says why one is skipped.
    If the card names configs and their files, those of the default config are taken.
    """

    def __init__(self, paths: Iterable[str] = (), card: str = "") -> None:
        self._splits, self._shards = set[str](), set[str]()
        self._data = self._others = 0
        self._configs = configs_in(card)
        self._config = chosen(self._configs)
        patterns = self._config.splits if self._config else {}
        self._patterns = {split: [pattern_segments(f"/{one}") for one in listed] for split, listed in patterns.items()}
        in_config = False
        for path in paths:
            if not _is_metadata(path):
                self._add(path)
                in_config = in_config or self._split_in_config(path) in ("train", self._only_split)
        if not in_config:  # the card speaks of other files
            self._config, self._patterns = None, {}
        # `datasets` prefers files that it has written itself, such as `data/train-00000-of-00002.parquet`.
        self.is_sharded = "train" in self._shards

    def _add(self, path: str) -> None:
        if not is_data_name(path):
            self._others += 1
            return
        self._data += 1
        self._splits.add(split_of(path))
        if shard := _SHARD.match(path.rpartition("/")[2]):
            self._shards.add(shard[1])

    @property
    def _only_split(self) -> str | None:
        return next(iter(self._patterns)) if len(self._patterns) == 1 else None

    def _split_in_config(self, path: str) -> str:
        """The split of a file in the config that is read; empty if it does not belong to it."""
        segments = path.split("/")
        return next((split for split, listed in self._patterns.items() if named_by(listed, segments)), "")

    @property
    def other_splits(self) -> list[str]:
        """The splits beside `train`."""
        if self._patterns:
            return sorted(set(self._patterns) - {"train"})
        named = self._splits | {name for name in self._shards if self.is_sharded and not split_of(name)}
        return sorted(named - {"", "train"})

    @property
    def has_train(self) -> bool:
        return "train" in (self._patterns or self._splits)

    def kind_if_skipped(self, path: str) -> str:
        """Why a file is skipped, as a kind; empty: it is read."""
        if _is_metadata(path):
            return "dataset card" if path == CARD else "metadata file"
        if self._patterns:
            split = self._split_in_config(path)
            if not split:
                return "other-config file" if is_data_name(path) else "accompanying file"
            return "" if split == "train" or not self.has_train else f"{split}-split file"
        if not is_data_name(path):
            return "accompanying file" if self._data >= self._others else ""
        if not self.has_train:
            return ""
        split, shard = split_of(path), _SHARD.match(path.rpartition("/")[2])
        if self.is_sharded:
            if shard is not None and shard[1] == "train":
                return ""
            return f"{shard[1]}-split file" if shard is not None else "accompanying file"
        return "" if split == "train" else f"{split}-split file" if split else "no-split file"

    def say(self, skipped: Skipped, where: str) -> None:
        """Say which config and which split is read, if there are several."""
        named = [f"`{one.name}`" for one in self._configs if one is not self._config]
        more = f" and {len(named) - _MOST_NAMED:,} more" if len(named) > _MOST_NAMED else ""
        others = ", ".join(named[:_MOST_NAMED]) + more
        if self._config is not None and named:
            skipped.note(
                f"of {where} only the config `{self._config.name}` is read, the default by its card, not: {others} "
                f"({_how_to_choose(self._configs, self._config)} reads another)"
            )
        elif len(named) > 1:
            skipped.warn(
                f"{where} holds several configs, and its card names no default; all are read: {others} "
                f"({_how_to_choose(self._configs)} reads one)"
            )
        say_splits(where, self.other_splits, skipped, has_train=self.has_train)


def _how_to_choose(configs: list[Config], taken: Config | None = None) -> str:
    """The option that reads a config."""
    other = next(one for one in configs if one is not taken)
    return f"`--include '/{other.splits.get('train', next(iter(other.splits.values())))[0]}'`"


def say_splits(where: str, others: Iterable[str], skipped: Skipped, *, has_train: bool) -> None:
    """Say which split is read. `others`: the splits beside `train`."""
    listed = ", ".join(f"`{one}`" for one in others)
    if listed and has_train:
        skipped.note(f"of {where} only the split `train` is read, not: {listed} (name a file or folder to read it)")
    elif listed:
        skipped.warn(f"{where} has no split `train`; all its files are read, of: {listed}")


def _is_metadata(path: str) -> bool:
    """Whether a file describes a dataset of the hub: its card at the root, and files of `datasets`."""
    return path == CARD or path.rpartition("/")[2] in METADATA
