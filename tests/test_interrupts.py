"""The first signal ends any command, wherever it is, with the right words; and pipes, streams and disks that fail.

No test here measures time: each waits for the event that matters, and a command that a signal does not end is found by
the time limit of `_ended`, which is far above the two seconds that a command has.
"""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardmill
from tests.corpus import documents, random_words, write_jsonl
from tests.meter import SHARDMILL
from tests.watching import interruptible, wait_until

pytestmark = pytest.mark.thorough

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
RECORDED = "the same command resumes "
# A lock that is taken twice: no signal ends that wait, just as none ends a wait for a disk.
STUCK = """
import ctypes, os, sys
def stuck(*_):
    open(os.environ["MARK"], "w").close()
    lock = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)
"""
MAIN = "\nfrom shardmill.__main__ import main\nmain()"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", documents(50))


@pytest.fixture
def dataset(tmp_path: Path, source: Path) -> Path:
    shardmill.prepare(source, tmp_path / "data")
    return tmp_path / "data"


def _start(*arguments: object, code: str = "", **settings: Any) -> subprocess.Popen:
    command = [sys.executable, "-c", code] if code else SHARDMILL
    return subprocess.Popen(
        [*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **{"preexec_fn": interruptible, **settings},
    )  # fmt: skip


def _ended(run: subprocess.Popen, number: int) -> str:
    """Send a signal; what the command then says on standard error. Its exit code must be 130."""
    run.send_signal(number)
    try:
        _, said = run.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        run.kill()
        raise AssertionError(f"signal {number} did not end it") from None
    assert run.returncode == 130, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("command", "module", "number"),
    [
        *(("prepare", "click", number) for number in SIGNALS),
        ("prepare", "numpy", signal.SIGINT),
        *(("inspect", module, signal.SIGTERM) for module in ("click", "numpy")),
    ],
)
def test_a_signal_during_imports_ends_a_command(
    tmp_path: Path, source: Path, command: str, module: str, number: int
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / f"{module}.py").write_text("open('mark', 'w').close()\nimport time\ntime.sleep(1000)\n")
    path = os.pathsep.join([str(tmp_path / "first"), *sys.path])
    run = _start(command, source, "-o", "out", cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    wait_until((tmp_path / "mark").exists)
    assert _ended(run, number).startswith("interrupted")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("number", "arguments", "resumes"),
    [
        *((number, ["verify", "."], False) for number in SIGNALS),
        (signal.SIGINT, ["show", "."], False),
        (signal.SIGTERM, ["convert", ".", "-o", "../two", "-f", "npy"], True),
    ],
)
def test_a_signal_during_a_read_that_never_returns_ends_a_command(
    dataset: Path, number: int, arguments: list[str], resumes: bool
) -> None:
    pipe = dataset / "manifest.json"
    pipe.unlink()
    os.mkfifo(pipe)
    run = _start(*arguments, cwd=dataset)
    writer = os.open(pipe, os.O_WRONLY)  # returns when the command has opened the other end
    try:
        said = _ended(run, number)
    finally:
        os.close(writer)
    # Only a command that can be resumed may say so.
    assert said == ("interrupted: recorded progress is kept; the same command resumes the run\n" if resumes
                    else "interrupted\n")  # fmt: skip


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_run_that_searches_a_terabyte_for_the_end_of_a_document(tmp_path: Path, number: int) -> None:
    with open(tmp_path / "a.txt", "wb") as file:
        file.write(b"one\ntwo\n")
        file.truncate(1 << 40)
    run = _start("prepare", tmp_path / "a.txt", "-o", tmp_path / "out", "--separator", r"\n", "--limit", "10")
    wait_until((tmp_path / "out" / ".shardmill" / "journal.jsonl").exists)
    assert "interrupted: " in _ended(run, number)
    assert not (tmp_path / "out" / ".shardmill" / "lock").exists()


def test_an_interrupt_in_python_leaves_no_thread_that_goes_on_searching(tmp_path: Path) -> None:
    with open(tmp_path / "a.txt", "wb") as file:
        file.write(b"one\ntwo\n")
        file.truncate(1 << 40)
    code = f"""
import _thread, os, signal, threading, time
import shardmill
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt():
    while not os.path.exists({str(tmp_path / "out/.shardmill/journal.jsonl")!r}):
        time.sleep(0.02)
    _thread.interrupt_main()
threading.Thread(target=interrupt).start()
try:
    shardmill.prepare({str(tmp_path / "a.txt")!r}, {str(tmp_path / "out")!r}, separator="\\n", limit=10)
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate() if "shardmill" in thread.name])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[]\n"


def test_a_signal_while_any_thread_is_being_started_ends_a_run(tmp_path: Path, source: Path) -> None:
    code = (
        """
import os, signal, threading
start, before = threading.Thread.start, iter(range(int(os.environ["BEFORE"])))
def interrupted(self):
    if next(before, None) is None:
        threading.Thread.start = start
        open(os.environ["MARK"], "w").write(self.name)
        os.kill(os.getpid(), signal.SIGINT)
    start(self)
threading.Thread.start = interrupted
"""
        + MAIN
    )
    names, mark = [], tmp_path / "mark"
    for before in range(100):
        mark.unlink(missing_ok=True)
        environment = {**os.environ, "MARK": str(mark), "BEFORE": str(before)}
        arguments = ["prepare", source, "-o", tmp_path / f"out{before}", "--workers", "2"]
        run = _start(*arguments, code=code, env=environment)
        _, said = run.communicate(timeout=100)
        if not mark.exists():
            break
        names.append(mark.read_text())
        assert "Traceback" not in said and run.returncode == 130, (names, said)
    assert {"shardmill-progress", "shardmill-feeder", "shardmill-limit"} <= set(names)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_run_that_waits_for_standard_input(tmp_path: Path, number: int) -> None:
    run = _start("prepare", "-", "-o", tmp_path / "out", stdin=subprocess.PIPE)
    wait_until((tmp_path / "out" / ".shardmill" / "journal.jsonl").exists)
    run.stdin.write("Some text.\n")
    run.stdin.flush()
    assert "interrupted: " in _ended(run, number)


def test_a_line_of_a_terabyte_is_named_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "hole.jsonl", "wb") as file:
        file.write(b'{"text": "one"}\n')
        file.truncate(1 << 40)
    done = _start("prepare", tmp_path / "hole.jsonl", "-o", tmp_path / "out", "--limit", "10")
    _, said = done.communicate(timeout=100)
    assert done.returncode == 1
    assert "line 2" in said and "NUL" in said


def test_a_line_that_no_machine_could_hold_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.documents.jsonl.LONGEST_LINE", 1 << 28)
    with open(tmp_path / "long.jsonl", "wb") as file:
        file.write(b'{"text": "one"}\n{"text": "' + b"a " * 100_000)
        file.truncate(1 << 40)
    with pytest.raises(shardmill.ShardmillError, match="more than 268,435,456 bytes") as error:
        shardmill.prepare(tmp_path / "long.jsonl", tmp_path / "out", memory="4GB", limit=10)
    assert error.value.place.endswith("line 2") and "JSON Lines" in error.value.hint


@pytest.mark.parametrize(
    ("call", "number"), list(zip(["os.fsync", "files._sync_data", "files.PartialFile.append"], SIGNALS, strict=True))
)
def test_a_signal_ends_a_run_whose_disk_does_not_answer(tmp_path: Path, source: Path, call: str, number: int) -> None:
    module = "from shardmill.storage import files\n" if call.startswith("files.") else ""
    code = STUCK + f"{module}{call} = stuck" + MAIN
    run = _start(
        "prepare", source, "-o", tmp_path / "out", code=code, env={**os.environ, "MARK": str(tmp_path / "mark")}
    )
    wait_until((tmp_path / "mark").exists)
    assert RECORDED in _ended(run, number)


def test_a_second_signal_does_not_wait(tmp_path: Path, source: Path) -> None:
    code = STUCK + "from shardmill import interrupts\ninterrupts.GRACE_SECONDS = 1000\nos.fsync = stuck" + MAIN
    environment = {**os.environ, "MARK": str(tmp_path / "mark")}
    run = _start("prepare", source, "-o", tmp_path / "out", code=code, env=environment)
    wait_until((tmp_path / "mark").exists)
    run.send_signal(signal.SIGTERM)
    _ended(run, signal.SIGINT)  # another one: the system does not keep two of the same


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, source: Path) -> None:
    run = _start(
        "prepare", "-", "-o", tmp_path / "out", stdin=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    wait_until((tmp_path / "out" / ".shardmill" / "journal.jsonl").exists)
    run.send_signal(signal.SIGHUP)
    run.communicate("Some text.", timeout=100)
    assert run.returncode == 0


def _with_a_stuck_disk(tmp_path: Path, source: Path, settings: str) -> subprocess.Popen[str]:
    code = STUCK + (
        "from shardmill.storage import files\nfrom shardmill.write import checkpoints, progress\n"
        f"files._sync_data = stuck\n{settings}"
    ) + MAIN  # fmt: skip
    environment = {**os.environ, "MARK": str(tmp_path / "mark")}
    return _start("prepare", source, "-o", tmp_path / "out", code=code, env=environment)


def test_a_disk_that_does_not_answer_is_named_while_the_run_waits_for_it(tmp_path: Path, source: Path) -> None:
    with _with_a_stuck_disk(tmp_path, source, "checkpoints._SLOW = progress._EVERY = 0.1") as run:
        assert any("· the disk has not answered for " in line for line in run.stderr)
        run.kill()


def test_a_disk_that_never_answers_ends_the_run(tmp_path: Path, source: Path) -> None:
    run = _with_a_stuck_disk(tmp_path, source, "checkpoints._TIMEOUT = 1.0")
    _, said = run.communicate(timeout=100)
    assert run.returncode == 1
    assert "error: the disk has not answered for 1 seconds\n" in said
    assert "kept:  progress recorded before; the same command resumes the run" in said


@pytest.mark.parametrize("arguments", [["recipes"], ["--help"], ["prepare", "--help"], ["tokenizers"],
                                       ["show", "{data}"], ["verify", "{data}", "--json"],
                                       ["inspect", "{source}"], ["recipes", "--json"]])  # fmt: skip
def test_nobody_who_reads_the_output_is_no_error(dataset: Path, source: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*SHARDMILL, *(part.format(data=dataset, source=source) for part in arguments)],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=100, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 0
    assert not [line for line in done.stderr.splitlines() if "rror" in line or "Traceback" in line]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["recipes"], ["prepare", "--help"], ["show", "{data}"], ["inspect", "{source}"],
                                       ["verify", "{data}", "--json"],
                                       ["prepare", "{source}", "-o", "{data}2", "--json"],
                                       ["convert", "{data}", "-o", "{data}3", "--json"]])  # fmt: skip
def test_an_output_that_is_full_is_an_error_without_a_traceback(
    dataset: Path, source: Path, arguments: list[str]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*SHARDMILL, *(part.format(data=dataset, source=source) for part in arguments)],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "error: " in done.stderr and "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_standard_input_that_is_closed_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *SHARDMILL, "prepare", "-", "-o", str(tmp_path / "out")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_printed_never_gets_into_a_file_because_a_stream_is_closed(
    tmp_path: Path, source: Path, closed: str
) -> None:
    shardmill.prepare(source, tmp_path / "expected")
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *SHARDMILL, "prepare", str(source), "-o", str(tmp_path / "out")],
        stdin=subprocess.DEVNULL, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    for name in ("train.bin", "val.bin", "manifest.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


@pytest.fixture(params=["missing", "read-only", "full"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder for temporary files that takes none; the full one takes the few bytes that Python tries it with."""
    folder = {"missing": "/nowhere/at/all", "read-only": "/proc"}.get(request.param)
    if folder:
        yield folder
        return
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(small)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine does not let us mount a small file system: {mounted.stderr.strip()}")
    yield str(small)
    subprocess.run(["umount", str(small)], check=True)


def test_a_folder_for_temporary_files_that_cannot_be_used_is_no_traceback(
    tmp_path: Path, source: Path, unusable: str
) -> None:
    environment = {**os.environ, "TMPDIR": unusable}

    def called(*arguments: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*SHARDMILL, *map(str, arguments)],
            capture_output=True, text=True, timeout=100, check=False, env=environment,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    out = tmp_path / "out"
    for arguments in (["inspect", source], ["prepare", source, "-o", out]):
        done = called(*arguments)
        assert done.returncode == 0, done.stderr
    # This needs such a file: it works where Python finds another folder, and names this one where it does not.
    done = called("verify", out, "--source")
    assert done.returncode == 0 or (done.returncode == 1 and f"place: {unusable}" in done.stderr), done.stderr


@pytest.mark.parametrize(("format", "blocks"), [("nanogpt", 0), ("nanogpt", 4000), ("megatron", 4000)])
def test_a_limit_on_the_size_of_files_is_an_error_that_names_the_file(tmp_path: Path, format: str, blocks: int) -> None:
    # 4,000 blocks of 512 bytes are enough for the files that libraries need, and too few for the tokens of this text.
    source = tmp_path / "a.txt"
    source.write_bytes(random_words(8_000_000))
    arguments = ["prepare", str(source), "-o", str(tmp_path / "out"), "-f", format, "--separator", r"\n", "-q"]
    done = subprocess.run(
        ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", *SHARDMILL, *arguments],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: cannot write: file too large\n  place: ")
    assert "ulimit -f" in done.stderr
    again = subprocess.run([*SHARDMILL, *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("code", "arguments"),
    [(0, ["prepare", "a.csv", "-o", "out"]), (1, ["prepare", "cut.csv.gz", "-o", "out"]), (2, ["prepare", "a.csv"]),
     (0, ["inspect", "a.csv"])],
)  # fmt: skip
def test_a_command_ends_at_once_and_not_by_taking_python_from_under_the_threads_of_libraries(
    tmp_path: Path, code: int, arguments: list[str]
) -> None:
    # A thread of a library that asks for the interpreter while that is taken down aborts the process, now and then.
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(
        "import atexit\natexit.register(lambda: open('taken-down', 'w').close())\n"
    )
    (tmp_path / "a.csv").write_text("text,other\n" + "words,x\n" * 30)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"text\nwords\n")[:-6])
    path = os.pathsep.join([str(tmp_path / "first"), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = _start(*arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    _, said = run.communicate(timeout=100)
    assert run.returncode == code, said
    assert not (tmp_path / "taken-down").exists()
