"""`rejects.jsonl`: every record that is not a document, with its place and the reason; and when there are too many."""

from __future__ import annotations

from json.encoder import encode_basestring as _quoted

from shardmill.errors import SourceError
from shardmill.run.manifest import as_bytes

_ALWAYS_ALLOWED = 100  # under a share, so that one bad line among the first ten does not stop a run


def reject_line(source: str, unit: str, number: int, byte: int, reason: str, excerpt: str) -> bytes:
    """One line of `rejects.jsonl`. `number` counts from 1, as editors do; `byte` from 0."""
    # By hand, since there may be millions of them: `json.dumps` of the whole takes 6 µs, this 1.3.
    place = (f', "{unit}": {number}' if number > 0 else "") + (f', "byte": {byte}' if byte >= 0 else "")
    why = f'"reason": {_quoted(reason)}, "excerpt": {_quoted(excerpt)}'
    return as_bytes(f'{{"source": {_quoted(source)}{place}, {why}}}\n')


def check_rejects(rejected: int, read: int, allowed: float | int | None, last: str, reason: str, name: str) -> None:
    """SourceError when more documents are bad than `--max-bad` allows."""
    if allowed is None:
        return
    bound = max(_ALWAYS_ALLOWED, allowed * read) if isinstance(allowed, float) else allowed
    if rejected > bound:
        raise SourceError(
            f"{rejected:,} of {read:,} documents are bad, more than `--max-bad` allows; the last: {reason}",
            place=last,
            hint=f"see `{name}`; `--max-bad any` sets all such documents aside and goes on",
        )
