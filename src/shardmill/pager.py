"""What a person reads on a terminal: in colour, and a screen at a time."""

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
    """Colours a token, given its number and text; None where there is no terminal, or no colour is wanted."""
    if not _on_a_terminal() or os.environ.get("NO_COLOR"):
        return None
    # Black on a light colour of the 256: readable whatever the terminal's own colours are.
    return lambda number, text: click.style(text, fg=16, bg=(153, 223)[number % 2])


def page(lines: Iterator[str], write: Callable[[str], None]) -> None:
    """Show lines on a terminal through `$PAGER` or less, which ends at once where all fits on the screen.

    Elsewhere, and where there is no pager, they go to `write`.
    """
    program = shlex.split(os.environ.get("PAGER", "less"))
    if not _on_a_terminal() or not program or not shutil.which(program[0]):
        for line in lines:
            write(line)
        return
    first = next(lines, "")  # errors come before the pager does
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the pager's from here on, where it ends a search
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
