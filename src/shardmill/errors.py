"""Expected failures.

    ShardmillError            an error of the data or the machine     exit 1
      UsageError              the call was wrong                      exit 2
      SourceError             a source cannot be read, or is damaged
      OutputError             the output cannot be written
        BusyError             another process is using the folder
        StuckError            the disk does not respond
      BudgetError             not enough memory
      MismatchError           the folder contains the output of another call
      DamageError             a dataset is not what its manifest says
    Interrupted               a KeyboardInterrupt of the command line: SIGINT, SIGTERM, SIGHUP   exit 130

A bad document is none of these: it is a reject, and the run continues. A document that does not fit in the memory is a
BudgetError: with more memory it would be a good one.
"""

from __future__ import annotations

import re

# The part of a URL before the host (a name and a password, a key that may have slashes), and the query of a web
# address, which may be a signature.
_SECRET = re.compile(r"""(?i)(https?://)[^\s/`'"]*@|((?!https?:)\b[a-z][a-z0-9+.-]+://)[^\s/`'"]*:[^\s`'"]*@""")
_QUERY = re.compile(r"""(?i)(https?://[^\s?`'"]*)\?[^\s`'"]+""")


# An option as it is typed, with its value in backticks or alone in a sentence; other code stays as it is.
_TYPED = re.compile(r"`(--[^`]*)`|`[^`]*`|(?<![\w-])--([a-z][a-z-]*)")
_WITH_VALUE = re.compile(r"--([a-z][a-z-]*)(?:[ =](.+?))?(?= --|$)")
_FLAGS = {"overwrite", "keep_parts"}


def as_keywords(text: str) -> str:
    """Return a text in which options are written as in Python: `--max-bad any` becomes `max_bad="any"`."""
    return _TYPED.sub(_keywords, text)


def _keywords(found: re.Match[str]) -> str:
    if found[1]:
        return f"`{_WITH_VALUE.sub(_keyword, found[1])}`"
    return found[2].replace("-", "_") if found[2] else found[0]


def _keyword(found: re.Match[str]) -> str:
    name, value = found[1].replace("-", "_"), found[2]
    if value is None:
        return f"{name}=True" if name in _FLAGS else name
    plain = value[0] in "'\"" or re.fullmatch(r"[0-9.]+", value)
    return f"{name}={value}" if plain else f'{name}="{value}"'


def without_secrets(text: str) -> str:
    """Return a text that can be shown: no URL in it holds a password or a signature."""
    return _QUERY.sub(r"\1?…", _SECRET.sub(r"\1\2…@", text)) if "://" in text else text


class ShardmillError(Exception):
    """An expected failure: a sentence and, where known, its place, what was kept, and a hint.

    Its parts name options as they are typed (`--max-bad any`); `str` writes them as in Python.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, place: str | None = None, kept: str | None = None, hint: str | None = None
    ) -> None:
        message = without_secrets(message)
        super().__init__(message)
        self.message = message
        self.place = place and without_secrets(place)
        self.kept = kept
        self.hint = hint

    def __str__(self) -> str:
        return as_keywords(self.command_text())

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the way here through this package helps nobody with an expected failure."""
        return [f"{type(self).__name__}: {self}"]

    def command_text(self) -> str:
        """Return the text for the command line."""
        lines = [self.message]
        lines += [f"  place: {self.place}"] if self.place else []
        lines += [f"  kept:  {self.kept}"] if self.kept else []
        lines += [f"  hint:  {self.hint}"] if self.hint else []
        return "\n".join(lines)


class UsageError(ShardmillError):
    """The call itself was wrong: an unknown option value, a source that is not there."""

    exit_code = 2


class SourceError(ShardmillError):
    """A source cannot be read, is damaged, or changed while it was read."""


class OutputError(ShardmillError):
    """The output cannot be written: no space, no permission, another run in the folder."""


class BusyError(OutputError):
    """Another process is using the folder."""


class StuckError(OutputError):
    """The disk does not respond. All files are left as they are: closing one would block too."""


class BudgetError(ShardmillError):
    """The memory limit is too low, for any run or for one record; the hint names one that works."""


class MismatchError(ShardmillError):
    """The folder contains the output of other sources, another tokenizer or other options."""


class DamageError(ShardmillError):
    """A dataset is not what its manifest says it is."""


class Interrupted(KeyboardInterrupt):
    """The user stopped the command. Not a ShardmillError, because it is not a failure."""

    kept: str | None = None
    """A sentence about what the next call resumes from; None: nothing was done yet."""
