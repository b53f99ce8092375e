"""Loads a tokenizer by its name, file, folder or hub id."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.arguments import did_you_mean
from shardmill.errors import UsageError
from shardmill.extras import needs
from shardmill.tokens import rank_files
from shardmill.tokens.json_files import JsonTokenizer
from shardmill.tokens.rank_files import RankTokenizer
from shardmill.tokens.schemes import SCHEMES, Scheme, by_pattern
from shardmill.tokens.sentencepiece_files import SentencePieceTokenizer

if TYPE_CHECKING:
    from shardmill.tokens.tokenizers import Tokenizer

SPECIALS = ("text", "parse", "error")


@dataclass(frozen=True)
class Published:
    """A rank file that has a name, and what the file itself does not say."""

    scheme: str
    special_tokens: dict[str, int]
    sha256: str
    """Of the rank file."""
    vocab_size: int


_END, _PROMPT = rank_files.END_OF_TEXT, "<|endofprompt|>"
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")

_GPT2 = Published("gpt2", {_END: 50256}, "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", 50257)

PUBLISHED = {
    "gpt2": _GPT2,
    "r50k_base": _GPT2,
    "p50k_base": Published(
        "gpt2", {_END: 50256}, "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069", 50281
    ),
    "cl100k_base": Published(
        "cl100k",
        {_END: 100257, **dict(zip(_FIM, range(100258, 100261), strict=True)), _PROMPT: 100276},
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        100277,
    ),
    "o200k_base": Published(
        "o200k",
        {_END: 199999, _PROMPT: 200018},
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        200019,
    ),
}
"""As tiktoken defines them."""

ALIASES = {
    "gpt-2": "gpt2",
    "r50k": "r50k_base",
    "p50k": "p50k_base",
    **dict.fromkeys(("cl100k", "gpt-4", "gpt-4-turbo", "gpt-3.5", "gpt-3.5-turbo"), "cl100k_base"),
    **dict.fromkeys(("o200k", "gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-5", "o1", "o3"), "o200k_base"),
}
"""Other names of these, as tiktoken maps models to them. Case, hyphens and underscores do not matter."""
_ON_THE_HUB = {
    "llama2": "meta-llama/Llama-2-7b-hf",
    "llama": "meta-llama/Llama-3.1-8B",
    "mistral": "mistralai/Mistral-7B-v0.3",
    "qwen": "Qwen/Qwen3-8B",
    "gemma": "google/gemma-2-9b",
    "deepseek": "deepseek-ai/DeepSeek-V3",
    "phi": "microsoft/phi-4",
    "neox": "EleutherAI/gpt-neox-20b",
}
"""A hub id for each family of models, for hints: their releases differ, so a family's name alone is no tokenizer."""

_ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
BUILT_IN = ("gpt2", "r50k_base", "p50k_base")


@dataclass(frozen=True)
class ListedTokenizer:
    """A tokenizer that can be asked for by name."""

    name: str
    vocab_size: int
    engine: str
    source: str


def list_tokenizers() -> list[ListedTokenizer]:
    """Return the tokenizers that have names; others are given as a file, a folder or a hub id."""
    return [
        ListedTokenizer(
            name,
            known.vocab_size,
            "core",
            "in this package" if name in BUILT_IN else "tiktoken's cache or the network",
        )
        for name, known in PUBLISHED.items()
    ]


def load_tokenizer(spec: str, *, pattern: str | None = None, specials: str = "text") -> Tokenizer:
    """Load the tokenizer of that name, file, folder or hub id. UsageError, with a hint, if that is not possible."""
    if specials not in SPECIALS:
        raise UsageError(f"special tokens cannot be `{specials}`", hint=f"one of {', '.join(SPECIALS)}")
    path = Path(spec)
    if spec in PUBLISHED:
        _no_pattern(pattern, spec)
        return _published(spec, _ranks_of(spec), specials)
    if path.is_dir():
        return _from_folder(path, pattern, specials)
    if path.is_file():
        return _from_file(path, pattern, specials)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec) and path.suffix not in (".json", ".model", ".tiktoken"):
        _no_pattern(pattern, spec)
        return _from_hub(spec, specials)
    if (name := _known_as(spec)) is not None:
        _no_pattern(pattern, spec)
        return _published(name, _ranks_of(name), specials)
    kinds = f"a name ({', '.join(PUBLISHED)}), a .tiktoken, tokenizer.json or .model file, a folder, or a hub id"
    raise UsageError(f"there is no tokenizer `{spec}`", hint=f"{_similar(spec)}give {kinds}")


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _known_as(spec: str) -> str | None:
    """Return the tokenizer that has this name in another spelling, or that such a model uses."""
    names = {_plain(name): known for name, known in [*zip(PUBLISHED, PUBLISHED, strict=True), *ALIASES.items()]}
    return names.get(_plain(spec))


def _similar(spec: str) -> str:
    """Return the beginning of a hint: what was probably meant."""
    for family, hub_id in _ON_THE_HUB.items():
        if _plain(spec).removeprefix("gpt").startswith(family):
            return f"did you mean the one of a hub repository, such as `{hub_id}`? Else "
    return did_you_mean(spec.lower(), [*PUBLISHED, *ALIASES])


def _no_pattern(pattern: str | None, spec: str) -> None:
    if pattern is not None:
        raise UsageError(f"`{spec}` has a split pattern of its own", hint="a pattern goes with a .tiktoken file only")


def _published(name: str, text: bytes, specials: str) -> Tokenizer:
    known = PUBLISHED[name]
    return RankTokenizer(
        name, text, SCHEMES[known.scheme], known.special_tokens, specials=specials, place=name, published=True
    )


def _ranks_of(name: str) -> bytes:
    if name in BUILT_IN:
        return rank_files.p50k_ranks() if name == "p50k_base" else rank_files.gpt2_ranks()
    from tiktoken.load import read_file_cached

    url = _ADDRESS.format(name)
    try:
        text: bytes = read_file_cached(url, PUBLISHED[name].sha256)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the vocabulary of `{name}` is not in tiktoken's cache and cannot be fetched: {error}",
            place=url,
            hint=f"fetch it elsewhere and give the file: --tokenizer {name}.tiktoken",
        ) from None
    return text


def _from_folder(folder: Path, pattern: str | None, specials: str) -> Tokenizer:
    for name in ("tokenizer.json", "tokenizer.model", "tiktoken.model"):
        if (folder / name).is_file():
            return _from_file(folder / name, pattern, specials)
    ranks = sorted(folder.glob("*.tiktoken"))
    if len(ranks) == 1:
        return _from_file(ranks[0], pattern, specials)
    raise UsageError("the folder holds no tokenizer.json, tokenizer.model or .tiktoken file", place=str(folder))


def _from_file(path: Path, pattern: str | None, specials: str) -> Tokenizer:
    text = path.read_bytes()
    if re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", text):
        return _from_rank_file(path, text, pattern, specials)
    _no_pattern(pattern, str(path))
    if path.suffix == ".json":
        config = path.with_name("tokenizer_config.json")
        return JsonTokenizer(
            path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.stem,
            text,
            config.read_bytes() if config.is_file() else None,
            specials=specials,
            place=str(path),
        )
    return SentencePieceTokenizer(path.stem, text, specials=specials, place=str(path))


def _from_rank_file(path: Path, text: bytes, pattern: str | None, specials: str) -> Tokenizer:
    """Recognise a published file by its content; others need a pattern, which such a file does not contain."""
    digest = hashlib.sha256(text).hexdigest()
    published = next((name for name, known in PUBLISHED.items() if known.sha256 == digest), None)
    if pattern is None and published:
        return _published(published, text, specials)
    if pattern is None:
        raise UsageError(
            "a rank file does not say how it splits text",
            place=str(path),
            hint=f"give the pattern: a regular expression, or one of {', '.join(SCHEMES)}",
        )
    scheme: Scheme | str = SCHEMES.get(pattern) or by_pattern(pattern) or pattern
    special_tokens = PUBLISHED[published].special_tokens if published else {}
    return RankTokenizer(path.stem, text, scheme, special_tokens, specials=specials, place=str(path))


def _from_hub(spec: str, specials: str) -> Tokenizer:
    hub = needs("huggingface_hub", "hf", "this tokenizer")
    errors = needs("huggingface_hub.errors", "hf", "this tokenizer")
    missing, unreachable = errors.EntryNotFoundError, errors.LocalEntryNotFoundError
    try:
        rules = Path(hub.hf_hub_download(spec, "tokenizer.json"))
        try:
            config = Path(hub.hf_hub_download(spec, "tokenizer_config.json")).read_bytes()
        except missing:
            config = None
    except unreachable:
        raise UsageError(
            f"the tokenizer `{spec}` cannot be fetched: the hub is out of reach, and it is not in the cache",
            hint="fetch it on a machine with a network, and give its tokenizer.json",
        ) from None
    except missing:
        raise UsageError(
            f"`{spec}` on the hub has no tokenizer.json", hint="convert it with transformers, and give the file"
        ) from None
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        raise UsageError(
            f"the tokenizer `{spec}` cannot be fetched from the hub: {str(error).splitlines()[0]}",
            hint="check the name and the network, log in with `hf auth login`, or give a tokenizer.json file",
        ) from None
    return JsonTokenizer(spec, rules.read_bytes(), config, specials=specials, place=spec)
