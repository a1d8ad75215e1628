"""Word count in order of time: the paper's first benchmark.

Records go to the worker of their key and wait until their time is complete. Then each is emitted at
its own time, with the number of times that its key has occurred until then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.idioms.watermarks import MarkedStream
from jeton_evaluation.programs.keyed_rows import KeyedRows, WaitingRecords
from jeton_evaluation.programs.mechanisms import (
    Between,
    Mechanism,
    add_stage,
    marked_for,
    plain_stream,
)


def word_count(
    words: jt.Stream, *, mechanism: Mechanism = "tokens", key: str = "word"
) -> jt.Stream:
    """Each record with the running ``count`` of its key, in order of time.

    >>> flow = jt.Flow("words")
    >>> words = flow.input("words")
    >>> for mechanism in ("tokens", "notifications", "watermarks-x", "watermarks-p"):
    ...     flow.output(mechanism, word_count(words, mechanism=mechanism))
    >>> result = flow.run({"words": {"time": [3, 1, 2], "word": ["a", "b", "a"]}}, workers=2)
    >>> [result[name]["count"].to_pylist() for name in result]
    [[1, 1, 2], [1, 1, 2], [1, 1, 2], [1, 1, 2]]
    """
    words.require_columns(key, operator="word count")
    return plain_stream(
        _stage(marked_for(words, mechanism), words, key, jt.Exchange(key), mechanism)
    )


def marked_word_count(
    words: MarkedStream, *, key: str = "word", pact: jt.Pact | None = None
) -> MarkedStream:
    """The same for a stream that has marks already; without a pact, keys stay where they are.

    Records that come before the watermark are not counted: they are in the result's ``late``.

    >>> from jeton.idioms.watermark_sources import marks_from_times
    >>> flow = jt.Flow("words")
    >>> words = marks_from_times(flow.input("words"), disorder=5)
    >>> counts = marked_word_count(words, pact=jt.Exchange("word"))
    >>> flow.output("counts", plain_stream(counts))
    >>> flow.output("late", counts.late)
    >>> result = flow.run({"words": {"time": [3, 1], "word": ["a", "a"]}}, workers=2)
    >>> result["counts"]["count"].to_pylist(), result["late"].num_rows
    ([1, 2], 0)
    """
    words.stream.require_columns(key, operator="word count")
    counted = _stage(words, words.stream, key, pact, "watermarks-x")
    assert isinstance(counted, MarkedStream), "marks in, marks out"
    return counted


def _stage(
    words: Between, stream: jt.Stream, key: str, pact: jt.Pact | None, mechanism: Mechanism
) -> Between:
    schema = stream.schema
    if schema is not None:
        kept = [field for field in schema if field.name != "count"]
        schema = pa.schema([*kept, pa.field("count", pa.int64())])
    return add_stage(
        [words],
        lambda: WordCounts(key),
        pacts=[pact],
        mechanism=mechanism,
        name="word count",
        schema=schema,
        shape=f"counts by {key}",
    )


class WordCounts(WaitingRecords):
    """A stage that counts records once their time is complete.

    >>> counts = WordCounts("word")
    >>> counts.add(0, jt.Batch({"word": ["a", "b", "a"]}, times=[2, 1, 3]))
    array([2, 1, 3])
    >>> counts.take(3)["count"].to_list(), counts.least
    ([1, 1], 3)
    """

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self._key = key
        self._counts = KeyedRows("count")
        self.parts["counts"] = self._counts

    def take(self, limit: int | None) -> jt.Batch | None:
        """Count the records that are complete."""
        batch = self.waiting.take(limit)
        if batch is None:
            return None
        slots, _ = self._counts.find(batch.column(self._key))
        counts = np.empty(len(batch), np.int64)
        _count(self._counts.rows, slots, counts)
        return batch.with_columns({"count": counts})


@jt.njit(cache=True)
def _count(counts: Any, slots: Any, out: Any) -> None:
    """Count each slot once more; writes its count after each."""
    for i in range(len(slots)):
        counts[slots[i], 0] += 1
        out[i] = counts[slots[i], 0]
