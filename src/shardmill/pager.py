"""Output on a terminal: in colour, and a screen at a time."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import click


def painter() -> Callable[[int, str], str] | None:
    """Return a function that colours a token, given its number and text; None without a terminal or with NO_COLOR."""
    if not _on_a_terminal() or os.environ.get("NO_COLOR"):
        return None
    # Black on a light colour of the 256: readable whatever the terminal's own colours are.
    return lambda number, text: click.style(text, fg=16, bg=(153, 223)[number % 2])


def page(lines: Iterator[str], write: Callable[[str], None]) -> None:
    """Show lines through `$PAGER` or less, which ends at once if everything fits on the screen.

    Without a terminal or a pager they go to `write`.
    """
    program = shlex.split(os.environ.get("PAGER", "less"))
    if not _on_a_terminal() or not program or not shutil.which(program[0]):
        for line in lines:
            write(line)
        return
    first = next(lines, "")  # errors come before the pager starts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on it is for the pager, where it ends a search
    environment = {"LESS": "FRX", "LESSCHARSET": "utf-8", **os.environ}
    with subprocess.Popen(program, stdin=subprocess.PIPE, env=environment) as pager:
        assert pager.stdin is not None
        try:
            for line in itertools.chain([first], lines):
                pager.stdin.write(line.encode("utf-8", "backslashreplace") + b"\n")
            pager.stdin.close()
        except BrokenPipeError:  # the reader has seen enough
            return


def _on_a_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
