"""Tokenizers that a caller has as an object: the options that name them, so that a dataset can load them again."""

from __future__ import annotations

from typing import Any

from shardmill.errors import UsageError
from shardmill.tokens import self_check
from shardmill.tokens.loading import PUBLISHED
from shardmill.tokens.texts import TextTokenizer, text_tokenizer

_HINTS = {
    "tiktoken": "give its .tiktoken file, and its `pattern`",
    "tokenizers": 'call its `save("tokenizer.json")`, and give that file',
    "transformers": 'call its `save_pretrained("tokenizer")`, and give that folder',
}


def options_of(tokenizer: Any) -> dict[str, Any]:
    """Return the options that load the same tokenizer; for an object of an unknown kind, the object itself.

    Raise UsageError for one that no name or folder stands for: nobody could decode the dataset later.
    """
    if isinstance(tokenizer, TextTokenizer):
        return tokenizer.options
    library = type(tokenizer).__module__.partition(".")[0]
    if library not in _HINTS:
        return {"tokenizer": tokenizer}
    name = getattr(tokenizer, "name" if library == "tiktoken" else "name_or_path", "")
    if not name or (library == "tiktoken" and name not in PUBLISHED):
        raise UsageError("the `tokenizer` has no name by which it could be loaded again", hint=_HINTS[library])
    text, end = self_check.hard_text().decode(), None
    if library == "tiktoken":
        ids, end = tokenizer.encode_ordinary(text), tokenizer.eot_token
    else:
        text += " ".join(tokenizer.get_added_vocab())
        ids, end = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True), tokenizer.eos_token_id
    stored = text_tokenizer(name)
    if ids != stored.encode(text).tolist() or (end != stored.eot and None not in (end, stored.eot)):
        raise UsageError(f"the `tokenizer` is not the one that is stored as `{name}`", hint=_HINTS[library])
    return {"tokenizer": name}
