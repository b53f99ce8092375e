"""Runs that die: `kill -9` between any two steps, and power failures that take with them what was not synced.

A power failure cuts files back to what was synced, and undoes every rename and link whose folder was not synced since.

A run happens in a forked child in which every step that touches the disk is counted; the child kills itself at the
n-th. Children are forked from a helper process, because the tests' own process has threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.corpus import contents

_STEPS = 1000
_LINK, _RENAME, _UNLINK = os.link, os.replace, os.unlink
_REMOVAL = ".shardmill/removal.json"


DIFFERENT = ("nanogpt", "llmc", "megatron", "mds")
"""Formats whose files end in different ways, for tests that are not slow: as they are, with a header, with indexes."""


def crash_everywhere(
    source: Path, out: Path, *, every: int = 1, power: float = 0.0, **options: Any
) -> list[dict[str, str]]:
    """Kill a run at each `every`-th step; resume it, killed again on the way, with other settings, to its end.

    Asserts that all ends have the same bytes as a run that nobody disturbed. Gives the hashes of what each kill left.
    `power`: the share of what was not synced that is lost as well. With the option `largest`, records of more bytes do
    not fit into the memory of runs that are killed.
    """
    with _Helper() as helper:
        whole = out.with_name(out.name + "-whole")
        assert helper.run(source, whole, 0, 0.0, **options) == 0
        expected = contents(whole)
        left = []
        for step in range(1, _STEPS, every):
            shutil.rmtree(out, ignore_errors=True)
            code = helper.run(source, out, step, power, workers=2, **options)
            if code == 0:
                assert step > 1, "not one step was counted"
                break
            assert code == -signal.SIGKILL, f"died with {code} instead of being killed"
            left.append({name: hashlib.sha256(data).hexdigest() for name, data in contents(out).items()})
            # A second death on the way, with one worker and other chunks, and then a third run that ends.
            helper.run(source, out, 1 + step % 7, power, workers=1, chunk=1 << 17, **options)
            assert helper.run(source, out, 0, 0.0, workers=3, memory="700MB", **options) == 0
            assert contents(out) == expected, f"other bytes after a death at step {step}"
        else:
            raise AssertionError(f"more than {_STEPS} steps: make the test smaller")
        return left


def crash_everywhere_in_store(
    source: Path, bucket: Any, machines: Path, *, every: int = 1, chunk: int = 1 << 16, **options: Any
) -> int:
    """The same with an output in an object store, where each run is another machine's: it finds nothing on its disk.

    Kills are between any two requests, and within uploads. Gives how many there were.
    """
    with _Helper() as helper:
        assert helper.run(source, machines / "whole", 0, 0.0, **options) == 0
        expected = contents(machines / "whole")
        for step in range(1, _STEPS, every):
            url, prefix = bucket.url(f"step{step}"), f"step{step}/"
            code = helper.run(source, url, step, 0.0, chunk, machines / f"{step}a", workers=2, **options)
            if code == 0:
                assert step > 1, "not one step was counted"
                return step // every
            assert code == -signal.SIGKILL, f"died with {code} instead of being killed"
            helper.run(source, url, 4 + step % 7, 0.0, 2 * chunk, machines / f"{step}b", workers=1, **options)
            last = {"workers": 3, "memory": "1GB", **options}
            assert helper.run(source, url, 0, 0.0, chunk, machines / f"{step}c", **last) == 0
            assert bucket.contents(prefix) == expected, f"other bytes after a death at step {step}"
            assert [name for name in bucket.names(prefix) if name[0] == "."] == [".shardmill/plan.json"]
            assert bucket.uploads() == []
        raise AssertionError(f"more than {_STEPS} steps: make the test smaller")


def crash_overwrites(
    source: Path,
    out: Path,
    before: dict[str, Any],
    after: dict[str, Any],
    *,
    unfinished: int = 0,
    every: int = 1,
    power: float = 0.0,
) -> dict[str, int]:
    """Replace a dataset by another with `overwrite`, killed at each `every`-th step; then run without `overwrite`.

    `before`, `after`: the options of the two. `unfinished`: the run of the first was killed at this step.
    `power`: the share of what was not synced that is lost as well.
    Asserts that either nothing was touched or nothing of the first is left; counts how the kills ended.
    """
    plans = {"after": after, "third": {**after, "seed": 7}}
    ends = dict.fromkeys(("untouched", "complete", *plans), 0)
    with _Helper() as helper:
        first, expected = out.with_name("first"), {}
        helper.run(source, first, unfinished, 0.0, **before)
        for name, options in plans.items():
            assert helper.run(source, out.with_name(name), 0, 0.0, **options) == 0
            expected[name] = contents(out.with_name(name))
        for step in range(1, _STEPS, every):
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(first, out)
            code = helper.run(source, out, step, power, overwrite=True, **after)
            if code == 0:
                return ends
            assert code == -signal.SIGKILL, f"died with {code} instead of being killed"
            if contents(out) == contents(first) and not ((out / _REMOVAL).exists() and unfinished):
                ends["untouched"] += 1
            elif (out / "manifest.json").exists():
                ends["complete"] += 1
                assert contents(out) == expected["after"]
            else:
                # A third plan is refused as soon as the new run has begun.
                name = next(name for name in ("third", "after") if helper.run(source, out, 0, 0.0, **plans[name]) == 0)
                ends[name] += 1
                assert contents(out) == expected[name], f"other files after a death at step {step}"
        raise AssertionError(f"more than {_STEPS} steps: make the test smaller")


def crash_overwrites_in_store(
    source: Path, bucket: Any, machines: Path, before: dict[str, Any], after: dict[str, Any], *, every: int = 1
) -> int:
    """The same in an object store, where each run is another machine's. Gives how many kills there were."""
    with _Helper() as helper:
        assert helper.run(source, machines / "after", 0, 0.0, **after) == 0
        expected = contents(machines / "after")
        for step in range(1, _STEPS, every):
            url, prefix = bucket.url(f"step{step}"), f"step{step}/"
            assert helper.run(source, url, 0, 0.0, 1 << 16, machines / "before", **before) == 0
            first = bucket.contents(prefix)
            code = helper.run(source, url, step, 0.0, 1 << 16, machines / f"{step}a", overwrite=True, **after)
            if code == 0:
                assert step > 1, "not one step was counted"
                return step // every
            assert code == -signal.SIGKILL, f"died with {code} instead of being killed"
            if "manifest.json" in bucket.names(prefix) and (there := bucket.contents(prefix)) != expected:
                assert there == first, f"not as it was before step {step}"
                continue
            assert helper.run(source, url, 0, 0.0, 1 << 16, machines / f"{step}b", **after) == 0
            assert bucket.contents(prefix) == expected, f"other files after a death at step {step}"
            assert [name for name in bucket.names(prefix) if name[0] == "."] == [".shardmill/plan.json"]
        raise AssertionError(f"more than {_STEPS} steps: make the test smaller")


def crash_parts(
    source: Path, out: Path, parts: int, *, every: int = 1, power: float = 0.0, rolling: bool = False, **options: Any
) -> int:
    """Kill plan, parts and merge at each `every`-th step, and again soon after; then let them come to their end.

    `rolling`: the merge begins with the first part, and has the others made as it comes to them.
    Asserts that all ends have the bytes of one run, or with `keep_parts` of one that nobody disturbed; gives how many
    times it was killed.
    """
    with _Helper() as helper:
        assert helper.run(source, out / "alone", 0, 0.0, parts=parts * options.get("keep_parts", 0), **options) == 0
        expected = contents(out / "alone")
        options = {"parts": parts, "rolling": rolling, **options}
        for step in range(1, _STEPS * every, every):
            folder = out / str(step)
            code = helper.run(source, folder, step, power, **options)
            if code == 0:
                return step // every
            assert code == -signal.SIGKILL, f"died with {code} instead of being killed"
            helper.run(source, folder, 3 + step % 11, power, **options)
            assert helper.run(source, folder, 0, 0.0, **options) == 0, f"no end after step {step}"
            assert contents(folder) == expected, f"other bytes after a death at step {step}"
            assert not (folder / ".parts").exists()
            shutil.rmtree(folder)
        raise AssertionError(f"more than {_STEPS} steps: make the test smaller")


class _Helper:
    """A process without threads that forks a child for each run."""

    def __enter__(self) -> _Helper:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crashing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(
        self,
        source: Path,
        out: Path | str,
        step: int,
        power: float,
        chunk: int = 1 << 16,
        cache: Path | None = None,
        parts: int = 0,
        rolling: bool = False,
        **options: Any,
    ) -> int:
        """The exit code of a run that dies at `step`; 0: it came to its end. `parts`: made in so many, and merged."""
        order = {
            "source": str(source),
            "out": str(out),
            "step": step,
            "power": power,
            "chunk": chunk,
            "cache": str(cache) if cache else None,
            "parts": parts,
            "rolling": rolling,
            "options": options,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        # All imports happen before the fork, so that a child starts at once.
        import_module("shardmill.cluster" if order["parts"] else "shardmill.preparing")
        if order["options"].keys() & {"shuffle", "mix", "pack", "prepare_shuffled"}:
            import_module("shardmill.arrange.shuffled_text")
            import_module("shardmill.arrange.shuffling")
            import_module("shardmill.arrange.mixtures")
            import_module("shardmill.arrange.packed")
        if order["cache"]:
            import_module("botocore.session")
        child = os.fork()
        if child == 0:
            try:
                _die_at_a_step(**order)
            except BaseException:  # noqa: BLE001 - the child must not return into the parent's loop
                import traceback

                traceback.print_exc()
                os._exit(3)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201 - the answer


def _die_at_a_step(
    source: str,
    out: str,
    step: int,
    power: float,
    chunk: int,
    cache: str | None,
    parts: int,
    rolling: bool,
    options: dict[str, Any],
) -> None:
    import shardmill
    from shardmill.run import budget
    from shardmill.storage import files, object_store
    from shardmill.write import checkpoints, store_destination

    budget.LARGEST = budget.SMALLEST = chunk
    if (largest := options.pop("largest", 0)) and step:
        allow(largest)
    checkpoints._EVERY = 0.0  # a checkpoint after every result, so that there is something to kill between
    store_destination._EVERY = 0.0
    if cache:
        os.environ["XDG_CACHE_HOME"] = cache
    if step:
        steps = iter(range(step))
        disk = _Disk(Path(out))

        def count() -> None:
            if next(steps, None) is None:
                if power:
                    disk.fail(power)
                os.kill(os.getpid(), signal.SIGKILL)

        if cache:
            _count_requests(object_store.ObjectStore, count)
        else:
            _count_steps(files, count, disk, removing=bool(parts) or "overwrite" in options)
    if parts:
        _in_parts(source, out, parts, rolling, **options)
    elif weights := options.pop("mix", None):
        options.pop("workers", None)
        shardmill.mix(weights, out, **{"memory": "600MB", **options})
    elif options.pop("pack", False):
        options.pop("workers", None)
        shardmill.pack(source, out, **{"memory": "600MB", **options})
    elif options.pop("prepare_shuffled", False):
        shardmill.prepare(source, out, **{"memory": "600MB", "shuffle": True, **options})
    elif options.pop("shuffle", False):
        options.pop("workers", None)
        shardmill.shuffle(source, out, **{"memory": "600MB", **options})
    else:
        shardmill.prepare(source, out, **{"memory": "600MB", **options})


def allow(size: int, patch: Any = setattr, *, in_pieces: bool = True) -> None:
    """Let every budget encode at once records of so many bytes only, so that no test needs a gigabyte.

    `in_pieces`: larger ones may be encoded in pieces.
    """
    from shardmill.run.budget import Budget

    made = Budget.__init__

    def smaller(self: Any, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        self.largest = size
        self.largest_row = self.largest_row if in_pieces else 0

    patch(Budget, "__init__", smaller)


def _in_parts(source: str, out: str, parts: int, rolling: bool, **options: Any) -> None:
    from shardmill.cluster import make_part, merge, missing_parts, plan_parts
    from shardmill.cluster.merging import merge_parts
    from shardmill.write import Progress

    if not (Path(out) / "manifest.json").exists() or (Path(out) / ".parts" / "plan.json").exists():
        plan = plan_parts(source, out, parts=parts, **options)
        if rolling:
            merge_parts(parts_of_this_process(plan), plan, Progress(), memory="600MB")
            return
        for number in missing_parts(plan):
            make_part(out, number, memory="600MB")
    merge(out, memory="600MB")


def parts_of_this_process(plan: Any, memory: str = "600MB") -> Any:
    """Makes parts when they are asked for, in this process: the n-th step is always the same."""
    from shardmill.cluster import make_part
    from shardmill.cluster.parts import PlannedParts
    from shardmill.write import Manifest

    class OfThisProcess(PlannedParts):
        complete = False

        def __init__(self) -> None:
            super().__init__(plan)
            self.made: list[int] = []

        def manifest(self, number: int) -> Manifest:
            if self.find(number) is None:
                make_part(plan.out, number, memory=memory)
                self.made.append(number)
            return super().manifest(number)

    return OfThisProcess()


class _Disk:
    """What of a folder is on disk, and what a power failure takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # What is there before the run has survived a failure already.
        self._synced = {str(path): path.stat().st_size for path in _files(folder)}
        self._replaced = folder.with_name(f"{folder.name}.replaced")
        self._renamed: list[tuple[str, str, str]] = []
        """Renames whose folders were not synced since: the old name (empty: a link), the new one, what it replaced."""

    def synced(self, handle: int) -> None:
        """A file or a folder was synced."""
        path = os.readlink(f"/proc/self/fd/{handle}")
        self._synced[path] = os.fstat(handle).st_size
        self._renamed = [one for one in self._renamed if os.path.dirname(one[1]) != path]

    def rename(self, call: Any, one: str, other: str) -> None:
        """Rename a file or a folder, so that it can be undone."""
        kept = ""
        if os.path.isfile(other):
            self._replaced.mkdir(exist_ok=True)
            kept = str(self._replaced / str(len(os.listdir(self._replaced))))
            _LINK(other, kept)
        call(one, other)
        self._renamed.append((os.path.abspath(one), os.path.abspath(other), kept))
        self._move(one, other)

    def link(self, one: str, other: str) -> None:
        _LINK(one, other)
        self._synced[other] = self._synced.get(one, 0)
        self._renamed.append(("", os.path.abspath(other), ""))

    def _move(self, one: str, other: str) -> None:
        for path in [path for path in self._synced if path == one or path.startswith(f"{one}/")]:
            self._synced[other + path.removeprefix(one)] = self._synced.pop(path)

    def fail(self, share: float) -> None:
        """Undo renames; of what was not synced in each file, take the last `share`."""
        for one, other, kept in reversed(self._renamed):
            if one and os.path.exists(other) and os.path.isdir(os.path.dirname(one)):
                _RENAME(other, one)
                self._move(other, one)
            elif not one and os.path.exists(other):
                _UNLINK(other)
            if kept:
                _RENAME(kept, other)
                self._synced[other] = os.path.getsize(other)
        for path in _files(self._folder):
            size = path.stat().st_size
            os.truncate(path, size - int(share * max(0, size - self._synced.get(str(path), 0))))


def _count_steps(files: Any, count: Any, disk: _Disk, removing: bool) -> None:
    """Make every write, sync and rename a step, and every removal too if that is asked; a write may die half-way."""
    append, fsync, sync_data = files.PartialFile._append, os.fsync, files._sync_data

    def counted_append(self: Any, block: memoryview) -> None:
        append(self, block[: len(block) // 2])
        count()
        append(self, block[len(block) // 2 :])
        count()

    def counted_rename(rename: Any) -> Any:
        def renamed(one: Any, other: Any) -> None:
            count()
            disk.rename(rename, str(one), str(other))
            count()

        return renamed

    def counted_link(one: Any, other: Any) -> None:
        count()
        disk.link(str(one), str(other))
        count()

    def counted_unlink(unlink: Any) -> Any:
        def unlinked(*path: Any, **more: Any) -> None:
            count()
            unlink(*path, **more)

        return unlinked

    def counted_sync(sync: Any) -> Any:
        def synced_then(handle: int) -> None:
            count()
            sync(handle)
            disk.synced(handle)
            count()

        return synced_then

    files.PartialFile._append = counted_append
    os.replace, os.rename = counted_rename(os.replace), counted_rename(os.rename)
    os.link = counted_link  # type: ignore[assignment]
    if removing:
        os.unlink = counted_unlink(os.unlink)
    os.fsync = counted_sync(fsync)
    files._sync_data = counted_sync(sync_data)


def _count_requests(store: Any, count: Any) -> None:
    """Make every request that changes something a step, and every block of an upload."""

    def counted(method: Any) -> Any:
        def counting(self: Any, *arguments: Any) -> Any:
            count()
            answer = method(self, *arguments)
            count()
            return answer

        return counting

    def counted_blocks(self: Any, blocks: Any) -> Iterator[bytes]:
        for i, block in enumerate(blocks):
            if i % 4 == 0:
                count()
            yield block

    for name in ("put", "compare_and_swap", "upload", "delete"):
        setattr(store, name, counted(getattr(store, name)))
    store._counted = counted_blocks


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    _serve()
