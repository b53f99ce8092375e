"""Which files of a folder are read: rules of names, the same for folders of this machine, the hub and stores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from shardmill.detection import FORMAT_ENDINGS
from shardmill.source_list import Skipped
from shardmill.storage import COMPRESSION_ENDINGS, endings

_KINDS = {
    "archive": "zip tar tgz tbz tbz2 txz tzst 7z rar jar whl deb rpm iso dmg cab lz4 lz lzma br z zipx apk egg",
    "picture": "png jpg jpeg gif webp bmp tif tiff ico icns heic avif psd xcf eps",
    "PDF": "pdf",
    "office document": "doc docx xls xlsx ppt pptx odt ods odp rtf epub mobi azw3 djvu ps pages numbers key",
    "sound": "mp3 wav flac ogg m4a opus aac mid",
    "video": "mp4 mkv avi mov webm mpg mpeg wmv",
    "checksum": "md5 sha1 sha224 sha256 sha384 sha512 sig asc crc sfv torrent",
    "model file": "safetensors gguf ggml onnx pt pth ckpt h5 hdf5 tflite spm tiktoken model",
    "binary file": "npy npz bin idx dat pkl pickle joblib mat mds db sqlite sqlite3 duckdb rdb mdb lmdb orc avro "
    "exe dll so dylib o a lib obj pyc pyd class wasm dex ttf otf woff woff2 eot",
    "WARC file": "warc wet wat",
    "lock file": "lock",
}
_KIND_OF = {ending: kind for kind, listed in _KINDS.items() for ending in listed.split()}
# Data of our own or of others that may be plain text under `--input-format text`: their content decides.
_DOUBTFUL = frozenset("dat db bin a o key model pages numbers lock idx asc sig mat z eps ps lib obj".split())
_CHECKSUMS = re.compile(r"(?i)(md5|sha\d+|b2|ck)sums?(\.txt)?|checksums?(\.\w+)?")
_UNCOUNTED = frozenset(
    """.git .gitattributes .gitignore .gitmodules .gitkeep .github .svn .hg .hgignore .DS_Store .cache .locks .no_exist
    .shardmill .parts .ipynb_checkpoints .venv .tox .nox .mypy_cache .ruff_cache .pytest_cache .idea .vscode
    .editorconfig .npmignore .dockerignore .huggingface __pycache__ __MACOSX _SUCCESS Thumbs.db desktop.ini""".split()
)
_PLAIN_SEPARATORS = re.compile(r"[-._ 0-9]+")
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\b")
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}
_DATA = frozenset(ending for ending, format in FORMAT_ENDINGS.items() if format != "text") | {"txt", "text"}
METADATA = frozenset(("dataset_infos.json", "dataset_info.json", "state.json", "dataset_dict.json"))
"""Files in which `datasets` describes data."""


def is_readable_name(path: str) -> bool:
    """Whether a file found in a folder is read: its ending is that of a format, or it has none."""
    plain, _ = endings(path)
    if plain == "" or plain in COMPRESSION_ENDINGS:
        return not _CHECKSUMS.fullmatch(path.rpartition("/")[2])
    return plain in FORMAT_ENDINGS and not (plain == "txt" and _CHECKSUMS.fullmatch(path.rpartition("/")[2]))


def is_housekeeping(name: str) -> bool:
    """Whether a file or folder is of a tool's making: it is neither read nor counted."""
    return name in _UNCOUNTED or name.startswith(("_committed_", "_started_", ".~lock", ".nfs"))


def kind_by_name(name: str) -> str:
    """The kind of a file that is no text by its name; empty if the name does not show one."""
    return _KIND_OF.get(endings(name)[0], "")


def may_be_text(name: str) -> bool:
    """Whether a file may be text though its ending is that of another kind."""
    ending = endings(name)[0]
    return ending not in _KIND_OF or ending in _DOUBTFUL


def kind_of(name: str) -> str:
    """What a file that is not read is called when it is counted."""
    name = name.rpartition("/")[2]
    if name[:1] in "._":
        return "hidden file"
    if _CHECKSUMS.fullmatch(name):
        return "checksum"
    ending = endings(name)[0]
    return _KIND_OF.get(ending) or f"`.{ending[:20]}` file"


class Choice:
    """`--include` and `--exclude`: globs for names, or for paths below the source if there is a slash in them."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self.include = [_segments(pattern) for pattern in include]
        self._exclude = [_segments(pattern) for pattern in exclude]
        self.given = bool(include or exclude)

    def wants(self, path: str) -> bool:
        """Whether a file with this path below the source is read."""
        return (not self.include or self.includes(path)) and not self.excludes(path)

    def includes(self, path: str) -> bool:
        """Whether a pattern of `--include` names the file or a folder above it."""
        return _named_by(self.include, path.split("/"))

    def excludes(self, path: str) -> bool:
        """Whether a pattern of `--exclude` names the file or a folder above it."""
        return _named_by(self._exclude, path.split("/"))


def _segments(pattern: str) -> list[str]:
    inner = pattern.strip("/").removeprefix("./")
    # A slash, also a leading one, ties the pattern to the source; without one it holds at any depth.
    return inner.split("/") if "/" in pattern.rstrip("/") else ["**", inner]


def _named_by(patterns: Iterable[Sequence[str]], path: Sequence[str]) -> bool:
    return any(
        path_matches(path[:length], pattern, hidden=True) for pattern in patterns for length in range(len(path), 0, -1)
    )


def path_matches(path: Sequence[str], pattern: Sequence[str], *, hidden: bool = False) -> bool:
    """Whether the segments of a path match a pattern, as Python's glob reads it: `**` is any number of folders.

    `hidden`: wildcards match names that begin with a dot too.
    """
    if not path or not pattern:
        return not path and not pattern
    first, rest = pattern[0], pattern[1:]
    visible = hidden or not path[0].startswith(".")
    if first == "**":
        return path_matches(path, rest or ["*"], hidden=hidden) or (
            visible and path_matches(path[1:], pattern, hidden=hidden)
        )
    return (
        (visible or first.startswith("."))
        and fnmatchcase(path[0], first)
        and path_matches(path[1:], rest, hidden=hidden)
    )


def split_of(path: str) -> str:
    """The split that a name or a folder above shows, as Hugging Face's `datasets` reads them; empty if none."""
    for segment in reversed(path.split("/")):
        for word in _PLAIN_SEPARATORS.split(segment.lower()):
            if word in _SPLITS:
                return _SPLITS[word]
    return ""


class DatasetFiles:
    """Chooses the files of a dataset of the hub: those of the split `train`, without cards and scripts.

    It is told the paths of all readable files, relative to the dataset's root; then it says why one is skipped.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._splits, self._shards = set[str](), set[str]()
        self._data = self._others = 0
        for path in paths:
            if not _is_metadata(path):
                self._add(path)
        # `datasets` prefers files that it has written itself, such as `data/train-00000-of-00002.parquet`.
        self.is_sharded = "train" in self._shards

    def _add(self, path: str) -> None:
        if endings(path)[0] not in _DATA:
            self._others += 1
            return
        self._data += 1
        self._splits.add(split_of(path))
        if shard := _SHARD.match(path.rpartition("/")[2]):
            self._shards.add(shard[1])

    @property
    def other_splits(self) -> list[str]:
        """The splits beside `train`."""
        named = self._splits | {name for name in self._shards if self.is_sharded and not split_of(name)}
        return sorted(named - {"", "train"})

    @property
    def has_train(self) -> bool:
        return "train" in self._splits

    def kind_if_skipped(self, path: str) -> str:
        """Why a file is skipped, as a kind; empty: it is read."""
        if _is_metadata(path):
            return "dataset card" if path == "README.md" else "metadata file"
        if endings(path)[0] not in _DATA:
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
        """Say which split is read, if there are several."""
        listed = ", ".join(f"`{one}`" for one in self.other_splits)
        if self.has_train and listed:
            skipped.note(only_train(where, self.other_splits))
        elif listed:
            skipped.warn(f"{where} has no split `train`; all its files are read, of: {listed}")


def only_train(where: str, others: Iterable[str]) -> str:
    """The sentence that says which split is read."""
    listed = ", ".join(f"`{one}`" for one in others)
    return f"of {where} only the split `train` is read, not: {listed} (name a file or folder to read it)"


def _is_metadata(path: str) -> bool:
    """Whether a file describes a dataset of the hub: its card at the root, and files of `datasets`."""
    return path == "README.md" or path.rpartition("/")[2] in METADATA
