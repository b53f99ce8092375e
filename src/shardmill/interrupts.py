"""How a command ends early: the first SIGINT, SIGTERM or SIGHUP ends it within two seconds, wherever it is.

Python runs a signal handler in the main thread, between two steps of Python. That thread may be in an import, in a
library, or in a read or sync that never returns. So the system also wakes a thread that does nothing else (by a wakeup
descriptor): it gives the main thread a moment to end in order, and then ends the process.

Only the command line does this. A program that calls `shardmill.prepare()` keeps its own handlers.
"""

from __future__ import annotations

import os
import signal

from shardmill.errors import Interrupted

CODE = 130
GRACE_SECONDS = 1.5  # to end in order: recording what is done takes a tenth of a second, unless the disk hangs

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_SHOW_CURSOR = "\x1b[?25h\n"


class _State:
    message = "interrupted"
    orderly = False
    caught = False


_state = _State()


def listen() -> None:
    """From now on a signal ends this process at once; `end_orderly` changes that. Call it in the main thread."""
    for number in _SIGNALS:
        # A signal that is ignored stays ignored: `nohup` and a shell's `&` rely on it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    import threading

    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read_end,), name="shardmill-interrupts", daemon=True).start()


def end_orderly(message: str) -> None:
    """From now on a signal raises Interrupted; the message is printed if the process does not end in time."""
    _state.message, _state.orderly = message, True


def _handle(number: int, frame: object) -> None:
    if not _state.orderly:
        _end()
    if not _state.caught:  # a second signal must not disturb the orderly end; the watching thread handles it
        _state.caught = True
        raise Interrupted


def _watch(read_end: int) -> None:
    import select

    while (received := os.read(read_end, 1)) and received[0] not in _SIGNALS:
        pass  # every signal that has a Python handler wakes this thread
    select.select([read_end], [], [], GRACE_SECONDS)
    _end()


def _end() -> None:
    import select

    text = f"{_SHOW_CURSOR if os.isatty(2) else ''}{_state.message}\n"
    # Nobody may be reading standard error any more; that must not hold up the end.
    if select.select([], [2], [], 0.2)[1]:
        os.write(2, text.encode())
    os._exit(CODE)
