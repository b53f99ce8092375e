"""The program `shardmill`, also as `python -m shardmill`."""

from __future__ import annotations

import os
import sys

from shardmill import interrupts


def main() -> None:
    """Run the command line, and end the process."""
    _fill_standard_descriptors()
    interrupts.listen()  # before everything that takes time to import
    from shardmill.cli import main as run

    try:
        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    # Not by returning: threads of libraries, and one of ours that waits for a disk or a pipe, may still be there.
    # Python would wait for some, and pull the interpreter from under others.
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)


def _fill_standard_descriptors() -> None:
    """Where standard input, output or error is closed, the next file would take its number, and get what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    main()
