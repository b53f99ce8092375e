"""The plan of a run over text: sources in order, tokenizer, options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.documents import content_version
from shardmill.python_sources import PythonSource
from shardmill.write import COMMITS, SKIPPED, SourceFacts, library_facts, shard_name

if TYPE_CHECKING:
    from shardmill.options import Options
    from shardmill.source_list import Sources
    from shardmill.tokens import Tokenizer
    from shardmill.write import Facts


@dataclass(frozen=True)
class Plan:
    """Everything that the bytes of a dataset are a function of."""

    sources: Sources
    tokenizer: Tokenizer
    options: Options
    source_count: int | None = None
    """The sources of the whole plan, where this is the plan of a part; None: those that are listed."""
    stream_bytes: int | None = None
    """The size from which on text is a stream; None: the usual one."""

    @property
    def only_source(self) -> bool:
        """Whether the whole plan has one source."""
        return (len(self.sources) if self.source_count is None else self.source_count) == 1

    def facts(self) -> Facts:
        """The plan as data; two plans with the same facts give the same bytes."""
        return {
            "sources": SourceFacts(self.sources.facts),
            "tokenizer": self.tokenizer.describe(),
            "options": self.options.fingerprinted(),
            **library_facts(self.options.format),
            SKIPPED: self.sources.skipped.data(),
            **({COMMITS: self.commits} if self.commits else {}),
        }

    @property
    def name(self) -> str:
        """Prefix of shard names."""
        return shard_name(self.options.name, self.sources[0].name if self.sources else "")

    @property
    def commits(self) -> dict[str, str]:
        """Repository and revision as asked for → commit."""
        return {
            requested: name.partition("@")[2].partition("/")[0] for requested, name in self.sources.requested.items()
        }


def hash_data(specs: Iterable[Any], options: Options) -> None:
    """Find out the content of each source that is data from Python and has no version."""
    for spec in specs:
        if isinstance(spec, PythonSource) and spec.is_data and not spec.version:
            spec.content = content_version(spec, options.text_field, options.memory_bytes)
