"""The stored plan of a run in parts: one plan wins, it keeps its own list of sources, and it can be replaced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import shardmill
from shardmill.cluster import make_part, merge, plan_parts, prepare_in_parts, read_part_plan
from shardmill.cluster.place import Place
from shardmill.errors import MismatchError, OutputError, SourceError
from tests.cluster.test_commands import run
from tests.corpus import contents, documents, write_jsonl
from tests.object_store import Bucket, bucket, s3_server  # noqa: F401 - fixtures

pytestmark = pytest.mark.thorough

OPTIONS: dict[str, Any] = {"val": 0.1, "format": "shards", "shard_tokens": 10_000}
MEMORY = "8GB"  # more than the tests' own process holds already
Out = tuple[str, Callable[..., dict[str, bytes]]]
SOURCES = ("a", "b", "c")
ROUNDS = 5


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    # Of one size, so that a list of one fits the plan of another.
    texts = documents(200, seed=3)
    return {
        name: write_jsonl(tmp_path / f"{name}.jsonl", texts[number:] + texts[:number])
        for number, name in enumerate(SOURCES)
    }


@pytest.fixture
def expected(tmp_path: Path, sources: dict[str, Path]) -> dict[str, dict[str, bytes]]:
    """The files of each source, made by one run."""
    for name, source in sources.items():
        shardmill.prepare(source, tmp_path / "one" / name, memory=MEMORY, name="x", **OPTIONS)
    return {name: contents(tmp_path / "one" / name) for name in sources}


@pytest.fixture(params=["folder", "store"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Out:
    """Where datasets go, and a function that reads the files of one."""
    if request.param == "folder":
        return str(tmp_path / "out"), lambda name="": contents(tmp_path / "out" / name)
    made: Bucket = request.getfixturevalue("bucket")
    return made.url(), lambda name="": made.contents(f"out/{name}/" if name else "out/")


def finish(out: str) -> None:
    for part in read_part_plan(out).parts:
        make_part(out, part.number, memory=MEMORY)
    merge(out, memory=MEMORY)


def planned(source: Path, out: str, **options: Any) -> Any:
    return plan_parts(source, out, parts=2, name="x", **OPTIONS, **options)


def remove_plan(out: str, request: pytest.FixtureRequest) -> None:
    """What a kill leaves: a plan is stored last and deleted first."""
    if "://" in out:
        request.getfixturevalue("bucket").delete(".parts/plan.json")
    else:
        (Path(out) / ".parts" / "plan.json").unlink()


@pytest.mark.parametrize("made", [[], [0], [0, 1]], ids=["no part", "one part", "all parts"])
def test_nothing_of_a_plan_that_was_killed_reaches_the_next_one(
    sources: dict[str, Path],
    expected: dict[str, dict[str, bytes]],
    out: Out,
    request: pytest.FixtureRequest,
    made: list[int],
) -> None:
    planned(sources["a"], out[0])
    for number in made:
        make_part(out[0], number, memory=MEMORY)
    remove_plan(out[0], request)
    planned(sources["b"], out[0])
    finish(out[0])
    assert out[1]() == expected["b"]


def test_of_planners_at_once_with_other_sources_one_wins_and_keeps_its_own_list(
    sources: dict[str, Path], expected: dict[str, dict[str, bytes]], out: Out, tmp_path: Path
) -> None:
    for number in range(ROUNDS):
        at = f"{out[0]}/{number}"
        barrier = Barrier(len(sources))

        def plan(name: str, at: str = at, barrier: Barrier = barrier) -> bool:
            barrier.wait(60)
            try:
                planned(sources[name], at)
            except MismatchError:
                return False
            return True

        with ThreadPoolExecutor(len(sources)) as pool:
            won = dict(zip(sources, pool.map(plan, sources), strict=True))
        assert sum(won.values()) == 1
        (winner,) = (name for name, first in won.items() if first)
        plan_of, _ = read_part_plan(at).load(None, {})
        assert [source.name for source in plan_of.sources] == [str(sources[winner])]
        if number == 0:
            finish(at)
            assert out[1]("0") == expected[winner]


def test_planners_at_once_with_the_same_sources_all_get_the_same_plan(sources: dict[str, Path], out: Out) -> None:
    for number in range(ROUNDS):
        at = f"{out[0]}/{number}"
        barrier = Barrier(4)

        def plan(_: int, at: str = at, barrier: Barrier = barrier) -> Any:
            barrier.wait(60)
            return planned(sources["a"], at)

        with ThreadPoolExecutor(4) as pool:
            plans = list(pool.map(plan, range(4)))
        assert all(one == plans[0] for one in plans)


@pytest.mark.parametrize("state", ["planned", "some parts", "complete"])
def test_overwrite_replaces_a_plan_its_parts_and_its_dataset(
    sources: dict[str, Path], expected: dict[str, dict[str, bytes]], out: Out, state: str
) -> None:
    planned(sources["a"], out[0])
    if state == "some parts":
        make_part(out[0], 0, memory=MEMORY)
    if state == "complete":
        finish(out[0])
    with pytest.raises(MismatchError, match="overwrite=True"):
        planned(sources["b"], out[0])
    planned(sources["b"], out[0], overwrite=True)
    finish(out[0])
    assert out[1]() == expected["b"]


@pytest.mark.parametrize("keep", [False, True], ids=["to be merged", "kept"])
def test_a_part_of_a_plan_that_was_replaced_meanwhile_is_not_published(
    sources: dict[str, Path], out: Out, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    planned(sources["a"], out[0], keep_parts=keep)
    publish, files = Place.publish, list[dict[str, bytes]]()

    def late(self: Place, *arguments: Any, **more: Any) -> bool:
        monkeypatch.undo()
        planned(sources["b"], out[0], keep_parts=keep, overwrite=True)
        for number in (0, 1):
            make_part(out[0], number, memory=MEMORY)
        files.append(out[1]())
        return publish(self, *arguments, **more)

    monkeypatch.setattr(Place, "publish", late)
    assert make_part(out[0], 0, memory=MEMORY).made is False
    assert out[1]() == files[0]


def test_a_dataset_that_is_complete_says_so(sources: dict[str, Path], out: Out) -> None:
    planned(sources["a"], out[0])
    finish(out[0])
    assert merge(out[0]).already
    assert prepare_in_parts(sources["a"], out[0], parts=2, name="x", memory=MEMORY, **OPTIONS).already
    with pytest.raises(MismatchError):
        prepare_in_parts(sources["b"], out[0], parts=2, name="x", memory=MEMORY, **OPTIONS)


def test_overwrite_works_with_an_executor(
    sources: dict[str, Path], expected: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"name": "x", "memory": MEMORY, **OPTIONS}
    out = tmp_path / "out"
    planned(sources["a"], str(out))
    with pytest.raises(MismatchError, match="other parts"):
        prepare_in_parts(sources["a"], out, parts=3, **settings)
    prepare_in_parts(sources["a"], out, parts=3, overwrite=True, **settings)
    assert contents(out) == expected["a"]
    with pytest.raises(MismatchError):
        prepare_in_parts(sources["b"], out, parts=3, **settings)
    prepare_in_parts(sources["b"], out, parts=3, overwrite=True, **settings)
    assert contents(out) == expected["b"]


BAD: dict[str, Any] = {"val": 0, "name": "x", "memory": MEMORY}


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.jsonl"
    lines = write_jsonl(path, documents(400, seed=3)).read_text().splitlines()
    path.write_text("\n".join(line if number % 2 else "{bad" for number, line in enumerate(lines)))
    return path


@pytest.mark.parametrize("allowed", ["0.1%", "10"], ids=["a share, which the merge counts", "a number"])
def test_bad_documents_that_stopped_an_executor_can_be_allowed_afterwards(
    tmp_path: Path, bad: Path, allowed: str
) -> None:
    shardmill.prepare(bad, tmp_path / "one", max_bad="any", **BAD)
    with pytest.raises(SourceError, match="max_bad"):
        prepare_in_parts(bad, tmp_path / "out", parts=2, max_bad=allowed, **BAD)
    prepare_in_parts(bad, tmp_path / "out", parts=2, max_bad="any", **BAD)
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def test_bad_documents_that_stopped_a_part_or_a_merge_can_be_allowed_afterwards(tmp_path: Path, bad: Path) -> None:
    shardmill.prepare(bad, tmp_path / "one", max_bad="any", **BAD)
    out = tmp_path / "out"
    run("plan", bad, "-o", out, "--parts", 2, "--val", 0, "--name", "x", "--max-bad", "150")
    assert "--max-bad any" in run("prepare", "--plan", out, "--part", 0, "--max-bad", 10, code=1)
    for number in (0, 1):
        run("prepare", "--plan", out, "--part", number)
    assert "--max-bad any" in run("merge", out, code=1)
    run("merge", out, "--max-bad", "any")
    assert contents(out) == contents(tmp_path / "one")


def test_a_part_cannot_be_overwritten_and_the_hint_names_the_plan(sources: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned(sources["a"], str(out))
    said = run("prepare", "--plan", out, "--part", 0, "--overwrite", code=2)
    assert f"shardmill plan SOURCE… -o {out} --overwrite" in said


def test_a_lost_list_of_sources_is_an_error_with_its_name(sources: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = planned(sources["a"], str(out))
    shutil.move(out / ".parts" / plan.listed, out / ".parts" / "moved")
    with pytest.raises(OutputError, match="list of sources"):
        make_part(out, 0, memory=MEMORY)


def test_a_planner_that_is_killed_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    store, seen = Place.store, list[list[Path]]()

    def stored(self: Place, name: str, content: Any) -> None:
        seen.append(list((tmp_path / "temporary").iterdir()))
        store(self, name, content)

    monkeypatch.setattr(Place, "store", stored)
    plan_parts(write_jsonl(tmp_path / "a.jsonl", documents(20)), tmp_path / "out", parts=2)
    assert seen == [[]]
