"""What the user named → a list of sources: paths, globs, URLs, recipes, pinned revisions."""

from shardmill.sources.finding import find_sources
from shardmill.sources.hub import list_hub
from shardmill.sources.recipes import (
    apply_recipes,
    list_recipes,
    named_recipe,
    recipe_data,
    recipe_page,
    recipe_table,
    shadowed,
)
