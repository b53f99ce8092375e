"""Writes one piece of the final files from the parts. Several processes may write the same piece; the first counts."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from shardmill.cluster.layout import PieceOrder, piece_name
from shardmill.cluster.part_files import StoredPart
from shardmill.cluster.place import Place, part_manifest, place_of
from shardmill.errors import BusyError, Interrupted, ShardmillError
from shardmill.run import MANIFEST, Batch, Done, Journal, OpenDocument, Progress, append_batch, manifest_json, settled
from shardmill.shards import Output, open_output
from shardmill.storage import Written, write_whole

_FULL = 16  # files that are closed together: each holds two handles until then


def make_piece(
    out: str | os.PathLike[str],
    number: int,
    *,
    progress: Progress | None = None,
    stopped: threading.Event | None = None,
) -> bool:
    """Write the files of a piece, unless they are there. An interrupted piece is begun anew: it is about one shard.

    Return False if they were there already, or another process was faster.
    """
    place, name = place_of(out), piece_name(number)
    order = PieceOrder.read(place, number)
    if order is None or place.read(f"{name}/{MANIFEST}") is not None:
        return False
    folder, lock = _lock_folder(place, name)
    with closing(lock):
        try:
            files = _write(place, order, folder, progress or Progress(), stopped or threading.Event())
        except ShardmillError:
            if place.manifest(name) is None:
                raise
            return False  # the parts are gone, since another process was faster
        splits = {order.piece.split: {"files": [written.entry() for written in files]}}
        manifest = {"fingerprint": order.fingerprint, "output": order.piece.output, "splits": splits, "sources": []}
        write_whole(folder / MANIFEST, manifest_json(manifest))
        return place.publish(name, folder, manifest, final=True)


def _lock_folder(place: Place, name: str) -> tuple[Path, Journal]:
    """Lock and return an empty folder. One that another process holds is left alone: that process may be frozen."""
    for attempt in itertools.count():
        folder = place.work(name, attempt)
        try:
            lock = Journal(folder)
        except BusyError:
            continue
        for path in folder.iterdir():
            if path != lock.folder:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return folder, lock
    raise AssertionError


def _write(
    place: Place, order: PieceOrder, folder: Path, progress: Progress, stopped: threading.Event
) -> list[Written]:
    piece, arguments = order.piece, dict(order.output)
    output = open_output(arguments.pop("format"), folder, **{**arguments, "dtype": np.dtype(arguments["dtype"])})
    output.only = {piece.split: range(piece.first, piece.stop)}
    output.restore({piece.split: piece.output_position}, ())
    files: list[Written] = []
    val, copied = piece.val_before, 0
    with closing(output):
        for batch in _batches(place, order, output):
            if stopped.is_set():
                raise Interrupted
            first = max(0, order.settings.first - val)
            for share in append_batch(output, batch.streams[output.eot], first=first):
                val += len(share.tokens) if share.split == "val" else 0
                copied += share.tokens.nbytes
            if output.full >= _FULL:
                files += _synced(output)
            progress.update(Done(bytes=copied))
            if output.position()[piece.split][0] >= piece.stop:
                break
        output.finish((piece.split,))
        return files + _synced(output)


def _synced(output: Output) -> list[Written]:
    files = [written for _, written in output.prepare_sync()()]
    output.recorded()
    return files


def _batches(place: Place, order: PieceOrder, output: Output) -> Iterator[Batch]:
    """Yield the rows of the parts, from the position that was noted for the piece."""
    piece, start = order.piece, dict(order.piece.merge_position)

    def stored() -> Iterator[Batch]:
        nonlocal start
        for number in range(piece.parts[0], piece.parts[1] + 1):
            manifest = part_manifest(place, number)
            assert manifest is not None
            part = StoredPart(place, number, manifest, order.settings)
            yield from part.batches(start, (output.eot,), piece.split)
            start = {}

    for batch in settled(stored(), OpenDocument(piece.open), order.settings.eot_id):
        if batch.ended and not order.settings.first:  # at a seam tokens of both splits are made, and not read
            for stream in batch.streams.values():
                stream.tokens.pop("train" if piece.split == "val" else "val", None)
        yield batch
