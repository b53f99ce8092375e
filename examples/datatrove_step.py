"""The final step of a datatrove pipeline, which writes token files.    python examples/datatrove_step.py OUT FOLDER"""

from __future__ import annotations

import sys
from typing import Any

from datatrove.data import DocumentsPipeline
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader

import shardmill


class WriteTokens(PipelineStep):
    """Each task writes its own dataset: `OUT/00000` and so on. The options are those of `prepare`."""

    name, type = "shardmill", "TOKENIZER"

    def __init__(self, out: str, **options: Any) -> None:
        super().__init__()
        self.out, self.options = out, options

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        source = shardmill.Source((document.text for document in data), name=f"task-{rank:05}")
        # datatrove restarts an interrupted task from its first document, so an unfinished dataset is replaced.
        made = shardmill.prepare(source, f"{self.out}/{rank:05}", overwrite=True, **self.options)
        self.stat_update("documents", value=made.manifest["documents"])
        yield from ()


def prepare(out: str, folder: str, tasks: int = 2) -> None:
    steps = [JsonlReader(folder), LambdaFilter(lambda document: len(document.text) >= 200), WriteTokens(out)]
    LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=f"{out}/logs").run()


if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2])
