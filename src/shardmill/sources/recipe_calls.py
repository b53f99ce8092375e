"""A call that names recipes, as the call that it stands for; and a recipe as a person reads it."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from shardmill.errors import UsageError
from shardmill.options import FORMATS, Options
from shardmill.sources.recipes import ENDING, Recipe, find_recipe, named_recipe, near_names, read_recipe
from shardmill.storage import STDIN, NamedSource
from shardmill.units import show_bytes, show_count


def apply_recipes(
    specs: Sequence[str | NamedSource], given: dict[str, Any]
) -> tuple[list[str | NamedSource], dict[str, Any]]:
    """The sources and options of a call in which recipes are written out. What was given counts before a recipe's own.

    UsageError for a name that is none, and for recipes that want different things.
    """
    own = named_recipe(given["recipe"]) if given.get("recipe") else None
    sources: list[str | NamedSource] = []
    used: list[Recipe] = []
    for spec in specs:
        if isinstance(spec, NamedSource):
            sources.append(spec)
            continue
        recipe = _named_by(spec, given)
        if recipe is None:
            sources.append(_matching(spec, own) if own is not None else spec)
            continue
        used.append(recipe)
        for source in recipe.source:
            inner = find_recipe(source)
            sources += [source] if inner is None else inner.source
    settings = [recipe.settings(_formats(recipe, given)) for recipe in ([own] if own is not None else used)]
    return sources, {**_agreed(settings, given), **given}


def shadowed(specs: Sequence[str]) -> list[str]:
    """The sources that are read from here though a recipe has the same name."""
    return [spec for spec in specs if os.path.lexists(spec) and find_recipe(spec) is not None]


def _named_by(spec: str, given: dict[str, Any]) -> Recipe | None:
    """The recipe that a source names; None: it is something to be read."""
    if spec == STDIN or "://" in spec or "\0" in spec:
        return None
    if os.path.lexists(spec):
        # In a folder a .toml file is a text like any other; named by itself it is a recipe, unless one says otherwise.
        is_recipe = spec.endswith(ENDING) and os.path.isfile(spec) and given.get("input_format", "auto") == "auto"
        return read_recipe(spec) if is_recipe else None
    recipe = find_recipe(spec)
    if recipe is None and not glob.has_magic(spec) and (near := near_names(spec)):
        raise UsageError(
            "there is no such file or folder, and no recipe of that name",
            place=spec,
            hint=f"did you mean `{near[0]}`? `shardmill recipes` lists them",
        )
    return recipe


def _matching(spec: str, recipe: Recipe) -> str:
    """Of a folder only what is called as the recipe's files are: beside a download there is a README."""
    pattern = os.path.basename(recipe.source[0])
    if not os.path.isdir(spec) or not glob.has_magic(pattern):
        return spec
    return os.path.join(glob.escape(spec), "**", pattern)


def _formats(recipe: Recipe, given: dict[str, Any]) -> tuple[str, ...]:
    chosen = given.get("format") or recipe.options.get("format") or Options.format
    return (chosen,) if isinstance(chosen, str) else tuple(chosen)


def _agreed(settings: list[dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
    """What all recipes of a call want; a setting that one of them leaves alone is wanted as it is by default."""
    agreed: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in settings for name in one):
        wanted = [one.get(name, getattr(Options, name)) for one in settings]
        if name not in given and any(value != wanted[0] for value in wanted):
            flag = "--" + name.replace("_", "-")
            shown = " and ".join(f"`{value}`" for value in dict.fromkeys(map(str, wanted)))
            raise UsageError(f"the recipes differ in `{flag}`: {shown}", hint=f"choose one with `{flag}`")
        agreed[name] = wanted[0]
    return agreed


def command(recipe: Recipe, formats: tuple[str, ...] = ()) -> str:
    """What one would type without the recipe."""
    settings = {name: value for name, value in recipe.settings(formats).items() if value != getattr(Options, name)}
    words = ["shardmill", "prepare", *recipe.source, "-o", "DIR"]
    for format in formats or settings.pop("format", ()):
        words += ["-f", format]
    settings.pop("format", None)
    for name, value in settings.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    return shlex.join(words)


def recipe_table(recipes: Sequence[Recipe]) -> Iterator[str]:
    """One line for each."""
    width = max(len(recipe.name) for recipe in recipes) + 2
    yield f"{'name':<{width}}{'stored':>8}{'documents':>11}{'tokens':>8}  what"
    for recipe in recipes:
        stored, documents, tokens = _figures(recipe)
        more = " (the name is an example)" if recipe.variable else ""
        yield f"{recipe.name:<{width}}{stored:>8}{documents:>11}{tokens:>8}  {recipe.about}{more}"
    yield "Figures are as published, approximate, tokens by GPT-2's tokenizer; `shardmill inspect NAME` measures."


def recipe_page(recipe: Recipe) -> Iterator[str]:
    """All of one."""
    yield recipe.name + (f": {recipe.about}" if recipe.about else "")
    stored, documents, tokens = _figures(recipe)
    for label, said in (
        ("source", " ".join(recipe.source)),
        ("home", recipe.home),
        ("license", recipe.license),
        ("about", f"{stored} stored, {documents} documents, {tokens} tokens" if recipe.tokens or recipe.bytes else ""),
    ):
        if said:
            yield f"  {label:<9}{said}"
    yield "  stands for"
    yield f"    {command(recipe)}"
    for format in FORMATS:
        if format in recipe.formats:
            yield f"    {command(recipe, (format,))}"


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """For programs."""
    return {
        "name": recipe.name,
        "example": recipe.variable,
        "source": list(recipe.source),
        **{key: getattr(recipe, key) for key in ("about", "home", "license", "bytes", "documents", "tokens")},
        "options": recipe.options,
        "formats": recipe.formats,
        "command": command(recipe),
        "commands": {format: command(recipe, (format,)) for format in recipe.formats},
    }


def _figures(recipe: Recipe) -> tuple[str, str, str]:
    return (
        "–" if recipe.bytes is None else show_bytes(recipe.bytes),
        "–" if recipe.documents is None else show_count(recipe.documents),
        "–" if recipe.tokens is None else show_count(recipe.tokens),
    )
