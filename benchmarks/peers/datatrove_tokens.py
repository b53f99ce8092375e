"""datatrove's DocumentTokenizer in its local executor, a task for each worker; its input is a file for each task."""

from __future__ import annotations

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from way import OUT, SOURCE, VOCABULARY, WORKERS, Clock


def deal() -> None:
    """Contiguous parts of about equal size, which is how such data usually comes; not on the clock."""
    share = SOURCE.stat().st_size // WORKERS + 1
    (OUT / "parts").mkdir()
    with SOURCE.open("rb") as source:
        for k in range(WORKERS):
            (OUT / "parts" / f"{k:05}.jsonl").write_bytes(source.read(share) + source.readline())


def main() -> None:
    deal()
    clock = Clock()
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(OUT / "parts")),
            DocumentTokenizer(
                output_folder=str(OUT / "tokens"),
                tokenizer_name_or_path=str(VOCABULARY / "tokenizer.json"),
                eos_token="<|endoftext|>",
                shuffle_documents=False,
            ),
        ],
        tasks=WORKERS,
        workers=WORKERS,
        logging_dir=str(OUT / "logs"),
    ).run()
    clock.stop()


if __name__ == "__main__":
    main()
