"""Feed a trainer: batches of shifted blocks, in an order that can be resumed, over any number of ranks.

    for x, y in data["train"].batches(batch_size=8, block_size=1024, rank=0, world_size=1, seed=0): ...

An epoch is every whole block of a split once: block b is x = tokens[b·block_size : (b+1)·block_size], and y the same
one token later. The order of blocks is the same for all ranks and is never held in memory. The epochs follow each other
in one stream of blocks: block number q of the stream is the (q mod blocks)-th of epoch q // blocks. Each step takes the
next batch_size·world_size blocks of the stream, and the last step of an epoch as many as are left and can be divided
equally. So all ranks get equally many batches with equally many rows. The blocks that are left then, fewer than there
are ranks, come first in the next epoch. A state is a place in the stream, and means the same for every rank and for any
other number of ranks.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardmill import arguments
from shardmill.errors import MismatchError, UsageError
from shardmill.permutation import Permutation, mix, mixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardmill.dataset.dataset import Split

ORDERS = ("shuffled", "sequential", "random")
_AHEAD = 4096  # blocks whose places are computed in one go

Step = tuple[int, int]
"""(epoch, blocks of it that all ranks have had before; negative: so many of the epoch before are still to come)."""


class Packed(NamedTuple):
    """Where documents are in a batch. Each row is treated as if a document began with it."""

    document: NDArray[np.int32]
    """For each token the number of its document in the row: attention is for tokens that have the same one."""
    position: NDArray[np.int32]
    """For each token how far it is from the start of its document."""
    cu_seqlens: NDArray[np.int32]
    """Where documents begin in all rows laid end to end, and the end: as FlashAttention takes it."""


class _Steps:
    """Some steps of an epoch: where their rows begin, and the rows of those that were read."""

    def __init__(self, first: Step, stride: int, places: NDArray[np.int64]) -> None:
        self.first, self.stride, self.places = first, stride, places
        self.first_read, self.read = 0, np.empty((0, 0, 0))


class Batches:
    """An iterable of (x, y), or (x, y, Packed). `state_dict` returns its position."""

    def __init__(
        self,
        split: Split,
        batch_size: int,
        block_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        order: str = "shuffled",
        epochs: int | None = 1,
        last: str = "short",
        documents: bool = False,
        dtype: Any = None,
        tensors: bool = False,
    ) -> None:
        """Raise UsageError if a value is not possible.

        `order`: `shuffled`, `sequential`, or `random` (windows drawn anywhere, as nanoGPT does). `epochs` None: for
        ever. `last`: `short` ends an epoch with a batch of fewer rows, the same number on every rank, and blocks that
        cannot be divided equally come first in the next epoch; `drop` leaves out what is not a whole batch on every
        rank. `documents`: a third value says where documents begin. `dtype`: of x and y, as in the files by default.
        `tensors`: give torch tensors, of int64 by default.
        """
        self._split, number, flag = split, arguments.number, arguments.flag
        self.batch_size, self.block_size = number("batch_size", batch_size, 1), number("block_size", block_size, 1)
        self.rank, self.world_size = number("rank", rank), number("world_size", world_size)
        self.seed = number("seed", seed)
        self.order, self.last = arguments.text("order", order), arguments.text("last", last)
        self.epochs = None if epochs is None else number("epochs", epochs, 0)
        self._documents, self._tensors = flag("documents", documents), flag("tensors", tensors)
        self._check()
        self._dtype = np.dtype(dtype if dtype is not None else np.int64 if tensors else split.tokens.dtype)
        self._eot = split.dataset.eot_id if documents else None
        self.blocks = max(0, len(split) - 1) // self.block_size
        self._stride = self.batch_size * self.world_size
        self._unit = self._stride if last == "drop" else self.world_size
        self._next: Step = (0, 0)
        self._workers = 1
        self._ahead: _Steps | None = None
        if not self.blocks:
            raise UsageError(
                f"{split.name} has {len(split):,} tokens, too few for a block of {self.block_size:,} and one more"
            )
        # With `short` the blocks of several epochs may be enough together.
        together = self.blocks * (
            1 if last == "drop" else self.world_size if self.epochs is None else max(1, self.epochs)
        )
        if together < self._unit:
            raise UsageError(
                f"{split.name} has {self.blocks:,} blocks, too few for one batch on every rank",
                hint="use fewer ranks, or a smaller `block_size`" + (" or `batch_size`" if last == "drop" else ""),
            )

    def __len__(self) -> int:
        """Batches of this rank from the beginning to the end. TypeError when there is none."""
        if self.epochs is None:
            raise TypeError("batches without an end have no length")
        cycles, rest = divmod(self.epochs, self._cycle)
        return cycles * self._steps_before(self._cycle) + self._steps_before(rest)

    def __iter__(self) -> Iterator[Any]:
        """From the current position to the end of the epochs; iterating again gives the next epochs."""
        workers, worker = _workers()
        own = self._workers > 1
        if own and workers != self._workers:
            raise MismatchError(f"this is the state of one of {self._workers} workers, and there are {workers} now")
        end = None if self.epochs is None else (self._next[0] // self.epochs + 1) * self.epochs
        at_end = self._start_of(end, self._next) if end is not None else (0, 0)
        steps = islice(self._steps(self._next, end), 0 if own else worker, None, workers)
        step = next(steps, None)
        while step is not None:
            following = next(steps, None)
            if workers == 1:
                self._next = self._after(step)
            elif following is not None:
                self._next, self._workers = following, workers
            else:
                self._next, self._workers = at_end, 1
            yield self._batch(step, workers)
            step = following
        self._next, self._workers = at_end, 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, for `load_state_dict` on any rank."""
        epoch, blocks = self._next
        return {**self._facts(), "epoch": epoch, "blocks": blocks, "workers": self._workers}

    def state_after(self, steps: int) -> dict[str, Any]:
        """Return the state after this many batches from the beginning.

        Use it with a DataLoader, whose workers run ahead.
        """
        cycles, steps = divmod(steps, self._steps_before(self._cycle))
        within = bisect_right(range(self._cycle), steps, key=self._steps_before) - 1
        epoch, blocks = self._start_of(cycles * self._cycle + within, (0, 0))
        blocks += (steps - self._steps_before(within)) * self._stride
        return {**self._facts(), "epoch": epoch, "blocks": blocks, "workers": 1}

    def rows_at(self, step: int) -> NDArray[np.int64]:
        """Return the token at which each row of this rank begins in the batch after so many from the beginning."""
        state = self.state_after(step)
        return self._starts((state["epoch"], state["blocks"]), 1)

    def places_of(self, blocks: NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
        """Return step, rank, row and number of those of some blocks that are in the first epoch, in its order.

        UsageError if windows are drawn anywhere.
        """
        if self.order == "random":
            raise UsageError("windows that are drawn at random have no blocks", hint="choose another `order`")
        order = blocks if self.order == "sequential" else Permutation(self.blocks, self.seed, 0).places(blocks)
        blocks, order = blocks[order < self._end((0, 0))], order[order < self._end((0, 0))]
        steps, within = np.divmod(order, self._stride)
        ranks, rows = within % self.world_size, within // self.world_size
        return sorted(zip(steps.tolist(), ranks.tolist(), rows.tolist(), blocks.tolist(), strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; batch size, rank and world size may differ.

        Raise MismatchError if it belongs to other data or to another block size, order or seed.
        """
        for name, value in self._facts().items():
            if state.get(name) != value:
                raise MismatchError(f"the state is of another {name}: {state.get(name)}, not {value}")
        self._next = (int(state["epoch"]), int(state["blocks"]))
        self._workers = int(state.get("workers", 1))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}

    def _facts(self) -> dict[str, Any]:
        fingerprint = self._split.dataset.manifest["fingerprint"]
        return {
            "data": f"{fingerprint[:16]}/{self._split.name}",
            "block_size": self.block_size,
            "order": self.order,
            "seed": self.seed,
        }

    @property
    def _cycle(self) -> int:
        """Epochs after which the carried blocks are the same as at the beginning: none."""
        return 1 if self.last == "drop" else self.world_size

    def _steps_before(self, epoch: int) -> int:
        """Steps of all epochs before this one, which must be within the first cycle."""
        starts = (self._start_of(number, (0, 0)) for number in range(epoch))
        return sum(len(range(start[1], self._end(start), self._stride)) for start in starts)

    def _start_of(self, epoch: int, start: Step) -> Step:
        """The first step of an epoch for who has begun with `start`."""
        if epoch == start[0]:
            return start
        left = (epoch - start[0]) * self.blocks - start[1]
        return epoch, 0 if self.last == "drop" else -(left % self.world_size)

    def _end(self, step: Step) -> int:
        """The blocks of its epoch that all ranks will have had at the end of it."""
        return step[1] + (self.blocks - step[1]) // self._unit * self._unit

    def _steps(self, start: Step, end: int | None) -> Iterator[Step]:
        """Every step from one on; each has equally many rows on all ranks."""
        step = start
        while end is None or step[0] < end:
            for before in range(step[1], self._end(step), self._stride):
                yield step[0], before
            step = self._start_of(step[0] + 1, step)

    def _after(self, step: Step) -> Step:
        """The step after this one."""
        epoch, after = step[0], step[1] + self._stride
        return (epoch, after) if after < self._end(step) else self._start_of(epoch + 1, step)

    def _batch(self, step: Step, workers: int) -> Any:
        starts, tokens = self._starts(step, workers), self._split.tokens
        adjoining = self.world_size == 1 and starts[-1] - starts[0] == (len(starts) - 1) * self.block_size
        if self.order == "sequential" and adjoining and not tokens.ahead_tokens:
            row = tokens.read(int(starts[0]), int(starts[0]) + len(starts) * self.block_size + 1)
            x, y = (part.astype(self._dtype).reshape(-1, self.block_size) for part in (row[:-1], row[1:]))
        else:
            rows = self._rows(step, workers)
            x, y = rows[:, :-1].astype(self._dtype), rows[:, 1:].astype(self._dtype)
        made: tuple[Any, ...] = (x, y)
        if self._documents:
            made = (x, y, packed(x, self._eot, self._split.dataset.eot))
        return _as_tensors(made) if self._tensors else made

    def _starts(self, step: Step, workers: int) -> NDArray[np.int64]:
        """Where the rows of a step begin in the split."""
        known, n, rows = self._known(step, workers)
        return known.places[n, :rows]

    def _rows(self, step: Step, workers: int) -> NDArray[Any]:
        """The rows of a step, one token longer than a block; some steps are read at once where that is faster."""
        known, n, rows = self._known(step, workers)
        if not 0 <= n - known.first_read < len(known.read):
            tokens, size = self._split.tokens, self.block_size + 1
            count = max(1, tokens.ahead_tokens // (self.batch_size * size))
            places, following = known.places[n : n + count], known.places[n + count : n + 2 * count]
            tokens.expect_rows(places.reshape(-1), size)
            tokens.expect_rows(following.reshape(-1), size)
            known.read = tokens.read_rows(places.reshape(-1), size).reshape(*places.shape, size)
            known.first_read = n
        return known.read[n - known.first_read, :rows]

    def _known(self, step: Step, workers: int) -> tuple[_Steps, int, int]:
        """What is known of a step: computed for many steps of an epoch at once, its number there, and its rows."""
        (epoch, before), stride, end = step, self._stride * workers, self._end(step)
        rows = min(self.batch_size, (end - before) // self.world_size)
        if self._ahead is not None:
            (same, first), was = self._ahead.first, self._ahead.stride
            n, off = divmod(before - first, stride)
            if (same, was, off) == (epoch, stride, 0) and 0 <= n < len(self._ahead.places):
                return self._ahead, n, rows
        count = max(1, min(_AHEAD // self.batch_size, -(-(end - before) // stride)))
        steps = before + stride * np.arange(count)[:, None]
        order = steps + self.rank + self.world_size * np.arange(self.batch_size)
        self._ahead = _Steps(step, stride, self._places(epoch, np.minimum(order, end - 1)))
        return self._ahead, 0, rows

    def _places(self, epoch: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where blocks begin that are counted from the beginning of an epoch; negative: of those before it."""
        epochs, numbers = epoch + order // self.blocks, order % self.blocks
        places = np.empty(order.shape, np.int64)
        for one in np.unique(epochs).tolist():
            chosen = epochs == one
            places[chosen] = self._places_within(one, numbers[chosen])
        return places

    def _places_within(self, epoch: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.order == "sequential":
            return order * self.block_size
        if self.order == "shuffled":
            return Permutation(self.blocks, self.seed, epoch)(order) * self.block_size
        drawn = mix(mix(order.astype(np.uint64)) ^ np.uint64(mixed(mixed(self.seed) ^ epoch)))
        return (drawn % np.uint64(len(self._split) - self.block_size)).astype(np.int64)

    def _check(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"there is no rank {self.rank} in a world of {self.world_size}")
        if self.order not in ORDERS:
            raise UsageError(f"`{self.order}` is not an order", hint=f"choose one of: {', '.join(ORDERS)}")
        if self.last not in ("short", "drop"):
            raise UsageError(f"`last` is `short` or `drop`, not `{self.last}`")
        data = self._split.dataset
        if self._documents and (data.eot == "none" or data.eot_id is None):
            raise UsageError("nothing says where documents end: the dataset has no end-of-text tokens")


def packed(x: NDArray[Any], eot: int | None, where: str) -> Packed:
    """Where documents are in the rows of `x`."""
    begins = np.zeros(x.shape, np.bool_)
    begins[:, 0] = True
    begins[:, 1:] |= x[:, :-1] == eot if where == "after" else x[:, 1:] == eot
    column = np.arange(x.shape[1], dtype=np.int32)
    start = np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    at = np.append(np.flatnonzero(begins.ravel()), x.size)
    return Packed(
        (np.cumsum(begins, axis=1) - 1).astype(np.int32), (column - start).astype(np.int32), at.astype(np.int32)
    )


def make_batches(split: Split, batch_size: int, block_size: int, **more: Any) -> Batches:
    """Batches; an IterableDataset too, for a DataLoader, when this process has imported torch."""
    if more.get("tensors") is True:
        _torch("torch.utils.data")
    kind = _with_torch() if "torch" in sys.modules else Batches
    return kind(split, batch_size, block_size, **more)


@cache
def _with_torch() -> type[Batches]:
    class TorchBatches(Batches, _torch("torch.utils.data").IterableDataset):  # type: ignore[misc]
        def __reduce__(self) -> Any:
            return _rebuild, (self.__getstate__(),)

    return TorchBatches


def _rebuild(state: dict[str, Any]) -> Batches:
    """Rebuild it in a new worker process, where torch may not be imported yet."""
    _torch("torch.utils.data")
    batches = object.__new__(_with_torch())
    batches.__dict__.update(state)
    return batches


def _workers() -> tuple[int, int]:
    """(how many workers a DataLoader has, which of them this process is)."""
    if "torch" not in sys.modules:
        return 1, 0
    info = _torch("torch.utils.data").get_worker_info()
    return (1, 0) if info is None else (info.num_workers, info.id)


def _as_tensors(made: tuple[Any, ...]) -> tuple[Any, ...]:
    torch = _torch("torch")
    return tuple(
        torch.from_numpy(part) if isinstance(part, np.ndarray) else Packed(*map(torch.from_numpy, part))
        for part in made
    )


def _torch(name: str) -> Any:
    """A module of torch, which is not among our dependencies."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise UsageError("torch is not installed", hint="pip install torch") from None
