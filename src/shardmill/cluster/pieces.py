"""One piece of the final files, written from the parts by whoever has its number; only the first copy counts."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.cluster.layout import FilePiece, Layout, piece_name, read_layout
from shardmill.cluster.place import Place, part_manifest, place_of
from shardmill.cluster.stored_part import StoredPart
from shardmill.errors import BusyError, Interrupted, ShardmillError
from shardmill.run import Batch, Budget, Destination, Producer, Progress, Run, Writer
from shardmill.shards import Output, open_output
from shardmill.storage import Sources


def make_piece(
    out: str | os.PathLike[str],
    number: int,
    *,
    progress: Progress | None = None,
    stopped: threading.Event | None = None,
) -> bool:
    """Write the files of a piece, unless they are there. The same call goes on from where one ended on this machine.

    False: they were there already, or another was faster.
    """
    place = place_of(out)
    layout = read_layout(place)
    if layout is None or place.read(f"{piece_name(number)}/manifest.json") is not None:
        return False
    piece = layout.pieces[number]
    for attempt in itertools.count():
        folder = place.work(piece_name(number), attempt)
        output = _open(layout, piece, folder)
        rows = PieceRows(place, layout, number, output, stopped or threading.Event())
        try:
            result = Run(rows, Destination(folder), [output], progress or Progress()).go()
        except BusyError:  # that process may be frozen
            continue
        except ShardmillError:
            if place.manifest(piece_name(number)) is None:
                raise
            return False  # the parts are gone, since another was faster
        shutil.rmtree(folder / ".shardmill", ignore_errors=True)
        return place.publish(piece_name(number), folder, result.manifest, final=True)
    raise AssertionError


def _open(layout: Layout, piece: FilePiece, folder: Path) -> Output:
    order = dict(layout.orders[piece.output])
    output = open_output(order.pop("format"), folder, **{**order, "dtype": np.dtype(order["dtype"])})
    output.only = {piece.split: range(piece.first, piece.stop)}
    return output


class PieceRows(Producer):
    """The rows of the parts from where a piece begins."""

    def __init__(self, place: Place, layout: Layout, number: int, output: Output, stopped: threading.Event) -> None:
        self._place, self._layout, self._output, self._stopped = place, layout, output, stopped
        self._piece = piece = layout.pieces[number]
        self.facts: dict[str, Any] = {
            "sources": [],
            "tokenizer": layout.tokenizer,
            "options": {"piece": [number, piece.first, piece.stop]},
        }
        self.sources = Sources([])
        self.splits, self.first = (piece.split,), layout.settings.first
        self.budget = Budget(None, 1)

    def check_space(self, destination: Destination, outputs: list[Output]) -> None:
        """The merge says what all takes."""

    @contextmanager
    def batches(self, writer: Writer) -> Iterator[Iterator[Batch]]:
        with closing(self._batches(writer)) as batches:
            yield batches

    def _batches(self, writer: Writer) -> Generator[Batch, None, None]:
        piece, state = self._piece, writer.state
        if "piece" not in state.merge:
            start = {**piece.state, "merge": {"part": piece.parts[0], **piece.state["merge"], "piece": 1}}
            for name, value in start.items():
                setattr(state, name, value)
            self._output.restore({piece.split: piece.position}, ())
        for number in range(state.merge["part"], piece.parts[1] + 1):
            manifest = part_manifest(self._place, number)
            assert manifest is not None
            part = StoredPart(self._place, number, manifest, self._layout.settings)
            behind = dict(state.merge)
            for batch in part.batches(behind, (self._output.eot,), piece.split):
                if self._stopped.is_set():
                    raise Interrupted
                yield batch
                writer.pass_bytes(sum(tokens.nbytes for tokens in batch.streams[self._output.eot].tokens.values()))
                if self._output.position()[piece.split][0] >= piece.stop:
                    return
            yield Batch([], [], {}, after=_next_part)


def _next_part(writer: Writer) -> None:
    merge = writer.state.merge
    writer.state.merge = {"part": merge["part"] + 1, "piece": 1, "open": merge.get("open", 0)}
