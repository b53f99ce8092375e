"""The rules of the design that a reader relies on, as tests, so that they cannot rot."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from shardmill import documents
from shardmill.run import splits
from shardmill.storage import feeds
from shardmill.tokens import cuts

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "shardmill"
MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHON = sorted(
    path
    for folder in ("src", "tests", "benchmarks", "examples", "docs")
    for path in (ROOT / folder).rglob("*.py")
    if ".cache" not in path.parts
)
FOLDERS = ("storage", "sources", "documents", "tokens", "shards")
"""The path of the data. None imports another, but all may use `storage` and what knows of no folder."""
HEAVY = ("numpy", "pyarrow", "rich", "tiktoken", "tokenizers", "psutil", "zstandard", "isal")

STARTS_THREADS = {
    "run/pipeline.py",
    "write/checkpoints.py",
    "run/process_limit.py",
    "write/progress.py",
    "interrupts.py",
    "storage/pool.py",
    "inspection/sample.py",
    "cluster/part_process.py",
}
"""The feeder and the workers; the checkpoint thread, which hashes and syncs; what moves the limit of the process;
progress; what ends a command on a signal; what asks servers; what samples before a run; what reads the numbers of
parts."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(path: Path) -> list[str]:
    """The dotted name of everything that a file imports, wherever in it."""
    return list(imports_in(path, tree(path)))


def imports_in(path: Path, parsed: ast.Module) -> Iterator[str]:
    here = ("shardmill", *path.relative_to(PACKAGE).with_suffix("").parts) if path.is_relative_to(PACKAGE) else ()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(here[: len(here) - node.level]) if node.level else ""
            base = ".".join(part for part in (above, node.module or "") if part)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("needs", "importlib.import_module"):
            yield from (str(part.value) for part in node.args[:1] if isinstance(part, ast.Constant))


def own(names: Iterable[str]) -> set[str]:
    """The first names under shardmill: `documents`, `errors`, …"""
    known = {path.stem if path.suffix else path.name for path in PACKAGE.iterdir()}
    return {name.split(".")[1] for name in names if name.startswith("shardmill.") and name.split(".")[1] in known}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_on_the_path_of_the_data_imports_no_other_but_storage(folder: str) -> None:
    leaves = {
        "arguments",
        "detection",
        "errors",
        "extras",
        "input_formats",
        "lazy",
        "options",
        "output_formats",
        "python_sources",
        "source_list",
        "units",
    }
    known = {folder, "storage", "core", *leaves}
    found = {named(path): own(imports(path)) - known for path in (PACKAGE / folder).rglob("*.py")}
    assert {path: others for path, others in found.items() if others} == {}


def test_storage_knows_of_bytes_alone() -> None:
    found = {named(path): own(imports(path)) for path in (PACKAGE / "storage").rglob("*.py")}
    assert {path: others for path, others in found.items() if others - {"storage", "core", "errors", "extras"}} == {}


def test_a_dataset_is_written_without_knowing_who_makes_its_batches() -> None:
    makers = {"run", "arrange", "cluster", "inspection", "dataset", "reporting", "sources", "tokens"}
    found = {named(path): own(imports(path)) & makers for path in (PACKAGE / "write").rglob("*.py")}
    assert {path: others for path, others in found.items() if others} == {}


def test_the_mathematics_of_an_order_knows_of_no_files() -> None:
    for name in ("packing.py", "mixing.py"):
        assert own(imports(PACKAGE / "arrange" / name)) <= {"errors"}


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_others_use_a_folder_only_by_its_interface(folder: str) -> None:
    inside = {f"shardmill.{folder}.{path.stem}" for path in (PACKAGE / folder).glob("*.py")}
    others = [path for path in MODULES if folder not in path.relative_to(PACKAGE).parts[:1]]
    found = {named(path): inside & set(imports(path)) for path in others}
    assert {path: names for path, names in found.items() if names} == {}
    interface = import_module(f"shardmill.{folder}")
    asked = {name for path in others for name in imports(path) if name.startswith(f"shardmill.{folder}.")}
    named_there = getattr(interface, "__all__", dir(interface))
    assert asked <= {f"shardmill.{folder}.{name}" for name in named_there}
    assert [name for name in named_there if not hasattr(interface, name)] == []


def test_a_class_name_occurs_once() -> None:
    seen: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name, []).append(named(path))
    del seen["Documents"]  # of a chunk, and those of a finished dataset, as its users know them
    assert {name: places for name, places in seen.items() if len(places) > 1} == {}


def test_a_constant_that_others_import_is_defined_once() -> None:
    imported = {name.rpartition(".")[2] for path in MODULES for name in imports(path)}
    defined: dict[str, list[str]] = {}
    for path in MODULES:
        for name in constants(path):
            defined.setdefault(name.lstrip("_"), []).append(named(path))
    assert {name: places for name, places in defined.items() if name in imported and len(places) > 1} == {}


def test_the_size_of_a_span_and_the_ending_of_a_partial_file_are_written_once() -> None:
    for text in ("65536", '.partial"'):
        found = [named(path) for path in MODULES if text in re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)]
        assert len(found) == 1, (text, found)


def test_a_feed_holds_what_a_cut_looks_back_at() -> None:
    # A cut that saw less would find other places in a stream than in a file. Three bytes may end a character.
    assert feeds.CONTEXT >= cuts.CUT_CONTEXT + 3
    assert splits.PREFIX == documents.SPAN


def constants(path: Path) -> Iterator[str]:
    """The names of the numbers that a module defines."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                yield from (one.id for one, value in pairs if isinstance(one, ast.Name) and _is_number(value))


def _is_number(value: ast.expr) -> bool:
    parts = [part for part in ast.walk(value) if not isinstance(part, (ast.operator, ast.unaryop))]
    numbers = [part for part in parts if isinstance(part, ast.Constant) and type(part.value) in (int, float)]
    return bool(numbers) and all(isinstance(part, (ast.BinOp, ast.UnaryOp)) or part in numbers for part in parts)


def test_nobody_outside_shards_knows_a_token_format_by_its_name() -> None:
    from shardmill.shards import FORMATS

    names = set(FORMATS) - {"shards", "parquet"}  # a folder's name too; a format of sources too
    found = {}
    for path in MODULES:
        if "shards" not in path.relative_to(PACKAGE).parts and path.name != "output_formats.py":
            texts = {node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)}
            found[named(path)] = {text for text in texts if isinstance(text, str) and text in names}
    assert {path: known for path, known in found.items() if known} == {}


def test_no_two_folders_import_each_other_not_even_late() -> None:
    """An import within a function may save time; it must not hide that two folders need each other."""
    needed: dict[str, set[str]] = {}
    for path in MODULES:
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        needed.setdefault(here, set()).update(own(name for name in at_run_time(path)) - {here})
    order: list[str] = []
    while free := [name for name in needed if name not in order and needed[name] <= {*order}]:
        order += free
    assert sorted(set(needed) - set(order)) == [], "these form a circle, or stand behind one"


def test_no_module_imports_more_than_a_dozen_others() -> None:
    found = {}
    for path in MODULES:
        if path.name != "__init__.py":  # which is a folder's interface
            names = {name for name in at_run_time(path) if name.startswith("shardmill.")}
            modules = {name for name in names if (PACKAGE / Path(*name.split(".")[1:])).with_suffix(".py").exists()}
            found[named(path)] = modules | {name for name in names if (PACKAGE / name.split(".", 1)[1]).is_dir()}
    everybodys = {f"shardmill.{name}" for name in ("errors", "options", "units", "core", "extras")}
    many = {path: len(names - everybodys) for path, names in found.items()}
    assert {path: count for path, count in many.items() if count > 12} == {}


def at_run_time(path: Path) -> Iterator[str]:
    """What `imports` gives, but for what only a type checker needs."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    for node in tree(path).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            lines[node.lineno - 1 : node.body[-1].end_lineno] = ["\n"] * (node.body[-1].end_lineno - node.lineno + 1)
    return imports_in(path, ast.parse("".join(lines)))


def test_errors_imports_nobody_and_extras_only_errors() -> None:
    assert own(imports(PACKAGE / "errors.py")) == set()
    assert own(imports(PACKAGE / "extras.py")) == {"errors"}


def test_only_the_entry_points_import_cli() -> None:
    importers = {named(path) for path in MODULES if "cli" in own(imports(path)) and path.name != "__main__.py"}
    assert importers == set()


def test_threads_are_started_in_few_places_only() -> None:
    starters = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "start_new_thread", "Pool", "Process"}
    found = set()
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                # psutil.Process looks at a process, it does not start one.
                if called in starters and ast.unparse(node.func) != "psutil.Process":
                    found.add(path.relative_to(PACKAGE).as_posix())
    assert found == STARTS_THREADS


def test_no_file_has_a_name_that_says_nothing() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
    assert [named(path) for path in PYTHON if path.stem in vague] == []


def test_no_file_is_too_long_to_be_held_in_ones_head() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON}
    assert {path: length for path, length in lengths.items() if length > 500} == {}


def test_no_exception_is_swallowed() -> None:
    broad = {"Exception", "BaseException"}
    found = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler):
                caught = {getattr(part, "id", "") for part in ast.walk(node.type)} if node.type else broad
                silent = all(isinstance(step, (ast.Pass, ast.Continue)) or _is_ellipsis(step) for step in node.body)
                if silent and caught & broad:
                    found.append(f"{named(path)}:{node.lineno}")
    assert found == []


def _is_ellipsis(step: ast.stmt) -> bool:
    return isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant) and step.value.value is ...


@pytest.mark.parametrize(
    "code",
    [
        "import shardmill",
        "import shardmill; shardmill.ShardmillError",
        "import sys; sys.argv = ['shardmill', '--help']; from shardmill.cli import main; main()",
        "import sys; sys.argv = ['shardmill', 'prepare', '--help']; from shardmill.cli import main; main()",
    ],
)
def test_asking_for_help_imports_nothing_heavy(code: str) -> None:
    ask = f"""
import atexit, sys
atexit.register(lambda: print("HEAVY", [name for name in {HEAVY} if name in sys.modules]))
{code}
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_a_run_imports_no_reference_tokenizer(tmp_path: Path) -> None:
    # Each would add some hundredths to a quarter of a second to every run, with the interpreter's lock held.
    unwanted = ["tiktoken", "tokenizers", "pyarrow.parquet", "pyarrow.compute"]
    unwanted += ["psutil"] if sys.platform == "linux" else []
    (tmp_path / "a.txt").write_text("Some words, and some more of them.")
    ask = f"""
import sys, shardmill
shardmill.prepare({str(tmp_path / "a.txt")!r}, {str(tmp_path / "out")!r})
print([name for name in {unwanted} if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.jsonl"])
def test_a_run_over_rows_never_imports_pandas(name: str, tmp_path: Path) -> None:
    # `pyarrow.array`, `scalar` and `fill_null` do wherever it is installed: a third of a second of every run.
    pytest.importorskip("pandas", reason="pandas is not installed, so nothing can import it")
    texts = ["Some words.", None, "Some words.", "", "More of them."]
    write_rows(tmp_path / name, texts)
    ask = f"""
import sys, shardmill
shardmill.prepare({str(tmp_path / name)!r}, {str(tmp_path / "out")!r}, max_bad="any")
print("pandas" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr


def write_rows(path: Path, texts: list[str | None]) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table({"text": texts})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        pyarrow.feather.write_feather(table, path)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_every_dependency_is_imported_and_everything_imported_is_declared() -> None:
    needed, extras, _ = declared()
    foreign = outside(MODULES)
    assert needed - foreign == set(), "declared and never imported"
    assert extras - foreign == set(), "an extra with no code behind it"
    assert foreign - needed - extras == set(), "imported and not declared"


def test_everything_that_the_tests_import_is_declared() -> None:
    needed, _, tools = declared()
    # torch brings gigabytes of CUDA on some machines, and ray is 260 MB, so what needs them is skipped where they are
    # not; moto brings yaml. Where there is no `datasets`, pyarrow writes the same folders.
    ours = {"tests", "benchmarks", "docs", "hatch_build", "wheels"}
    known = needed | tools | ours | {"torch", "ray", "datasets", "yaml"}
    assert outside(path for path in PYTHON if path.is_relative_to(ROOT / "tests")) - known == set()


def declared() -> tuple[set[str], ...]:
    """What is always installed, what comes with the extras, and what with the extras for tests and documentation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"]
    extras = [entry for name, group in groups.items() if name not in ("test", "docs") for entry in group]
    lists = (project["dependencies"], extras, [*groups["test"], *groups["docs"]])
    return tuple({_bare(entry).replace("-", "_") for entry in entries} for entries in lists)


def outside(paths: Iterable[Path]) -> set[str]:
    """The packages, neither ours nor Python's own, that these files import."""
    imported = {name.split(".")[0] for path in paths for name in imports(path)}
    newer = {"compression"}  # of 3.14
    return imported - set(sys.stdlib_module_names) - newer - {"shardmill", "__future__", ""}


def test_the_reasons_for_the_dependencies_are_written_down() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    reasons = (ROOT / "docs" / "dev" / "dependencies.md").read_text(encoding="utf-8")
    told = set(map(_bare, re.findall(r"^\| `([\w.-]+)`", reasons, re.MULTILINE)))
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    assert {_bare(entry) for group in groups for entry in group} - told == set()


def _bare(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0]


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/dev/dependencies.md"])
def test_the_files_that_a_document_names_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    names = re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./-]+|[A-Z]\w+\.md|Makefile|pyproject\.toml)`", text)
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_no_path_of_somebodys_machine_stands_in_the_project() -> None:
    texts = [*PYTHON, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    personal = re.compile(r"/(?:home|root|Users|work)/\w")
    found = [named(path) for path in texts if personal.search(path.read_text(encoding="utf-8"))]
    assert found == []
