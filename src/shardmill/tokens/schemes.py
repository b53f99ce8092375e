"""The known split patterns, and what follows from each for cutting a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scheme:
    """How a tokenizer splits text before it merges bytes."""

    name: str
    patterns: tuple[str, ...]
    """The first as tiktoken gets it; the others are equivalent."""
    family: str
    """Which rules of cuts.py find its safe places."""


_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_WHITE = r"\s*[\r\n]+|\s+(?!\S)|\s+"

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "gpt2",
            (
                r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
                r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            ),
            family="gpt2",
        ),
        Scheme(
            "cl100k",
            (
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
                r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
            ),
            family="llama3",
        ),
        Scheme(
            "llama3",
            (
                rf"{_SHORT}|{_HEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_MARKS}|{_WHITE}",
                rf"{_SHORT}|{_HEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_MARKS}|\s*[\r\n]|\s+(?!\S)|\s+",
            ),
            family="llama3",
        ),
        Scheme("qwen2", (rf"{_SHORT}|{_HEAD}\p{{L}}+|\p{{N}}|{_MARKS}|{_WHITE}",), family="llama3"),
        Scheme(
            "qwen3.5",
            (rf"{_SHORT}|{_HEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_WHITE}",),
            family="llama3",
        ),
        Scheme(
            "o200k",
            (
                rf"{_HEAD}{_UPPER}*{_LOWER}+{_SHORT}?|{_HEAD}{_UPPER}+{_LOWER}*{_SHORT}?"
                rf"|\p{{N}}{{1,3}}|{_SLASHES}|{_WHITE}",
            ),
            family="o200k",
        ),
        Scheme(
            "tekken",
            (rf"{_HEAD}{_UPPER}*{_LOWER}+|{_HEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHES}|{_WHITE}",),
            family="o200k",
        ),
    )
}

# DeepSeek V3 splits three times, so no single pattern describes it, and tiktoken cannot be its library.
DEEPSEEK = Scheme(
    "deepseek-v3",
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),
    family="llama3",
)


def by_pattern(pattern: str) -> Scheme | None:
    """Return the scheme that splits as this regular expression does, if it is known."""
    return next((scheme for scheme in SCHEMES.values() if pattern in scheme.patterns), None)


def of_pre_tokenizer(rules: Any) -> Scheme | None:
    """Return the scheme of the `pre_tokenizer` of a tokenizer.json, if it is known."""
    steps = rules.get("pretokenizers", []) if isinstance(rules, dict) and rules.get("type") == "Sequence" else [rules]
    if not steps or not all(isinstance(step, dict) for step in steps):
        return None
    *splits, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if last.get("use_regex", True):
        return None if splits else SCHEMES["gpt2"]
    patterns = []
    for step in splits:
        isolated = (step.get("behavior"), step.get("invert", False)) in (("Isolated", False), ("Removed", True))
        if step.get("type") != "Split" or not isolated:
            return None
        patterns.append(step.get("pattern", {}).get("Regex"))
    if tuple(patterns) == DEEPSEEK.patterns:
        return DEEPSEEK
    return by_pattern(patterns[0]) if len(patterns) == 1 else None
