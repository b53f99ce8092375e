"""Which commits a run in progress reads: what `main` was when it began, though the branch may have moved since.

DIR/.shardmill/revisions.json   repository and revision as asked for → commit
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.run.journal import FOLDER
from shardmill.storage import write_whole

if TYPE_CHECKING:
    from shardmill.storage import Sources

_NAME = "revisions.json"


def recorded(out: Path) -> dict[str, str]:
    """The commits of an unfinished run in a folder; empty where there is none."""
    try:
        commits: dict[str, str] = json.loads((out / FOLDER / _NAME).read_bytes())
    except (OSError, ValueError):
        # None was begun; or the folder cannot be read, which the journal, asked next, says better.
        return {}
    return commits


def commits_of(sources: Sources) -> dict[str, str]:
    """Repository and revision as asked for → commit."""
    return {asked: name.partition("@")[2].partition("/")[0] for asked, name in sources.asked.items()}


def record(folder: Path, sources: Sources) -> None:
    """Write them down, before the plan is: a run that has a plan must find its commits again."""
    if commits := commits_of(sources):
        write_whole(folder / _NAME, json.dumps(commits).encode())
