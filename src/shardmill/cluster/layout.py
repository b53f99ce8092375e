"""Divides the final files into pieces that any machine can write by itself.

A merge first goes through the rows of all parts without their tokens, and notes its position where a file begins. A
piece continues from such a position as the merge would, and writes only its own files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardmill.cluster.part_files import RowSettings
from shardmill.cluster.place import Place
from shardmill.errors import OutputError
from shardmill.run import Writer
from shardmill.shards import Output

PIECES = "pieces.json"
PIECE_BYTES = 1 << 27
"""The least bytes of tokens in a piece: one shard of the usual size. More if there would be too many pieces."""
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
    val_before: int
    """Tokens of val before that batch, for `--val first:N`."""
    output_position: list[int]
    """The position of the output there."""


@dataclass(frozen=True)
class Layout:
    """All pieces, and what a process needs to write them."""

    settings: RowSettings
    fingerprint: str
    """That of the plan."""
    orders: list[dict[str, Any]]
    """The arguments of `open_output`, for each output."""
    pieces: list[FilePiece]

    def sizes(self) -> dict[int, int]:
        """Return the bytes of tokens in each piece, by its number."""
        width = np.dtype(self.orders[0]["dtype"]).itemsize
        return {number: width * piece.tokens for number, piece in enumerate(self.pieces)}

    def json(self) -> str:
        return json.dumps(asdict(self))


def piece_name(number: int) -> str:
    return f"piece-{number:05}"


def read_layout(place: Place) -> Layout | None:
    """Return the layout that a merge has written, or None."""
    data = place.read(PIECES)
    if data is None:
        return None
    try:
        stored = json.loads(data)
        settings, pieces = RowSettings(**stored.pop("settings")), [FilePiece(**piece) for piece in stored.pop("pieces")]
        return Layout(settings, pieces=pieces, **stored)
    except (ValueError, KeyError, TypeError) as why:
        raise OutputError("the list of pieces cannot be read", place=f"{place.out}: {PIECES}") from why


class Pieces:
    """Finds the pieces during a merge that writes nothing."""

    def __init__(self, outputs: Sequence[Output], size: int) -> None:
        self._outputs, self._size = outputs, size
        self._done: list[FilePiece] = []
        self._open: dict[tuple[int, str], FilePiece] = {}

    def before(self, writer: Writer) -> None:
        """Note the position: a batch is about to be written."""
        self._merge_position = dict(writer.state.merge)
        self._tokens = [{split: count["tokens"] for split, count in counts.items()} for counts in writer.state.counts]
        self._positions = [output.position() for output in self._outputs]

    def after(self, writer: Writer) -> None:
        """Begin and end pieces: the batch was written."""
        for i, output in enumerate(self._outputs):
            for split, (index, *_) in output.position().items():
                tokens = writer.state.counts[i][split]["tokens"]
                if tokens == self._tokens[i][split]:
                    continue
                before = self._positions[i][split][0]
                piece = self._open.get((i, split)) or self._begin(i, split, before)
                piece.parts[1] = self._merge_position.get("part", 0)
                if index > before and (tokens - piece.tokens) * output.dtype.itemsize >= self._size:
                    self._end(piece, index, tokens)
                    self._begin(i, split, index)

    def found(self, writer: Writer) -> list[FilePiece]:
        """Return all pieces, after the last batch. Those of val come first, because they need every part."""
        for (i, split), piece in list(self._open.items()):
            tokens = writer.state.counts[i][split]["tokens"]
            full = self._outputs[i].position()[split][0] > piece.first
            before = [one for one in self._done if (one.output, one.split) == (i, split)]
            if full or not before:
                self._end(piece, _END, tokens)
            else:  # a last file that is not full belongs to the piece before: `--tail` may join them
                before[-1].stop, before[-1].parts[1] = _END, piece.parts[1]
                before[-1].tokens += tokens - piece.tokens
        return sorted(self._done, key=lambda piece: (piece.split != "val", piece.parts, piece.output, piece.first))

    def _begin(self, output: int, split: str, first: int) -> FilePiece:
        part, tokens = self._merge_position.get("part", 0), self._tokens[output]
        position = self._positions[output][split]
        piece = FilePiece(
            output, split, first, _END, [part, part], tokens[split], self._merge_position, tokens["val"], position
        )  # fmt: skip
        self._open[output, split] = piece
        return piece

    def _end(self, piece: FilePiece, stop: int, tokens: int) -> None:
        piece.stop, piece.tokens = stop, tokens - piece.tokens
        self._done.append(piece)
