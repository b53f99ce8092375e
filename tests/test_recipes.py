"""Recipes: a name stands for sources and settings, and never for anything that one could not have typed."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.errors import UsageError
from shardmill.options import Options
from shardmill.sources.recipes import apply_recipes, command, find_recipe, list_recipes
from tests.corpus import contents, documents, write_jsonl
from tests.meter import metered

EDU = "hf://datasets/HuggingFaceFW/fineweb-edu"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("fineweb-edu/sample-10BT", f"{EDU}/sample/10BT/*.parquet"),
        ("fineweb-edu/sample-350BT", f"{EDU}/sample/350BT/*.parquet"),
        ("fineweb-edu/CC-MAIN-2013-20", f"{EDU}/data/CC-MAIN-2013-20/*.parquet"),
        ("fineweb-edu", f"{EDU}/data/*/*.parquet"),
        ("fineweb/sample-100BT", "hf://datasets/HuggingFaceFW/fineweb/sample/100BT/*.parquet"),
        ("fineweb/CC-MAIN-2024-10", "hf://datasets/HuggingFaceFW/fineweb/data/CC-MAIN-2024-10/*.parquet"),
        ("fineweb-2/deu_Latn", "hf://datasets/HuggingFaceFW/fineweb-2/data/deu_Latn/train/*.parquet"),
        ("openwebtext", "hf://datasets/Skylion007/openwebtext/plain_text/*.parquet"),
    ],
)
def test_a_name_stands_for_what_is_read(name: str, source: str) -> None:
    assert apply_recipes([name], {})[0] == [source]


def test_every_recipe_that_is_listed_can_be_used_with_every_format_that_it_names() -> None:
    listed = list_recipes()
    assert len({recipe.name for recipe in listed}) == len(listed) >= 12
    for recipe in listed:
        again = find_recipe(recipe.name)
        assert again is not None and again.source == recipe.source
        assert "{" not in json.dumps([recipe.source, *recipe.formats.values()]).replace("{}", "").replace('{"', "")
        assert recipe.home.startswith("https://") and recipe.license and recipe.about
        for format in recipe.formats:
            apply_recipes([recipe.name], {"format": format})


@pytest.mark.parametrize("format", ["npy", "llmc", "nanogpt"])
def test_the_command_that_a_recipe_stands_for_gives_the_same_options(format: str) -> None:
    recipe = find_recipe("fineweb-edu/sample-10BT")
    assert recipe is not None
    words = shlex.split(command(recipe, (format,)))
    assert words[:2] == ["shardmill", "prepare"] and words[2] == recipe.source[0]
    typed = {word[2:].replace("-", "_"): words[i + 1] for i, word in enumerate(words) if word.startswith("--")}
    _, options = apply_recipes([recipe.name], {"format": format})
    assert Options.of({**typed, "format": format}).fingerprinted() == Options.of(options).fingerprinted()


def test_what_was_given_counts_before_the_recipe() -> None:
    given = {"format": "npy", "val": "0", "name": "mine"}
    _, options = apply_recipes(["fineweb-edu/sample-10BT"], given)
    assert options == {**given, "shard_tokens": "100M"}


def test_of_two_formats_the_first_one_counts_where_they_differ() -> None:
    assert apply_recipes(["fineweb-edu"], {"format": ("npy", "llmc")})[1]["name"] == "edufineweb"
    assert apply_recipes(["fineweb-edu"], {"format": ("llmc", "npy")})[1]["name"] == "edu_fineweb"
    assert apply_recipes(["fineweb-edu"], {"format": ("nanogpt", "npy")})[1]["val"] == "first:100M"


def test_two_recipes_that_want_different_things_are_refused_until_one_is_chosen() -> None:
    both = ["fineweb/CC-MAIN-2024-10", "fineweb-edu/CC-MAIN-2024-10"]
    with pytest.raises(UsageError, match="differ in `name`: `fineweb` and `edufineweb`") as refused:
        apply_recipes(both, {"format": "npy"})
    assert "--name" in refused.value.hint
    sources, options = apply_recipes(both, {"format": "npy", "name": "both"})
    assert len(sources) == 2 and options["name"] == "both" and options["val"] == "first:100M"
    assert len(apply_recipes(["fineweb/CC-MAIN-2024-10", "fineweb/CC-MAIN-2024-18"], {"format": "npy"})[0]) == 2


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("fineweb-edu/sample-10B", "fineweb-edu/sample-10BT"),
        ("fineweb_edu/sample-10BT", "fineweb-edu/sample-10BT"),
        ("fineweb-2/deu_Latin", "fineweb-2/deu_Latn"),
        ("openwebtxt", "openwebtext"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_right_one(tmp_path: Path, wrong: str, meant: str) -> None:
    for call in (["prepare", wrong, "-o", tmp_path / "out"], ["recipes", wrong], ["inspect", wrong]):
        run = metered(*call)
        assert run.code == 2
        assert f"did you mean `{meant}`?" in run.err and wrong in run.err
        assert "Traceback" not in run.err


def test_a_path_that_exists_counts_before_a_recipe_of_that_name_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("openwebtext")
    write_jsonl(tmp_path / "openwebtext" / "a.jsonl", documents(20))
    run = metered("prepare", "openwebtext", "-o", "out", "--val", "0")
    assert run.code == 0, run.err
    assert "note: `openwebtext` exists on disk" in run.err
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"][0]["name"] == "openwebtext/a.jsonl"
    assert metered("prepare", "openwebtext", "-o", "out", "--val", "0", "-q").err == ""


def downloaded(folder: Path, made: list[str]) -> Path:
    """A folder as `hf download` leaves it."""
    (folder / "sample" / "10BT").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / "README.md").write_text("---\nlicense: odc-by\n---\n# FineWeb-Edu")
    (folder / ".cache" / "x.parquet").write_text("half of a download")
    for i in range(2):
        table = pa.table({"text": made[i::2], "id": [str(j) for j in range(len(made[i::2]))]})
        pq.write_table(table, folder / "sample" / "10BT" / f"{i:03}_00000.parquet")
    return folder


def test_a_folder_that_was_downloaded_gets_the_settings_of_a_recipe_and_its_readme_is_left_out(tmp_path: Path) -> None:
    folder = downloaded(tmp_path / "my-fineweb", [text for text in documents(600) if text])
    options: dict[str, Any] = {"format": "npy", "val": "first:10k", "shard_tokens": "20k"}
    result = shardmill.prepare(folder, tmp_path / "a", recipe="fineweb-edu/sample-10BT", **options)
    assert [os.path.basename(source["name"]) for source in result.manifest["sources"]] == [
        "000_00000.parquet", "001_00000.parquet",
    ]  # fmt: skip
    names = [file["name"] for split in ("val", "train") for file in result.manifest["splits"][split]["files"]]
    assert names[:2] == ["edufineweb_val_000000.npy", "edufineweb_train_000001.npy"]
    spelt = shardmill.prepare(str(folder / "sample/10BT/*.parquet"), tmp_path / "b", name="edufineweb", **options)
    assert spelt.manifest["fingerprint"] == result.manifest["fingerprint"]
    made, expected = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert json.loads(made.pop("manifest.json"))["skipped"]["kinds"] == {"dataset card": 1}
    del expected["manifest.json"]
    assert made == expected


def test_a_recipe_that_is_not_there_is_said(tmp_path: Path) -> None:
    run = metered("prepare", tmp_path, "-o", tmp_path / "out", "--recipe", "fineweb-3")
    assert run.code == 2 and "there is no recipe `fineweb-3`" in run.err


def test_recipes_are_listed_with_sizes_and_as_json() -> None:
    said = metered("recipes").out
    assert "fineweb-edu/sample-10BT" in said and "27.6 GB" in said and "9.67M" in said
    data = json.loads(metered("recipes", "--json").out)
    assert {recipe["name"] for recipe in data} == {recipe.name for recipe in list_recipes()}
    one = json.loads(metered("recipes", "fineweb-2/fra_Latn", "--json").out)
    assert one["source"] == ["hf://datasets/HuggingFaceFW/fineweb-2/data/fra_Latn/train/*.parquet"]
    assert "-f npy" in one["commands"]["npy"]
