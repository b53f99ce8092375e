"""Recipes: datasets by name, with the settings that their trainers expect.

A recipe is data, in `recipes.toml`.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from shardmill.arguments import did_you_mean, names
from shardmill.errors import UsageError
from shardmill.options import FORMATS, Options
from shardmill.python_sources import PythonSource
from shardmill.storage import STDIN
from shardmill.units import parse_bytes, parse_count, show_bytes, show_count

_BUILT_IN = Path(__file__).with_name("recipes.toml")
_KEYS = ("source", "about", "home", "license", "bytes", "documents", "tokens", "options", "formats")


@dataclass(frozen=True)
class Recipe:
    """Sources and settings. Figures are approximate; None: unknown."""

    name: str
    source: tuple[str, ...]
    about: str = ""
    home: str = ""
    license: str = ""
    bytes: int | None = None
    """As it is stored."""
    documents: int | None = None
    tokens: int | None = None
    """By GPT-2's tokenizer."""
    options: dict[str, Any] = field(default_factory=dict)
    formats: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings by output format."""
    variable: bool = False
    """There are many recipes like this one, and the name is an example."""

    def settings(self, formats: tuple[str, ...]) -> dict[str, Any]:
        """Return the options for these output formats; where two formats differ, the first one counts."""
        chosen: dict[str, Any] = {}
        for format in reversed(formats):
            chosen |= self.formats.get(format, {})
        return {**self.options, **chosen}


def list_recipes() -> list[Recipe]:
    """Return the recipes that come with shardmill; for a pattern, the names with known figures or an example."""
    return [
        dataclasses.replace(recipe, variable="example" in entry)
        for pattern, entry in _built_in().items()
        for name in entry.get("figures") or [entry.get("example", pattern)]
        if (recipe := find_recipe(name)) is not None
    ]


def find_recipe(name: str) -> Recipe | None:
    """Return the recipe of that name among those that come with shardmill, or None."""
    for pattern, entry in _built_in().items():
        if found := re.fullmatch(pattern, name):
            figures = entry.get("figures", {}).get(name, {})
            return _recipe(name, _substituted(entry, found.groupdict()) | figures)
    return None


def named_recipe(name: str) -> Recipe:
    """Return a recipe by its name; raise UsageError when there is none."""
    found = find_recipe(name)
    if found is None:
        hint = f"{did_you_mean(name, _listed_names(), 0.75)}`shardmill recipes` lists them"
        raise UsageError(f"there is no recipe `{name}`", hint=hint)
    return found


def apply_recipes(
    specs: Sequence[str | PythonSource], options: dict[str, Any]
) -> tuple[list[str | PythonSource], dict[str, Any]]:
    """Replace recipes by their sources and settings. The call's own options override the recipes'.

    Raise UsageError for an unknown recipe, and for recipes with different settings.
    """
    own = named_recipe(options["recipe"]) if options.get("recipe") else None
    sources: list[str | PythonSource] = []
    used: list[Recipe] = []
    for spec in specs:
        recipe = None if isinstance(spec, PythonSource) else _recipe_for(spec)
        if recipe is not None:
            used.append(recipe)
            sources += recipe.source
        else:
            sources.append(spec)
    settings = []
    for recipe in [own] if own is not None else used:
        chosen = options.get("format") or recipe.options.get("format") or Options.format
        settings.append(recipe.settings(names("format", chosen)))
    return sources, {**_common_settings(settings, options), **options}


def shadowed(specs: Sequence[str]) -> list[str]:
    """Return the sources that exist on this machine though a recipe has the same name."""
    return [spec for spec in specs if os.path.lexists(spec) and find_recipe(spec) is not None]


def _recipe_for(spec: str) -> Recipe | None:
    """The recipe that a source names; None: it is an ordinary source."""
    if spec == STDIN or "://" in spec or "\0" in spec or os.path.lexists(spec):
        return None
    recipe = find_recipe(spec)
    if recipe is None and not glob.has_magic(spec) and (near := did_you_mean(spec, _listed_names(), 0.75)):
        raise UsageError(
            "there is no such file or folder, and no recipe of that name",
            place=spec,
            hint=f"{near}`shardmill recipes` lists them",
        )
    return recipe


def _common_settings(settings: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """The settings that all recipes of a call share; a recipe without a setting has the default."""
    common: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in settings for name in one):
        wanted = [one.get(name, getattr(Options, name)) for one in settings]
        if name not in options and any(value != wanted[0] for value in wanted):
            shown = " and ".join(f"`{value}`" for value in dict.fromkeys(map(str, wanted)))
            raise UsageError(f"the recipes differ in `{_flag(name)}`: {shown}", hint=f"choose one with `{_flag(name)}`")
        common[name] = wanted[0]
    return common


def command(recipe: Recipe, formats: tuple[str, ...] = ()) -> str:
    """Return the command that does the same without the recipe."""
    settings = {name: value for name, value in recipe.settings(formats).items() if value != getattr(Options, name)}
    words = ["shardmill", "prepare", *recipe.source, "-o", "DIR"]
    chosen = names("format", settings.pop("format", ()))
    for format in formats or chosen:
        words += ["-f", format]
    for name, value in settings.items():
        words += [_flag(name), str(value)]
    return shlex.join(words)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def recipe_table(recipes: Sequence[Recipe]) -> Iterator[str]:
    """Yield the lines of a table of recipes."""
    width = max(len(recipe.name) for recipe in recipes) + 2
    yield f"{'name':<{width}}{'stored':>8}{'documents':>11}{'tokens':>8}"
    for recipe in recipes:
        stored, documents, tokens = _figures(recipe)
        more = " (the name is an example)" if recipe.variable else ""
        yield f"{recipe.name:<{width}}{stored:>8}{documents:>11}{tokens:>8}"
        yield f"  {recipe.about}{more}"
    yield "Figures are as published, approximate, tokens by GPT-2's tokenizer."
    yield "`shardmill inspect NAME` measures."


def recipe_page(recipe: Recipe) -> Iterator[str]:
    """Yield the lines of a page about one recipe."""
    yield recipe.name + (f": {recipe.about}" if recipe.about else "")
    stored, documents, tokens = _figures(recipe)
    for label, text in (
        ("source", " ".join(recipe.source)),
        ("home", recipe.home),
        ("license", recipe.license),
        ("about", f"{stored} stored, {documents} documents, {tokens} tokens" if recipe.tokens or recipe.bytes else ""),
    ):
        if text:
            yield f"  {label:<9}{text}"
    yield "  stands for"
    yield f"    {command(recipe)}"
    for format in FORMATS:
        if format in recipe.formats:
            yield f"    {command(recipe, (format,))}"


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as data for JSON."""
    return {
        "name": recipe.name,
        "example": recipe.variable,
        "source": list(recipe.source),
        **{key: getattr(recipe, key) for key in _KEYS[1:]},
        "command": command(recipe),
        "commands": {format: command(recipe, (format,)) for format in recipe.formats},
    }


def _figures(recipe: Recipe) -> tuple[str, str, str]:
    return (
        "–" if recipe.bytes is None else show_bytes(recipe.bytes),
        "–" if recipe.documents is None else show_count(recipe.documents),
        "–" if recipe.tokens is None else show_count(recipe.tokens),
    )


@cache
def _built_in() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_BUILT_IN.read_text(encoding="utf-8"))


def _listed_names() -> list[str]:
    return [recipe.name for recipe in list_recipes()]


def _substituted(part: Any, values: dict[str, str]) -> Any:
    """The part of a recipe with the values of its variables."""
    if isinstance(part, dict):
        return {key: _substituted(inner, values) for key, inner in part.items()}
    return part.format(**values) if isinstance(part, str) else part


def _recipe(name: str, entry: dict[str, Any]) -> Recipe:
    parse: dict[str, Callable[[Any], Any]]
    parse = {"source": partial(names, "source"), "bytes": parse_bytes, "documents": parse_count, "tokens": parse_count}
    facts = {key: parse[key](entry[key]) if key in parse else entry[key] for key in _KEYS if key in entry}
    return Recipe(name, **facts)
