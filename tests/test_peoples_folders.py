"""Folders that people have, and what a person expects of each: the documents, what is skipped, and what is said."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import shardmill
from shardmill.errors import ShardmillError, UsageError
from tests.meter import SHARDMILL

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 4
CARD = "---\nlicense: mit\nconfigs:\n- config_name: default\n---\n# A dataset\nIts card.\n"
ATTRIBUTES = "*.parquet filter=lfs diff=lfs merge=lfs -text\n*.arrow filter=lfs diff=lfs merge=lfs -text\n"
COMMITS = ("a" * 40, "b" * 40)


@dataclass
class Expected:
    """What a person expects of a folder."""

    texts: list[str]
    """The documents, in order."""
    kinds: dict[str, int] = field(default_factory=dict)
    """What is skipped."""
    says: list[str] = field(default_factory=list)
    """Words of the summary."""
    options: dict[str, Any] = field(default_factory=dict)


def texts(name: str, count: int = 3) -> list[str]:
    return [f"{name}, document {i}: the quick brown fox jumps over the lazy dog." for i in range(count)]


def table(name: str, count: int = 3) -> pa.Table:
    return pa.table({"text": texts(name, count), "id": range(count)})


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def put_parquet(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(name), path)


def put_arrow(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_stream(path, table(name).schema) as writer:
        writer.write_table(table(name))


def jsonl(name: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts(name))


def hub_cache(root: Path, *, ref: bool = True) -> Path:
    """One dataset with two snapshots, and a model, as `huggingface_hub` keeps them."""
    repository = root / "datasets--owner--name"
    for number, commit in enumerate(COMMITS):
        snapshot = repository / "snapshots" / commit
        for name in ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet", "README.md"):
            blob = repository / "blobs" / f"{number}{name.replace('/', '-')[:20]}".ljust(40, "0")
            if name == "README.md":
                put(blob, CARD)
            else:
                put_parquet(blob, f"{name[5:9]} of {commit[0]}")
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
        os.utime(snapshot, (1_000_000 + number, 1_000_000 + number))
    if ref:
        put(repository / "refs" / "main", COMMITS[0])
    put(repository / ".no_exist" / COMMITS[0] / "x.json", "")
    put(root / ".locks" / "datasets--owner--name" / "x.lock", "")
    put(root / "models--owner--other" / "snapshots" / COMMITS[0] / "config.json", "{}")
    return repository


def hub_cache_repository(root: Path) -> tuple[Path, Expected]:
    folder = hub_cache(root)
    kinds = {"older snapshot folder": 1, "dataset card": 1, "test-split file": 1}
    return folder, Expected(texts("trai of a"), kinds, ["only the split `train`"])


def hub_cache_without_a_ref(root: Path) -> tuple[Path, Expected]:
    folder = hub_cache(root, ref=False)
    kinds = {"older snapshot folder": 1, "dataset card": 1, "test-split file": 1}
    return folder, Expected(texts("trai of b"), kinds)


def hub_cache_home(root: Path) -> tuple[Path, Expected]:
    hub_cache(root / "hub")
    put(root / "token", "hf_secret")
    put(root / "modules" / "x.py", "import os\n")
    kinds = {"older snapshot folder": 1, "dataset card": 1, "test-split file": 1, "model folder": 1}
    return root, Expected(texts("trai of a"), {**kinds, "metadata file": 1, "cache folder": 1})


def clone(root: Path) -> tuple[Path, Expected]:
    put(root / "README.md", CARD)
    put(root / ".gitattributes", ATTRIBUTES)
    put(root / ".git" / "config", "[core]\n")
    for split in ("train", "test", "validation"):
        put_parquet(root / "data" / f"{split}-00000-of-00001.parquet", split)
    kinds = {"dataset card": 1, "test-split file": 1, "validation-split file": 1}
    return root, Expected(texts("train"), kinds, ["only the split `train`", "`test`, `validation`"])


def clone_with_other_copies_of_the_text(root: Path) -> tuple[Path, Expected]:
    """As TinyStories: text files of an older version lie beside the shards."""
    clone(root)
    put(root / "Stories-train.txt", "Once upon a time, in an older version.")
    put(root / "Stories-valid.txt", "Once upon a time.")
    put(root / "all.tar.gz", gzip.compress(b"x"))
    kinds = {"dataset card": 1, "test-split file": 1, "validation-split file": 1, "accompanying file": 2, "archive": 1}
    return root, Expected(texts("train"), kinds)


def clone_of_json_lines(root: Path) -> tuple[Path, Expected]:
    put(root / "README.md", CARD)
    put(root / "train.jsonl", jsonl("train"))
    put(root / "dev.jsonl", jsonl("dev"))
    put(root / "load.py", "print()\n")
    return root, Expected(texts("train"), {"dataset card": 1, "validation-split file": 1, "accompanying file": 1})


def data_folder_of_a_clone(root: Path) -> tuple[Path, Expected]:
    clone(root)
    return root / "data", Expected(texts("train"), {"test-split file": 1, "validation-split file": 1})


def named_split_of_a_clone(root: Path) -> tuple[Path, Expected]:
    """A file that is named is read."""
    clone(root)
    return root / "data" / "test-00000-of-00001.parquet", Expected(texts("test"))


def included_split_of_a_clone(root: Path) -> tuple[Path, Expected]:
    clone(root)
    expected = Expected(texts("test"), {"excluded file": 3}, options={"include": ["data/test-*"]})
    return root, expected


def saved_dataset(root: Path) -> tuple[Path, Expected]:
    _save(root, "train")
    put_arrow(root / "cache-0123456789abcdef.arrow", "derived")
    return root, Expected(texts("train"), {"metadata file": 2, "derived file": 1})


def _save(root: Path, name: str) -> None:
    try:
        import datasets
    except ImportError:  # the same layout
        put_arrow(root / "data-00000-of-00001.arrow", name)
        put(root / "dataset_info.json", json.dumps({"citation": "", "features": {}}, indent=2))
        put(root / "state.json", json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}, indent=2))
    else:
        datasets.Dataset(table(name)).save_to_disk(str(root))


def saved_splits(root: Path) -> tuple[Path, Expected]:
    put(root / "dataset_dict.json", '{"splits": ["train", "test"]}')
    _save(root / "train", "train")
    _save(root / "test", "test")
    kinds = {"metadata file": 3, "test-split folder": 1}
    return root, Expected(texts("train"), kinds, ["only the split `train`", "`test`"])


def one_of_the_saved_splits(root: Path) -> tuple[Path, Expected]:
    saved_splits(root)
    return root / "test", Expected(texts("test"), {"metadata file": 2})


def datasets_cache(root: Path) -> tuple[Path, Expected]:
    cache = root / "huggingface" / "datasets"
    version = cache / "owner___name" / "default" / "0.0.0"
    for number, commit in enumerate(COMMITS):
        folder = version / commit
        put_arrow(folder / "name-train.arrow", f"train {commit[0]}")
        put_arrow(folder / "name-test.arrow", "test")
        put_arrow(folder / "cache-0123456789abcdef.arrow", "derived")
        info = put(folder / "dataset_info.json", '{"splits": {}}')
        os.utime(info, (1_000_000 + number, 1_000_000 + number))
        put(version / f"{commit}_builder.lock", "")
    put(cache / "downloads" / "0123", "raw")
    put(cache / "_home_user_x_0.0.0.lock", "")
    kinds = {"older version folder": 1, "lock file": 2, "derived file": 1, "metadata file": 1, "test-split file": 1}
    kinds |= {"download folder": 1, "hidden file": 1}
    return cache, Expected(texts("train b"), kinds, ["only the split `train`"])


def code_repository(root: Path) -> tuple[Path, Expected]:
    code = [f"def function_{i}():\n    return {i}\n" for i in range(6)]
    for number, text in enumerate(code):
        put(root / "src" / f"module_{number}.py", text)
    put(root / "tests" / "test_it.py", "def test(): ...\n")
    put(root / "README.md", "# A program\n")
    put(root / "tsconfig.json", '{\n  "compilerOptions": {\n    "strict": true\n  }\n}\n')
    put(root / "package.json", '{"name": "x"}')
    put(root / "tests" / "figures.csv", "a,b\n1,2\n")
    put(root / "etc" / "inputrc.arrows", "# keys\nset editing-mode vi\n")
    put(root / "logo.png", PNG)
    put(root / "tool", b"\x7fELF\2\1\1" + bytes(100))
    put(root / ".git" / "HEAD", "ref: refs/heads/main\n")
    put(root / ".gitignore", "*.o\n")
    put(root / ".env", "SECRET=1\n")
    kinds = {"hidden file": 1, "JSON file": 2, "CSV file": 1, "`.arrows` file": 1, "picture": 1, "binary file": 1}
    return root, Expected(["# A program\n", *code, "def test(): ...\n"], kinds)


def code_repository_as_text(root: Path) -> tuple[Path, Expected]:
    _, expected = code_repository(root)
    arrows, package = (root / "etc" / "inputrc.arrows").read_text(), (root / "package.json").read_text()
    csv, tsconfig = (root / "tests" / "figures.csv").read_text(), (root / "tsconfig.json").read_text()
    readme, *code, tests = expected.texts
    all_texts = [readme, arrows, package, *code, csv, tests, tsconfig]
    kinds = {"hidden file": 1, "picture": 1, "binary file": 1}
    return root, Expected(all_texts, kinds, options={"input_format": "text"})


def system_documentation(root: Path) -> tuple[Path, Expected]:
    """As /usr/share/doc."""
    put(root / "bash" / "copyright", "Copyright.\n")
    put(root / "bash" / "changelog.gz", gzip.compress(b"bash (1) a change\n"))
    put(root / "bash" / "changelog.Debian.gz", gzip.compress(b"debian\n"))
    put(root / "bash" / "README.Debian", "read me\n")
    put(root / "bash" / "notes.txt~", "old\n")
    put(root / "bash" / "log.txt.1", "old\n")
    put(root / "bash" / "x.textproto", "a: 1\n")
    put(root / "bash" / "manual.pdf", b"%PDF-1.5")
    (root / "shell").symlink_to(root / "bash")
    (root / "bash" / "circle").symlink_to(root)
    kinds = {"`.debian` file": 2, "`.txt~` file": 1, "`.1` file": 1, "`.textproto` file": 1, "PDF": 1}
    return root, Expected(["bash (1) a change\n", "Copyright.\n"], {**kinds, "linked folder": 2})


def downloads(root: Path) -> tuple[Path, Expected]:
    put(root / "a.jsonl", jsonl("a"))
    put(root / "b.zip", b"PK\x03\x04")
    put(root / "c.tar.gz", gzip.compress(b"x"))
    put(root / "d.png", PNG)
    put(root / "e.JPG", PNG)
    put(root / "f.pdf", b"%PDF-1.5")
    put(root / "SHA256SUMS", f"{'0' * 64}  a.jsonl\n")
    put(root / "a.jsonl.md5", "0" * 32)
    kinds = {"archive": 2, "picture": 2, "PDF": 1, "checksum": 2}
    said = "7 files skipped: 2 checksums, 2 archives, 2 pictures, 1 PDF"
    return root, Expected(texts("a"), kinds, [said])


def the_same_name_twice(root: Path) -> tuple[Path, Expected]:
    put(root / "a.jsonl", jsonl("a"))
    put(root / "a.jsonl.zst", zstandard.compress(jsonl("a").encode()))
    put(root / "a-more.jsonl", jsonl("more"))
    put_parquet(root / "b.parquet", "b")
    return root, Expected(
        [*texts("more"), *texts("a"), *texts("a"), *texts("b")], says=["warning: the same name twice"]
    )


FOLDERS: list[Callable[[Path], tuple[Path, Expected]]] = [
    hub_cache_repository,
    hub_cache_without_a_ref,
    hub_cache_home,
    clone,
    clone_with_other_copies_of_the_text,
    clone_of_json_lines,
    data_folder_of_a_clone,
    named_split_of_a_clone,
    included_split_of_a_clone,
    saved_dataset,
    saved_splits,
    one_of_the_saved_splits,
    datasets_cache,
    code_repository,
    code_repository_as_text,
    system_documentation,
    downloads,
    the_same_name_twice,
]


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_a_folder_gives_what_a_person_expects(tmp_path: Path, make: Callable[[Path], tuple[Path, Expected]]) -> None:
    source, expected = make(tmp_path / "in")
    flags = [word for name, value in expected.options.items() for word in _flag(name, value)]
    ran = run("prepare", source, "-o", tmp_path / "cli", "--val", "0", *flags)
    assert ran.returncode == 0, ran.stderr
    for words in expected.says:
        assert words in ran.stderr
    manifest = json.loads((tmp_path / "cli" / "manifest.json").read_bytes())
    assert manifest["skipped"]["kinds"] == expected.kinds
    assert sum(expected.kinds.values()) == manifest["skipped"]["files"] + manifest["skipped"]["folders"]
    assert len(manifest["skipped"]["names"]) == sum(expected.kinds.values())
    assert manifest["rejected"] == 0 and manifest["documents"] == len(expected.texts)

    result = shardmill.prepare(source, tmp_path / "python", val=0, **expected.options)
    assert result.manifest["skipped"] == manifest["skipped"]
    assert (tmp_path / "python" / "train.bin").read_bytes() == (tmp_path / "cli" / "train.bin").read_bytes()
    batches = shardmill.read(source, **expected.options)
    assert [text for batch in batches for text in batch["text"].to_pylist()] == expected.texts
    assert sum(split["bytes"] for split in manifest["splits"].values()) == sum(len(text) for text in expected.texts)

    report = shardmill.inspect(source, **expected.options)
    assert report.skipped == manifest["skipped"] and not report.stops
    if expected.kinds:
        assert " skipped: " in report.text() and " skipped: " in ran.stderr
        first = manifest["skipped"]["names"][0]
        assert first not in ran.stderr and "".join(first.split()) in "".join(report.text(verbose=True).split())
    data = json.loads(run("prepare", source, "-o", tmp_path / "cli", "--val", "0", "--json", *flags).stdout)
    assert data["already"] and data["skipped"] == manifest["skipped"]


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SHARDMILL, *map(str, words)], capture_output=True, text=True, timeout=300)


def _flag(name: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [word for one in values for word in ("--" + name.replace("_", "-"), one)]


def test_a_dataset_made_in_parts_has_the_same_counts(tmp_path: Path) -> None:
    source, expected = downloads(tmp_path / "in")
    put(source / "b.jsonl", jsonl("b"))
    one = shardmill.prepare(source, tmp_path / "one", val=0).manifest
    assert run("plan", source, "-o", tmp_path / "parts", "--parts", "2", "--val", "0").returncode == 0
    put(source / "later.pdf", b"%PDF-1.5")  # the plan does not know it
    for part in (0, 1):
        assert run("prepare", "--plan", tmp_path / "parts", "--part", part).returncode == 0
    ran = run("merge", tmp_path / "parts")
    assert ran.returncode == 0 and " skipped: " in ran.stderr
    manifest = json.loads((tmp_path / "parts" / "manifest.json").read_bytes())
    assert manifest["skipped"] == one["skipped"] and one["skipped"]["kinds"] == expected.kinds


def test_what_is_skipped_is_decided_when_the_plan_is_made(tmp_path: Path) -> None:
    """A run that is resumed, when the folder holds more files that are not read, ends as it would have ended."""
    source, _ = downloads(tmp_path / "in")
    put(source / "b.jsonl", jsonl("b") + "not JSON\n")
    options: dict[str, Any] = {"val": 0}
    with pytest.raises(ShardmillError):
        shardmill.prepare(source, tmp_path / "out", max_bad="0", **options)
    put(source / "later.pdf", b"%PDF-1.5")
    skipped = shardmill.prepare(source, tmp_path / "out", max_bad="any", **options).manifest["skipped"]
    assert skipped["kinds"]["PDF"] == 1


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"include": ["*.txt"]}, ["a.txt", "sub/b.txt", "sub/deep/d.txt"]),
        ({"include": "sub"}, ["sub/b.txt", "sub/c.md", "sub/deep/d.txt"]),
        ({"include": ["sub/*.txt"]}, ["sub/b.txt"]),
        ({"include": ["sub/**/*.txt"]}, ["sub/b.txt", "sub/deep/d.txt"]),
        ({"include": ["/*.txt"]}, ["a.txt"]),
        ({"include": ["*.odd"]}, ["e.odd"]),
        ({"exclude": ["*.md"]}, ["a.txt", "sub/b.txt", "sub/deep/d.txt"]),
        ({"exclude": ["deep"]}, ["a.txt", "sub/b.txt", "sub/c.md"]),
        ({"exclude": ["sub/"]}, ["a.txt"]),
        ({"include": ["*.txt", "*.md"], "exclude": ["a.*", "deep"]}, ["sub/b.txt", "sub/c.md"]),
    ],
)
@pytest.mark.parametrize("shape", ["folder", "pattern"])
def test_include_and_exclude_choose_files(
    tmp_path: Path, options: dict[str, Any], wanted: list[str], shape: str
) -> None:
    folder = tmp_path / "in"
    names = ["a.txt", "e.odd", "sub/b.txt", "sub/c.md", "sub/deep/d.txt"]
    for name in names:
        put(folder / name, f"the text of {name}")
    source = folder if shape == "folder" else folder / "**" / "*"
    if shape == "pattern":  # which names the odd one too
        wanted = sorted({*wanted, *(["e.odd"] if "include" not in options else [])})
    result = shardmill.prepare(source, tmp_path / "out", val=0, **options)
    found = [os.path.relpath(one["name"], folder) for one in result.manifest["sources"]]
    assert found == wanted
    skipped = result.manifest["skipped"]
    if shape == "pattern" or options.get("exclude") not in (["deep"], ["sub/"], ["a.*", "deep"]):
        assert skipped["files"] == len(names) - len(wanted)
    else:
        assert skipped["kinds"]["excluded folder"] == 1
    assert shardmill.prepare(source, tmp_path / "out", val=0, **options).already
    with pytest.raises(ShardmillError, match=r"include|exclude|source"):
        shardmill.prepare(source, tmp_path / "out", val=0, exclude=["b.txt", "other"])


def test_include_and_exclude_that_leave_nothing_are_a_wrong_call(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.txt", "text")
    for source in (tmp_path / "in", tmp_path / "in" / "*.txt"):
        with pytest.raises(UsageError) as caught:
            shardmill.prepare(source, tmp_path / "out", exclude="*")
        assert "leave nothing" in str(caught.value)


def test_a_file_that_is_named_is_read_whatever_the_patterns(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "some text")
    assert shardmill.prepare(path, tmp_path / "out", val=0, exclude="*.txt").manifest["documents"] == 1


@pytest.mark.parametrize("name", ["data.csv", "data.json"])
def test_a_folder_that_is_mostly_tables_without_the_field_is_an_error(tmp_path: Path, name: str) -> None:
    put(tmp_path / "in" / "README.md", "about the data")
    put(tmp_path / "in" / name, "a,b\n1,2\n" if name.endswith("csv") else '[\n {"body": "x"}\n]\n')
    with pytest.raises(ShardmillError):
        shardmill.prepare(tmp_path / "in", tmp_path / "out", val=0)


def test_the_name_of_a_hub_dataset_is_answered_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("prepare", "roneneldan/TinyStories", "-o", tmp_path / "out")
    assert ran.returncode == 2 and "hf://datasets/roneneldan/TinyStories" in ran.stderr
    assert "hf://" not in run("prepare", "texts/a.txt", "-o", tmp_path / "out").stderr


def test_a_source_that_is_named_twice_is_a_warning(tmp_path: Path) -> None:
    path = put(tmp_path / "in" / "a.txt", "some text")
    once = shardmill.prepare(tmp_path / "in", tmp_path / "once", val=0)
    assert not any("twice" in warning for warning in once.warnings)
    for number, sources in enumerate(([path, path], [tmp_path / "in", path])):
        result = shardmill.prepare(sources, tmp_path / f"twice{number}", val=0)
        assert result.manifest["documents"] == 2
        assert any("is read twice" in warning for warning in result.warnings)
