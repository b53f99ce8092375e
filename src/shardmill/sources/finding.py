"""Finds the sources that a call names: files, folders, globs, URLs and `-`, in a fixed order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from shardmill.errors import UsageError
from shardmill.python_sources import PythonSource
from shardmill.source_list import Sources
from shardmill.sources.local import NAME_ONE, LocalFiles, Owned
from shardmill.sources.walking import Rules
from shardmill.storage import STDIN, WEB, Source, scheme_of


def find_sources(
    specs: Iterable[str | PythonSource],
    input_format: str = "auto",
    pinned: Mapping[str, str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    owned: Owned = lambda folder: (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    text_field: str = "text",
) -> Sources:
    """Return the sources in the order of `specs`, each folder and glob sorted; what is not read is in `skipped`.

    `pinned`: commits that an unfinished run has recorded for revisions at the hub. `out`: the folder or URL of the
    output, which is skipped if it is below a source folder. Files that are `owned` by another dataset are skipped too.
    `include`, `exclude`: globs for files of folders and patterns. Raise UsageError when a spec names nothing that can
    be read, SourceError when a server refuses it.
    """
    found = Sources()
    rules = Rules(input_format, text_field, include, exclude, found.skipped)
    local = LocalFiles(rules, out, owned)
    specs = list(specs)
    streams = 0
    for web, spec in _by_kind(specs):
        if web:
            from shardmill.sources.remote import find_on_web

            found.extend(find_on_web(web, input_format))
        elif isinstance(spec, PythonSource):
            found.append(spec.as_source(len(found)))
            found.from_python[found[-1].path] = spec
        elif spec == STDIN:
            streams += 1
            if sys.stdin is None:  # by now the descriptor may be another file
                raise UsageError("standard input is closed", hint="name a file, or feed something into it")
            found.append(Source(STDIN, STDIN, None, "", input_format))
        elif scheme_of(spec):
            from shardmill.sources.remote import find_remote

            found.extend(find_remote(spec, rules, pinned or {}, str(out or ""), owned, found.requested))
        else:
            found = local.find(spec, found)
    if not specs:
        raise UsageError("no source was given", hint=NAME_ONE)
    if streams > 1:
        raise UsageError("standard input can be read only once", hint="give `-` once")
    rules.twins.warn(found.skipped)
    return found


def _by_kind(specs: Iterable[str | PythonSource]) -> Iterator[tuple[list[str], str | PythonSource]]:
    """Yield web addresses that follow each other together, and all else one by one."""
    for is_web, some in groupby(specs, lambda spec: isinstance(spec, str) and scheme_of(spec) in WEB):
        if is_web:
            yield [str(spec) for spec in some], ""
        else:
            yield from (([], spec) for spec in some)
