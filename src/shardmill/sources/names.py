"""Which files of a folder are read: rules of names, the same for folders of this machine, the hub and stores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from shardmill.detection import FORMAT_ENDINGS
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
SHARD = "train-"
"""How shards of the split `train` begin that `datasets` has written."""
UNCOUNTED = "uncounted"
"""The kind of what is neither read nor counted: a tool's own files, or another copy of what is read."""
WILDCARD = re.compile(r"[*?[]")
_CHECKSUMS = re.compile(r"(?i)(md5|sha\d+|b2|ck)sums?(\.txt)?|checksums?(\.\w+)?")
_HOUSEKEEPING = frozenset(
    """.git .gitattributes .gitignore .gitmodules .gitkeep .github .svn .hg .hgignore .DS_Store .cache .locks .no_exist
    .shardmill .parts .ipynb_checkpoints .venv .tox .nox .mypy_cache .ruff_cache .pytest_cache .idea .vscode
    .editorconfig .npmignore .dockerignore .huggingface __pycache__ __MACOSX _SUCCESS Thumbs.db desktop.ini""".split()
)


def is_readable_name(path: str) -> bool:
    """Whether a file found in a folder is read: its ending is that of a format, or it has none."""
    plain, _ = endings(path)
    if plain == "" or plain in COMPRESSION_ENDINGS:
        return not _CHECKSUMS.fullmatch(path.rpartition("/")[2])
    return plain in FORMAT_ENDINGS and not (plain == "txt" and _CHECKSUMS.fullmatch(path.rpartition("/")[2]))


def is_housekeeping(name: str) -> bool:
    """Whether a file or folder is of a tool's making: it is neither read nor counted."""
    return name in _HOUSEKEEPING or name.startswith(("_committed_", "_started_", ".~lock", ".nfs"))


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
        self.include = [pattern_segments(pattern) for pattern in include]
        self._exclude = [pattern_segments(pattern) for pattern in exclude]
        self.given = bool(include or exclude)

    def wants(self, path: str) -> bool:
        """Whether a file with this path below the source is read."""
        return (not self.include or named_by(self.include, path.split("/"))) and not self.excludes(path)

    def excludes(self, path: str) -> bool:
        """Whether a pattern of `--exclude` names the file or a folder above it."""
        return named_by(self._exclude, path.split("/"))


def pattern_segments(pattern: str) -> list[str]:
    inner = pattern.strip("/").removeprefix("./")
    # A slash, also a leading one, ties the pattern to the source; without one it holds at any depth.
    return inner.split("/") if "/" in pattern.rstrip("/") else ["**", inner]


def named_by(patterns: Iterable[Sequence[str]], path: Sequence[str]) -> bool:
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


def split_pattern(path: str) -> tuple[str, str]:
    """The folder above the first segment with a wildcard, and the pattern below it; no pattern: the path itself."""
    segments = path.split("/")
    for i, segment in enumerate(segments):
        if WILDCARD.search(segment):
            return "/".join(segments[:i]), "/".join(segments[i:])
    return path.rstrip("/"), ""
