"""Recipes: datasets by name, with the settings that the trainers which read them expect.

A recipe is data. Those that come with shardmill stand in `recipes.toml`; one of your own is a TOML file, named
as a source.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from shardmill.errors import UsageError
from shardmill.options import FORMATS, Options
from shardmill.units import parse_bytes, parse_count

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENDING = ".toml"
_BUILT_IN = Path(__file__).with_name("recipes.toml")
_KEYS = ("source", "about", "home", "license", "bytes", "documents", "tokens", "options", "formats")
_PATTERN_KEYS = ("values", "example", "figures")
# These belong to a machine or to one call, not to a dataset.
_NOT_SET = ("memory", "workers", "cache", "overwrite", "recipe")
_NUMBERS = ("val", "seed", "shard_tokens", "limit", "max_bad")


@dataclass(frozen=True)
class Recipe:
    """What is read, and with which settings. Figures are approximate; None: nobody has said."""

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
    """The name is an example of many."""

    def settings(self, formats: tuple[str, ...]) -> dict[str, Any]:
        """The options that it sets for these output formats; where two formats differ, the first one counts."""
        chosen: dict[str, Any] = {}
        for format in reversed(formats):
            chosen |= self.formats.get(format, {})
        return {**self.options, **chosen}


def list_recipes() -> list[Recipe]:
    """Those that come with shardmill; of a pattern the values that are known, or an example."""
    listed: list[Recipe] = []
    for name, entry in _built_in().items():
        if "values" not in entry:
            listed.append(_recipe(name, entry))
            continue
        for value in entry.get("figures") or [entry["example"]]:
            made = _filled(name, entry, value)
            listed.append(dataclasses.replace(made, variable="figures" not in entry))
    return listed


def find_recipe(name: str) -> Recipe | None:
    """The recipe of that name among those that come with shardmill."""
    for pattern, entry in _built_in().items():
        if pattern == name:
            return _recipe(name, entry) if "values" not in entry else None
        if "values" in entry:
            before, _, after = re.split(r"(\{\w+\})", pattern)
            found = re.fullmatch(f"{re.escape(before)}({entry['values']}){re.escape(after)}", name)
            if found:
                return _filled(pattern, entry, found[1])
    return None


def near_names(name: str) -> list[str]:
    """Recipes with a name much like this one."""
    return difflib.get_close_matches(name, [recipe.name for recipe in list_recipes()], 1, cutoff=0.75)


def named_recipe(name: str) -> Recipe:
    """A recipe by its name or its file; UsageError when there is none."""
    if name.endswith(ENDING):
        return read_recipe(name)
    found = find_recipe(name)
    if found is None:
        near = near_names(name)
        hint = f"did you mean `{near[0]}`? " if near else ""
        raise UsageError(f"there is no recipe `{name}`", hint=f"{hint}`shardmill recipes` lists them")
    return found


def read_recipe(path: str) -> Recipe:
    """A recipe from a file of somebody's own; its sources are relative to the file. UsageError says what is wrong."""
    try:
        entry = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError("the recipe is not there", place=path) from error
    except OSError as error:
        raise UsageError(f"the recipe cannot be read: {error.strerror}", place=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe is not valid TOML: {error}", place=path) from error
    try:
        _check(entry)
        recipe = _recipe(path, entry)
    except UsageError as error:
        raise UsageError(error.message, place=path, hint=error.hint) from None
    folder = os.path.dirname(path)
    return dataclasses.replace(recipe, source=tuple(_beside(folder, source) for source in recipe.source))


def _beside(folder: str, source: str) -> str:
    return source if "://" in source or find_recipe(source) is not None else os.path.join(folder, source)


@cache
def _built_in() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_BUILT_IN.read_text(encoding="utf-8"))


def _filled(pattern: str, entry: dict[str, Any], value: str) -> Recipe:
    """The recipe that a pattern gives for a value of its variable."""
    (word,) = re.findall(r"\{\w+\}", pattern)

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: fill(inner) for key, inner in part.items()}
        return part.replace(word, value) if isinstance(part, str) else part

    plain = {key: fill(part) for key, part in entry.items() if key not in _PATTERN_KEYS}
    return _recipe(pattern.replace(word, value), plain | entry.get("figures", {}).get(value, {}))


def _recipe(name: str, entry: dict[str, Any]) -> Recipe:
    source = entry["source"]
    return Recipe(
        name,
        (source,) if isinstance(source, str) else tuple(source),
        about=entry.get("about", ""),
        home=entry.get("home", ""),
        license=entry.get("license", ""),
        bytes=parse_bytes(entry["bytes"]) if "bytes" in entry else None,
        documents=parse_count(entry["documents"]) if "documents" in entry else None,
        tokens=parse_count(entry["tokens"]) if "tokens" in entry else None,
        options=entry.get("options", {}),
        formats=entry.get("formats", {}),
    )


def _check(entry: dict[str, Any]) -> None:
    """UsageError for what a recipe cannot hold."""
    _known(entry, _KEYS, "a recipe has no `{}`")
    if "source" not in entry:
        raise UsageError("the recipe has no `source`", hint='say what is read: source = "folder/*.parquet"')
    source = entry["source"]
    if not _texts(source):
        raise UsageError("`source` is a text or a list of texts")
    if any(one.endswith(ENDING) for one in ([source] if isinstance(source, str) else source)):
        raise UsageError("the source of a recipe cannot be another recipe's file")
    for key in ("about", "home", "license"):
        if not isinstance(entry.get(key, ""), str):
            raise UsageError(f"`{key}` is not a text")
    for key in ("options", "formats"):
        if not isinstance(entry.get(key, {}), dict):
            raise UsageError(f"`{key}` is not a table", hint=f"begin a line with [{key}] and write the settings below")
    _check_options(entry.get("options", {}))
    formats = entry.get("formats", {})
    _known(formats, FORMATS, "there is no output format `{}`")
    for format, settings in formats.items():
        if not isinstance(settings, dict):
            raise UsageError(f"`formats.{format}` is not a table")
        if "format" in settings:
            raise UsageError(f"`formats.{format}` cannot choose a format")
        _check_options({**entry.get("options", {}), **settings})


def _check_options(settings: dict[str, Any]) -> None:
    known = [option.name for option in dataclasses.fields(Options) if option.name not in _NOT_SET]
    _known(settings, tuple(known), "a recipe cannot set `{}`")
    for name, value in settings.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and name in _NUMBERS
        if not (number or _texts(value) if name == "format" else number or isinstance(value, str)):
            raise UsageError(f"`{name}` cannot be {value!r}")
    if not isinstance(settings.get("seed", 0), int):
        raise UsageError("`seed` is not a whole number")
    Options.of(settings)


def _known(entry: dict[str, Any], keys: tuple[str, ...], said: str) -> None:
    for key in entry:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            raise UsageError(said.format(key), hint=f"{hint}there are: {', '.join(keys)}")


def _texts(value: Any) -> bool:
    """A text, or a list of some."""
    some = [value] if isinstance(value, str) else value
    return isinstance(some, list) and bool(some) and all(isinstance(one, str) and one for one in some)
