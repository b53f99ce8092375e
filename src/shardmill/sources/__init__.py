"""What the user named → a list of sources: paths, globs, URLs, recipes, pinned revisions."""

from shardmill.sources.finding import find_sources
from shardmill.sources.recipe_calls import apply_recipes, recipe_data, recipe_page, recipe_table, shadowed
from shardmill.sources.recipes import list_recipes, named_recipe

__all__ = [
    "apply_recipes",
    "find_sources",
    "list_recipes",
    "named_recipe",
    "recipe_data",
    "recipe_page",
    "recipe_table",
    "shadowed",
]
