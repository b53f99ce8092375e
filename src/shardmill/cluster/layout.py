"""Divides the final files into pieces that any machine can write by itself.

A merge goes through the rows of all parts without their tokens, and notes its position where a file begins. A piece
continues from such a position as the merge would, and writes only its own files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardmill.cluster.part_files import RowSettings
from shardmill.cluster.place import Place
from shardmill.errors import OutputError
from shardmill.run import Writer
from shardmill.shards import Output

_END = 1 << 62


@dataclass
class FilePiece:
    """Files of one split of an output: those with an index from `first` up to `stop`."""

    output: int
    split: str
    first: int
    stop: int
    parts: list[int]
    """The first and the last part that they hold something of."""
    tokens: int
    """Tokens in the piece; while it is open, those of the split before it."""
    merge_position: dict[str, int]
    """How far the merge is in the first part, at the batch in which the first file begins."""
    open: str
    """The split of the document that continues there; empty: there is none."""
    val_before: int
    """Tokens of val before that batch, for `--val first:N`."""
    output_position: list[int]
    """The position of the output there."""


@dataclass(frozen=True)
class PieceOrder:
    """What a process needs to write a piece, as it is stored for all machines."""

    settings: RowSettings
    fingerprint: str
    """That of the plan."""
    output: dict[str, Any]
    """The arguments of `open_output`."""
    piece: FilePiece

    def store(self, place: Place, number: int) -> None:
        place.create(_order_name(number), json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, place: Place, number: int) -> PieceOrder | None:
        """Return the order for the piece of this number, or None if the dataset is complete and nothing is left."""
        data = place.read(_order_name(number))
        if data is None:
            return None
        try:
            stored = json.loads(data)
            settings, piece = RowSettings(**stored.pop("settings")), FilePiece(**stored.pop("piece"))
            return cls(settings, piece=piece, **stored)
        except (ValueError, KeyError, TypeError) as why:
            raise OutputError(
                "the order for a piece cannot be read", place=f"{place.out}: {_order_name(number)}"
            ) from why


def _order_name(number: int) -> str:
    return f"pieces/{number:05}.json"


def piece_name(number: int) -> str:
    return f"piece-{number:05}"


def is_piece(name: str) -> bool:
    return name.startswith("piece-")


class Pieces:
    """Finds the pieces during a merge that writes nothing."""

    def __init__(self, outputs: Sequence[Output], size: int, saved: dict[str, Any] | None = None) -> None:
        """`size`: the least bytes of tokens in a piece. `saved`: what `state` has returned, to continue from there."""
        self._outputs, self._size = outputs, size
        stored = {name: [FilePiece(**piece) for piece in (saved or {}).get(name, ())] for name in ("open", "held")}
        self._open = {(piece.output, piece.split): piece for piece in stored["open"]}
        # Ended, and not given out before the next one has ended: `--tail` may join the last file to the one before.
        self._held = {(piece.output, piece.split): piece for piece in stored["held"]}

    def state(self) -> dict[str, Any]:
        return {"open": list(map(asdict, self._open.values())), "held": list(map(asdict, self._held.values()))}

    def first_part(self, splits: Sequence[str]) -> int:
        """Return the first part that a piece of these splits will need which is not given out yet."""
        waiting = [piece for piece in (*self._open.values(), *self._held.values()) if piece.split in splits]
        return min((piece.parts[0] for piece in waiting), default=_END)

    def before(self, writer: Writer) -> None:
        """Note the position: a batch is about to be written."""
        self._merge_position = {name: at for name, at in writer.state.merge.items() if isinstance(at, int)}
        self._tokens = [{split: count["tokens"] for split, count in counts.items()} for counts in writer.state.counts]
        self._positions = [output.position() for output in self._outputs]
        self._split = writer.state.split

    def after(self, writer: Writer) -> Iterator[FilePiece]:
        """Begin and end pieces: the batch was written. Yield those that can be made now."""
        for i, output in enumerate(self._outputs):
            for split, (index, *_) in output.position().items():
                tokens = writer.state.counts[i][split]["tokens"]
                if tokens == self._tokens[i][split]:
                    continue
                before = self._positions[i][split][0]
                piece = self._open.get((i, split)) or self._begin(i, split, before)
                piece.parts[1] = self._merge_position.get("part", 0)
                if index > before and (tokens - piece.tokens) * output.dtype.itemsize >= self._size:
                    if (i, split) in self._held:
                        yield self._held[i, split]
                    self._held[i, split] = _ended(piece, index, tokens)
                    self._begin(i, split, index)

    def rest(self, writer: Writer) -> Iterator[FilePiece]:
        """Yield the last pieces, after the last batch."""
        for (i, split), piece in self._open.items():
            tokens = writer.state.counts[i][split]["tokens"]
            full, held = self._outputs[i].position()[split][0] > piece.first, self._held.get((i, split))
            if held is not None and not full:  # a last file that is not full belongs to the piece before
                held.stop, held.parts[1], held.tokens = _END, piece.parts[1], held.tokens + tokens - piece.tokens
                yield held
                continue
            if held is not None:
                yield held
            yield _ended(piece, _END, tokens)
        self._open, self._held = {}, {}

    def _begin(self, output: int, split: str, first: int) -> FilePiece:
        part, tokens = self._merge_position.get("part", 0), self._tokens[output]
        position = self._positions[output][split]
        piece = FilePiece(
            output, split, first, _END, [part, part], tokens[split], self._merge_position, self._split, tokens["val"],
            position,
        )  # fmt: skip
        self._open[output, split] = piece
        return piece


def _ended(piece: FilePiece, stop: int, tokens: int) -> FilePiece:
    piece.stop, piece.tokens = stop, tokens - piece.tokens
    return piece
