"""What the user named → a list of sources: paths, globs, URLs, recipes, pinned revisions."""

from shardmill.sources.finding import find_sources

__all__ = ["find_sources"]
