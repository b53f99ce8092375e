"""What commands print: progress and the summary of a run, and lines on standard output and standard error."""

from __future__ import annotations

import errno
import json
import logging
from typing import TYPE_CHECKING, Any

import click

from shardmill import interrupts
from shardmill.errors import OutputError

if TYPE_CHECKING:
    from shardmill.write import Progress, Result

RESUMABLE = "interrupted: recorded progress is kept; the same command resumes the run"


def options_in(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the command line sets; the others keep their defaults."""
    return {name: value for name, value in flags.items() if value not in (None, ())}


def begin_run(as_json: bool, quiet: bool) -> Progress:
    """Make an interrupt end the run in order from now on; return how its progress is shown."""
    from shardmill.write import choose_progress

    interrupts.end_orderly(RESUMABLE)
    if quiet:
        logging.getLogger("shardmill").setLevel(logging.ERROR)
    return choose_progress(quiet or as_json)


def summarize(
    result: Result, as_json: bool, quiet: bool, verbose: bool = False, more: dict[str, Any] | None = None
) -> None:
    """Print the summary of a run: as JSON on standard output, with `more`, or as text on standard error."""
    from shardmill.write import as_data, as_text

    if as_json:
        print_line(json.dumps(as_data(result) | (more or {})))
    elif not quiet:
        print_error(as_text(result, verbose=verbose))


def print_line(text: str) -> None:
    """Print on standard output. Raise BrokenPipeError if nobody reads it, OutputError if it cannot be written."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror or error}") from error


def print_error(text: str) -> None:
    """Print on standard error. If nobody can read that, only the exit code tells that something is wrong."""
    try:
        click.echo(text, err=True)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
