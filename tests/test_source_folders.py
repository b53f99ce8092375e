"""What lies in folders that are read: pipes, datasets, links, odd names, and folders that change meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import shardmill
from shardmill.dataset import verify
from shardmill.errors import ShardmillError, SourceError, UsageError
from shardmill.sources import find_sources
from tests.corpus import contents, documents, write_jsonl
from tests.datasets import TOGETHER
from tests.meter import SHARDMILL
from tests.watching import interruptible, wait_until

pytestmark = pytest.mark.thorough

PATIENCE = 60  # seconds after which something hangs; what is tested takes one or two


def names(root: Path, *specs: object, **options: Any) -> list[str]:
    found = find_sources(list(map(str, specs or [root])), **options)
    return [os.path.relpath(source.name, root) for source in found]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (folder / name).write_text(f"The text of {name}, which is short.")
    return folder


@pytest.fixture
def special(texts: Path) -> Path:
    """A folder that also holds what is no file."""
    os.mkfifo(texts / "pipe.txt")
    (texts / "link.txt").symlink_to(texts / "pipe.txt")
    (texts / "zero.txt").symlink_to("/dev/zero")
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(texts)  # the name of a socket may have a hundred characters
        try:
            server.bind("socket.txt")
        finally:
            os.chdir(here)
    return texts


@pytest.mark.parametrize("pattern", ["", "/*.txt", "/**/*.txt"])
def test_pipes_sockets_and_devices_in_a_folder_are_skipped_and_counted(special: Path, pattern: str) -> None:
    found = find_sources([f"{special}{pattern}"])
    names = [os.path.relpath(source.name, special) for source in found]
    assert names == (["a.txt", "b.txt"] if pattern == "/*.txt" else ["a.txt", "b.txt", "sub/c.txt"])
    assert found.skipped.kinds == {"special file": 4}


def test_a_pipe_that_is_named_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)

    def write() -> None:
        with open(pipe, "wb") as file:
            for _ in range(3):
                file.write(b"some words ")
                file.flush()
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    result = shardmill.prepare(pipe, tmp_path / "out", val=0)
    writer.join(PATIENCE)
    assert result.manifest["splits"]["train"]["bytes"] == 33


def started(tmp_path: Path, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """A run that has come so far that it begins to read."""
    run = subprocess.Popen(
        [*SHARDMILL, "prepare", *map(str, arguments), "-o", tmp_path / "out"],
        stderr=subprocess.PIPE, preexec_fn=interruptible, **options,
    )  # fmt: skip
    wait_until((tmp_path / "out" / ".shardmill" / "journal.jsonl").exists)
    return run


def ended(run: subprocess.Popen[bytes]) -> int:
    try:
        return run.wait(PATIENCE)
    finally:
        run.kill()
        run.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("silent", ["a pipe that nobody writes to", "a pipe whose writer waits", "standard input"])
def test_a_read_that_waits_does_not_hold_up_an_end(tmp_path: Path, silent: str, number: int) -> None:
    pipe, held = tmp_path / "pipe.txt", []
    os.mkfifo(pipe)
    if silent == "standard input":
        run = started(tmp_path, "-", stdin=subprocess.PIPE)
    else:
        if silent == "a pipe whose writer waits":
            opening = threading.Thread(target=lambda: held.append(os.open(pipe, os.O_WRONLY)))
            opening.start()
        run = started(tmp_path, pipe)
        if silent == "a pipe whose writer waits":
            opening.join(PATIENCE)
            os.write(held[0], b"a beginning")
    run.send_signal(number)
    assert ended(run) == 130
    for descriptor in held:
        os.close(descriptor)


@pytest.mark.parametrize("input_format", ["auto", "text"])
@pytest.mark.parametrize("where", ["out", "sub/out", "z"])
def test_an_output_inside_the_source_is_no_source(texts: Path, where: str, input_format: str) -> None:
    out = texts / where
    options: dict[str, Any] = {"format": TOGETHER, "input_format": input_format, "val": 0.5, "shard_tokens": 100}
    first = shardmill.prepare(texts, out, **options)
    assert [os.path.relpath(one["name"], texts) for one in first.manifest["sources"]] == ["a.txt", "b.txt", "sub/c.txt"]
    made = contents(out)
    assert shardmill.prepare(texts, out, **options).already
    assert not shardmill.prepare(texts, out, **options, overwrite=True).already
    assert contents(out) == made
    shardmill.convert(out, texts / "other", format="mds")
    assert shardmill.prepare(texts, out, **options).already
    assert shardmill.inspect(texts, out).sources == 3


@pytest.mark.parametrize("pattern", ["*", "**/*", "**/*.txt", "*.txt", "."])
def test_an_output_among_the_sources_is_no_source(texts: Path, pattern: str) -> None:
    write_jsonl(texts / "bad.jsonl", [*documents(5), 7])
    options: dict[str, Any] = {"format": TOGETHER, "val": 0.5, "max_bad": "any"}
    found = shardmill.prepare(texts / pattern, texts, **options).manifest["sources"]
    assert shardmill.prepare(texts / pattern, texts, **options).already
    again = shardmill.prepare(texts / pattern, texts, **options, overwrite=True)
    assert again.manifest["sources"] == found


@pytest.mark.parametrize("spec", ["", "*", "**/*"])
def test_links_to_an_output_and_an_output_by_a_link_are_no_sources(tmp_path: Path, texts: Path, spec: str) -> None:
    out, link = texts / "out", tmp_path / "link"
    link.symlink_to(texts)
    shardmill.prepare(texts / spec, link / "out")
    (texts / "manifest.json").symlink_to(out / "manifest.json")
    (texts / "folder").symlink_to(out)
    assert shardmill.prepare(texts / spec, link / "out").already
    assert shardmill.prepare(texts / spec, out).already


def test_a_run_that_was_ended_goes_on_though_its_files_lie_in_the_source(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts.joinpath("d.txt").write_bytes(b"%PDF-1.7")
    with pytest.raises(SourceError, match="PDF"):
        shardmill.prepare(texts, texts, input_format="auto", format=["shards", "mds"], shard_tokens=3, val=0)
    texts.joinpath("d.txt").unlink()
    with pytest.raises(ShardmillError, match=r"other sources or options: source .*d.txt` is gone\n"):
        shardmill.prepare(texts, texts, input_format="auto", format=["shards", "mds"], shard_tokens=3, val=0)


def test_text_beside_a_dataset_is_still_read(texts: Path) -> None:
    shardmill.prepare(texts / "a.txt", texts / "sub")
    assert names(texts.parent, texts, owned=lambda folder: ("train.bin", "manifest.json")) == [
        "in/a.txt", "in/b.txt", "in/sub/c.txt",
    ]  # fmt: skip


def test_folders_may_be_a_thousand_deep_and_links_in_a_circle(tmp_path: Path) -> None:
    top = tmp_path / "in"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.symlink(top, "up", dir_fd=here)
    os.close(os.open("a.txt", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    try:
        [found] = names(top)
        assert found.count("d/") == 1200 and found.endswith("/a.txt")
    finally:
        subprocess.run(["rm", "-rf", top], check=True)  # too deep for shutil


def test_a_link_to_itself_that_looks_like_text_is_a_wrong_call(texts: Path) -> None:
    (texts / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(UsageError, match="cannot be read") as error:
        names(texts)
    assert error.value.place == str(texts / "loop.txt")


def test_names_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    odd = [b"a\xff.txt", b"b\nc.txt", b"d\x7f\x01.txt", "é💡.txt".encode(), b'"\\.txt', b"], [.txt", b"%2e*?[.txt"]
    for name in odd:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(b"text of " + name)
    result = shardmill.prepare(folder, tmp_path / "out")
    told = [os.fsencode(os.path.basename(one["name"])) for one in result.manifest["sources"]]
    assert told == [os.fsencode(name) for name in sorted(map(os.fsdecode, odd))]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"] == list(result.manifest["sources"])
    assert shardmill.prepare(folder, tmp_path / "out").already
    assert verify(tmp_path / "out", source=True).damage == []


def test_many_folders_are_found_in_order(tmp_path: Path) -> None:
    for i in range(5000):
        (tmp_path / f"{i % 70}" / f"{i}").mkdir(parents=True)
        (tmp_path / f"{i % 70}" / f"{i}" / "a.txt").touch()
    found = names(tmp_path)
    assert len(found) == 5000
    assert found == sorted(found, key=lambda path: path.split("/"))


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "fork"), reason="there are no other users here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded")  # of a fork, whose child does nothing but this
def test_a_folder_that_may_not_be_listed_is_a_wrong_call(texts: Path) -> None:
    for folder in (texts, *texts.parents):
        mode = folder.stat().st_mode
        if mode & 0o055 != 0o055:  # a folder of pytest's, which is private
            folder.chmod(mode | 0o055)
    (texts / "sub").chmod(0)
    if (child := os.fork()) == 0:
        said = ""
        try:
            if os.geteuid() == 0:  # root may read everything
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            names(texts)
        except UsageError as error:
            said = f"{error.message} {error.place}"
        finally:
            os._exit(0 if said == f"no permission to list the folder {texts / 'sub'}" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (texts / "sub").chmod(0o755)


def test_a_folder_that_changes_while_it_is_listed_is_listed_or_an_error_that_says_so(tmp_path: Path) -> None:
    code = """
import os, sys
folder = sys.argv[1]
while True:
    for i in range(50):
        open(f"{folder}/{i}.txt", "w").close()
        os.mkdir(f"{folder}/d{i}")
    for i in range(50):
        os.unlink(f"{folder}/{i}.txt")
        os.rmdir(f"{folder}/d{i}")
    print(flush=True)
"""
    (tmp_path / "stays.txt").touch()
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as other:
        told = set()
        for _ in range(40):
            other.stdout.readline()
            try:
                assert "stays.txt" in names(tmp_path)
            except SourceError as error:
                told.add(error.message)
        other.kill()
    gone = "the folder cannot be listed: No such file or directory"
    assert told <= {"the folder has changed while it was listed", gone}
