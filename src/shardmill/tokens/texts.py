"""A tokenizer by itself, for scripts and notebooks: `shardmill.tokenizer("gpt2").encode("some text")`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill import arguments
from shardmill.errors import UsageError
from shardmill.tokens.engines import CALL_BYTES, EngineError
from shardmill.tokens.loading import load_tokenizer

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from shardmill.tokens.engines import Encoded, Engine
    from shardmill.tokens.tokenizers import Tokenizer

_IDLE = 4  # engines that are kept for later calls, 20 MB or more each
_DECODED = 1 << 16  # ids that are decoded at once: as Python numbers they take 40 bytes each


def text_tokenizer(
    name: str | os.PathLike[str], *, pattern: str | None = None, specials: str = "text"
) -> TextTokenizer:
    """Return the tokenizer with this name, file or hub id, for use without a dataset. Options as in `prepare`.

    Raise UsageError, with a hint, if it does not exist or is not available.
    """
    if pattern is not None:
        arguments.text("pattern", pattern)
    specials = arguments.text("specials", specials)
    return TextTokenizer(arguments.path("name", name), pattern, specials)


class TextTokenizer:
    """Text to ids and back, exactly as the tokenizer's own library does it. Threads may share it."""

    def __init__(self, name: str, pattern: str | None, specials: str) -> None:
        self._arguments = (name, pattern, specials)
        self._tokenizer: Tokenizer = load_tokenizer(name, pattern=pattern, specials=specials)
        self._idle: list[Engine] = []
        """Engines that are not in use."""

    @property
    def name(self) -> str:
        return self._tokenizer.name

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def eot(self) -> int | None:
        """The end-of-text token; `encode` never adds it."""
        return self._tokenizer.eot

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the ids: uint16 where they fit, else uint32."""
        return self._tokenizer.dtype

    def __reduce__(self) -> Any:
        """For other processes: each loads it again."""
        return TextTokenizer, self._arguments

    @property
    def options(self) -> dict[str, Any]:
        """The options of `prepare` that load it."""
        return dict(zip(("tokenizer", "pattern", "specials"), self._arguments, strict=True))

    def __repr__(self) -> str:
        return f"<shardmill tokenizer {self.name}, {self.vocab_size:,} tokens>"

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids of one text. UsageError for what is no text or cannot be UTF-8."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[NDArray[Any]]:
        """Return the ids of each text; `texts` may also be an Arrow column, which is read without copying."""
        found: list[NDArray[Any]] = []
        for encoded in self._encoded(texts):
            tokens, ends = encoded.tokens, encoded.offsets.tolist()
            found += [tokens[begin : end - 1] for begin, end in pairwise(ends)]
        return found

    def count(self, texts: str | Iterable[str]) -> int:
        """Count the tokens of a text, or of all texts of an iterable together; the ids are not kept."""
        if isinstance(texts, str):
            texts = [texts]
        return sum(len(encoded.tokens) - len(encoded.lengths) for encoded in self._encoded(texts))

    def decode(self, ids: ArrayLike, errors: str = "replace") -> str:
        """Return the text of any ids, special tokens by their names. `errors`: for bytes that are not UTF-8."""
        array = np.asarray(ids)
        if array.size == 0:
            return ""
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise UsageError(f"ids are whole numbers in one row, not {array.dtype} of shape {array.shape}")
        if array.min() < 0 or array.max() > self._tokenizer.largest_id:
            outside = array[(array < 0) | (array > self._tokenizer.largest_id)][0]
            raise UsageError(f"{outside:,} is no id of `{self.name}`, which has 0 to {self._tokenizer.largest_id:,}")
        missing = array[~self._tokenizer.exist(array)]
        if len(missing):
            raise UsageError(f"{missing[0]:,} is no id of `{self.name}`: its numbers have a gap there")
        # Where text may be cut, the bytes of ids are simply joined. Otherwise the library has to see all ids.
        step = _DECODED if self._tokenizer.stitching else len(array)
        parts = [self._tokenizer.decode(array[i : i + step]) for i in range(0, len(array), step)]
        return b"".join(parts).decode("utf-8", errors)

    def _encoded(self, texts: Iterable[str]) -> Iterator[Encoded]:
        """Encode a few megabytes of texts at a time, with an engine that no other thread uses."""
        try:
            engine = self._idle.pop()
        except IndexError:
            engine = self._tokenizer.engine()
        first = 1
        for data, offsets in _rows(texts):
            encoded = engine.encode(data, offsets)
            if encoded.failed:
                row, reason = encoded.failed[0]
                raise EngineError(reason, place=f"text {first + row:,}")
            encoded.tokens = encoded.tokens.copy()
            yield encoded
            first += len(offsets) - 1
        # Not after an error: then the state of the engine is unknown.
        if len(self._idle) < _IDLE:
            self._idle.append(engine)


def _rows(texts: Iterable[str]) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Yield the texts as rows of UTF-8, about as much as the engine takes in one call."""
    if hasattr(texts, "__arrow_c_array__") or hasattr(texts, "__arrow_c_stream__"):
        yield from _arrow_rows(texts)
        return
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        what = "one text" if isinstance(texts, (str, bytes)) else f"a {type(texts).__name__}"
        raise UsageError(f"a batch is a list of texts, not {what}", hint="give a list, or call `encode`")
    # One buffer is reused for all: with new memory for each, page faults took a tenth of the time.
    buffer = np.empty(CALL_BYTES, np.uint8)
    view, ends, first = buffer.data, [0], 1
    for text in texts:
        try:
            raw = str.encode(text)
        except (TypeError, UnicodeEncodeError) as error:
            what = "holds a lone surrogate" if isinstance(text, str) else f"is a {type(text).__name__}, not a str"
            raise UsageError(f"a text {what}", place=f"text {first + len(ends) - 1:,}") from error
        end = ends[-1] + len(raw)
        if end > CALL_BYTES:
            if len(ends) > 1:
                yield buffer, np.array(ends, np.int64)
            first, ends, end = first + len(ends) - 1, [0], len(raw)
            if end > CALL_BYTES:
                yield np.frombuffer(raw, np.uint8), np.array([0, end], np.int64)
                first += 1
                continue
        view[ends[-1] : end] = raw
        ends.append(end)
    if len(ends) > 1:
        yield buffer, np.array(ends, np.int64)


def _arrow_rows(column: Any) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    import pyarrow as pa

    found = pa.chunked_array(column) if hasattr(column, "__arrow_c_stream__") else pa.chunked_array([pa.array(column)])
    for chunk in found.chunks:
        if chunk.null_count:
            raise UsageError("an Arrow column of texts holds a null")
        try:
            array = chunk.cast(pa.large_string())
        except pa.ArrowException as error:
            raise UsageError(f"an Arrow column of {chunk.type} is no column of texts: {error}") from None
        if not len(array):
            continue
        offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
        data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
        first = 0
        while first < len(array):
            fit = int(np.searchsorted(offsets, offsets[first] + CALL_BYTES, side="right")) - 1
            last = min(max(fit, first + 1), len(array))
            yield data, offsets[first : last + 1]
            first = last
