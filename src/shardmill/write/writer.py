"""The end of the path: batches in order → token files, the documents table, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from shardmill.errors import MismatchError
from shardmill.shards import SPLITS, ShardWriter
from shardmill.write.batch import Batch, BatchTokens, FinishedFiles, Share, Stream, shares
from shardmill.write.checkpoints import Checkpoints
from shardmill.write.documents_table import DocumentsTable
from shardmill.write.ledger import Ledger

if TYPE_CHECKING:
    from shardmill.write.destination import Destination
    from shardmill.write.facts import Facts
    from shardmill.write.journal import SavedRun

_STATE = {"outputs", "position", "counts", "ledger", "engine", "table"}
"""What the journal records at a checkpoint."""


class Writer:
    """Appends batches to all outputs and to the documents table. One thread uses it."""

    def __init__(
        self,
        destination: Destination,
        outputs: list[ShardWriter],
        ledger: Ledger,
        thread: Executor,
        splits: tuple[str, ...],
        first: int,
        table: str,
    ) -> None:
        """`thread` makes the checkpoints. `first`: tokens that val takes before train gets any. `table`: as a producer
        says it."""
        self._destination, self._outputs, self._splits, self._first = destination, outputs, splits, first
        self._table: DocumentsTable | None = None
        if table:
            drops = outputs[0].drops_tail
            self._table = DocumentsTable(destination.folder, splits, numbered=table == "numbers", drops_tail=drops)
        self.ledger = ledger
        self.position: dict[str, Any] | None = None
        """Where the producer continues after what was written; None: at its beginning."""
        self.counts = [{s: dict.fromkeys(("tokens", "documents", "bytes"), 0) for s in SPLITS} for _ in outputs]
        """Of each output, by split."""
        self._engine: dict[str, str] = {}
        files = [*outputs, self._table.files] if self._table else outputs
        self.checkpoints = Checkpoints(destination, files, thread, self._state)

    def begin(self, facts: Facts, engine: dict[str, str], saved_run: SavedRun | None) -> None:
        """Start from nothing, or from what an earlier run has recorded; OutputError if other files are in the way.

        `engine`: the libraries that encode, and a hash of their tokens for a difficult text. MismatchError if the
        earlier run used libraries that give other tokens.
        """
        if saved_run and saved_run.state:
            _check_release(saved_run.state)
            _check_engine(saved_run.state["engine"], engine)
        saved = self.checkpoints.begin(facts, saved_run)
        if saved:
            self.position, self.counts = saved["position"], saved["counts"]
            if self._table:
                self._table.restore(saved["table"])
        self._engine = engine
        self.ledger.begin(saved["ledger"] if saved else None)
        self.checkpoints.extra_files = self.ledger.files
        self._destination.restored()

    def _state(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "counts": deepcopy(self.counts),
            "ledger": self.ledger.saved(),
            "engine": self._engine,
            "table": self._table.saved() if self._table else {},
        }

    def write(self, batch: Batch) -> None:
        """Append the next batch in order, and make a checkpoint when it is time."""
        with self.checkpoints.step(final=batch.position is not None):
            if isinstance(batch.tokens, BatchTokens):
                self._append(batch.tokens)
            elif batch.tokens is not None:
                self._adopt(batch.tokens)
            self.ledger.count(batch.found, self.text_bytes)
            self.position = batch.position or self.position
        self.checkpoints.keep()

    def _append(self, tokens: BatchTokens) -> None:
        for i, output in enumerate(self._outputs):
            count, stream = self.counts[i], tokens.streams[output.eot]
            first = max(0, self._first - count["val"]["tokens"]) if self._first else 0
            written = list(_append(output, stream, first=first))
            for share in written:
                count[share.split]["tokens"] += len(share.tokens)
                if i == 0 and self._table:
                    self._table.append(share.split, share.rows)
            for amounts in written if tokens.count is None else [tokens.count]:
                count[amounts.split]["documents"] += amounts.documents
                count[amounts.split]["bytes"] += amounts.bytes

    def _adopt(self, finished: FinishedFiles) -> None:
        self.checkpoints.adopt(finished.files)
        for mine, theirs in zip(self.counts, finished.counts, strict=True):
            for split, amounts in theirs.items():
                for name, amount in amounts.items():
                    mine[split][name] += amount
        if self._table:
            for split, rows in finished.documents:
                self._table.append(split, rows)

    @property
    def text_bytes(self) -> int:
        """Bytes of text that count for a split."""
        return sum(split["bytes"] for split in self.counts[0].values())

    @property
    def tokens(self) -> int:
        """Tokens of the first output."""
        return sum(split["tokens"] for split in self.counts[0].values())

    def finish(self) -> dict[str, dict[str, Any]]:
        """End all files and record that; return the manifest's entry for the rejects, if there are any.

        SourceError when every document was rejected, unless `--max-bad` allows it.
        """
        self.ledger.check_anything_written()
        with self.checkpoints.step():
            for output in self._outputs:
                output.finish(self._splits)
            if self._table:
                self._table.finish(self._outputs[0].dropped)
        self.checkpoints.keep(now=True)
        self.checkpoints.extra_files = self.ledger.files[1:]  # not the rejects, which get their name now
        return self.ledger.finish_rejects()

    def close(self) -> None:
        """Close all files as they are."""
        for output in (*self._outputs, *([self._table.files] if self._table else [])):
            output.close()
        self.ledger.close()

    def kept(self) -> str | None:
        """A sentence about what is kept when the run ends early; None: nothing is."""
        whole = len(self.checkpoints.files)
        if not whole and not self.ledger.counts.totals["documents"]:
            return None
        done = f"{whole:,} file{'s are' if whole != 1 else ' is'} complete; " if whole else ""
        again = ", if the pipe delivers the same text again" if self.ledger.reads_pipe else ""
        return f"{done}the same command resumes from the last checkpoint{again}"


def _append(output: ShardWriter, stream: Stream, *, first: int) -> Iterator[Share]:
    """Append one stream of a batch to an output, and yield what each split has got.

    Val takes the next `first` tokens, whatever the rows say.
    """
    if stream.ends_before:
        output.end_document()
    for share in shares(stream, first=first):
        if len(share.tokens):
            output.append(share.split, share.tokens, share.ends)
        yield share


def _check_release(saved: dict[str, Any]) -> None:
    """MismatchError where the state is one that this release does not understand."""
    if saved.keys() != _STATE or not Ledger.understands(saved["ledger"]):
        raise MismatchError(
            "the run was begun by another release of shardmill",
            hint="finish it with that release, or start anew with `--overwrite`",
        )


def _check_engine(before: dict[str, str], now: dict[str, str]) -> None:
    """MismatchError where another release of a library gives other tokens than the run was begun with."""
    if before != now and before["sha256"] != now["sha256"]:
        raise MismatchError(
            f"the run was begun with {before['libraries']}, and {now['libraries']} gives other tokens",
            hint="install the former release again, or start anew with `--overwrite`",
        )
