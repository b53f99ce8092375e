"""Text that the calling program passes as a source: an iterable, Arrow data or a callable."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence, Set
from typing import Any

from shardmill.errors import UsageError
from shardmill.storage import Source

FORMAT = "python"
"""In place of an input format."""
_NAME = "documents"
_LISTS = (list, tuple, set, frozenset)


class PythonSource:
    """Text from Python with a name and a version, which are part of the fingerprint.

    `source`: an iterable of texts, of mappings or of Arrow data; an object with the Arrow stream interface; a dataset
    of Hugging Face; or a callable that returns one of these. Change `version` when the documents change. Without one,
    data (a list, a frame, a table, a Dataset) is compared by its content.
    """

    def __init__(self, source: Any, *, name: str = _NAME, version: str = "") -> None:
        for option, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or (option == "name" and not value):
                raise UsageError(f"`{option}` must be text, not {value!r}")
        if isinstance(source, (str, bytes, os.PathLike)) or not _has_documents(source):
            raise UsageError(
                f"a {type(source).__name__} gives no documents",
                hint="give an iterable of texts, of mappings or of Arrow data, or a callable that returns one",
            )
        self.source, self.name = source, name
        self.version = version or getattr(source, "fingerprint", "")
        self.content = ""
        """The version that a call finds out from the content of data. Not kept, since the data may change."""

    @property
    def is_data(self) -> bool:
        """Whether the documents are there already, so that reading them runs no code of the caller's."""
        source = self.source
        if hasattr(source, "with_format") and hasattr(source, "iter"):  # a dataset of Hugging Face
            return hasattr(source, "__len__") and source.format["type"] != "custom"
        kept = isinstance(source, (Sequence, Set)) or is_arrow(source) or hasattr(source, "dtype")
        return kept and hasattr(source, "__len__") and not hasattr(source, "load_state_dict")

    @property
    def unversioned(self) -> bool:
        """Whether nothing tells if a later call gives the same documents."""
        return not self.version and not self.is_data

    @property
    def one_shot(self) -> bool:
        """Whether it can be read only once (an iterator whose state cannot be restored)."""
        return hasattr(type(self.source), "__next__") and not hasattr(self.source, "load_state_dict")

    def open(self) -> Any:
        """Return the object to iterate. Raise UsageError for a generator that was used already."""
        made = self.source
        if callable(made) and not _is_iterable(made):
            made = made()
            if not _is_iterable(made) or isinstance(made, (str, bytes)):
                raise UsageError(f"the callable returned a {type(made).__name__}, no iterable", place=self.name)
            used = {inspect.GEN_SUSPENDED, inspect.GEN_CLOSED}
        else:
            used = {inspect.GEN_CLOSED}
        if inspect.isgenerator(made) and inspect.getgeneratorstate(made) in used:
            raise UsageError(
                "the generator was used already",
                place=self.name,
                hint="give the function that makes it, without calling it",
            )
        return made

    def as_source(self, number: int) -> Source:
        """Return its entry in the plan."""
        return Source(self.name, f"{FORMAT}:{number}", None, self.version or self.content, FORMAT)


def number_of(path: str) -> int:
    """Return the number of a source from Python among the sources, from its path."""
    return int(path.removeprefix(f"{FORMAT}:"))


def as_sources(sources: Any) -> list[Any]:
    """Return the `sources` argument of a call as a list. Each is a path, which is not checked here, or a PythonSource.

    A list is several sources, unless it holds only records (mappings or Arrow data). Texts in it are paths.
    """
    if isinstance(sources, (str, os.PathLike)):
        return [sources]
    several = isinstance(sources, _LISTS) and not _is_records(sources)
    listed = list(sources) if several else [sources]
    named = [_named(source) for source in listed]
    unnamed = [now for was, now in zip(listed, named, strict=True) if now is not was]
    for number, source in enumerate(unnamed[1:], 2):
        source.name = f"{_NAME}-{number}"
    return named


def is_arrow(value: Any) -> bool:
    return hasattr(value, "__arrow_c_array__") or hasattr(value, "__arrow_c_stream__")


def _has_documents(source: Any) -> bool:
    """Whether it gives documents. A class is more likely a mistake than a way to make them."""
    return _is_iterable(source) or (callable(source) and not isinstance(source, type))


def _is_iterable(source: Any) -> bool:
    # An array of numbers cannot hold a text.
    numbers = getattr(getattr(source, "dtype", None), "kind", "") in set("biufcmMV")
    lazy = hasattr(source, "collect_batches")  # a LazyFrame of polars
    return not isinstance(source, type) and ((hasattr(source, "__iter__") and not numbers) or is_arrow(source) or lazy)


def _is_records(values: Any) -> bool:
    return bool(values) and all(isinstance(value, Mapping) or is_arrow(value) for value in values)


def _named(source: Any) -> Any:
    """A PythonSource of what gives documents; anything else as it is."""
    if isinstance(source, (str, os.PathLike, PythonSource, bytes, bytearray, dict)) or not _has_documents(source):
        return source
    # The texts of a list may be paths: the caller has to say that they are not.
    return source if isinstance(source, _LISTS) and not _is_records(source) else PythonSource(source)
