"""The queries of `jeton bench streaming`: as flows, with Spark's own operators, with Python state.

All emit the same rows, except Spark's own running count: one count for each key and micro-batch
instead of the count after each row, for which Spark has no operator. Beside them is a plain
`mapInArrow`, which looks at no row, and gives back about as many as the answer has: the cost of
sending rows to Python and back alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

import jeton as jt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from jeton.spark import Frames

WINDOW: Final = "1 second"
"""The length of a window; a million rows fall into it."""

PLAIN: Final = "plain mapInArrow"
"""The peer that has no state and counts nothing."""

Peer = Callable[["DataFrame"], "DataStreamWriter"]
"""Makes a query of a stream with the columns ``ts``, ``k`` and ``v``."""


def _flow_mean(frame: DataFrame, **options: Any) -> DataStreamWriter:
    flow = jt.Flow("mean")
    rows = flow.input("rows", time="ts", schema={"k": int, "v": float}, lateness=0)
    flow.output("means", rows.key_by("k").tumbling(WINDOW).mean("v"))
    frames: Frames = flow.on_spark({"rows": frame}, **options)
    return frames["means"].writeStream


def _flow_count(frame: DataFrame, **options: Any) -> DataStreamWriter:
    flow = jt.Flow("count")
    rows = flow.input("rows", time="ts", schema={"k": int, "v": float}, lateness=0)
    flow.output("counts", rows.select("k").key_by("k").running().count())
    frames: Frames = flow.on_spark({"rows": frame}, **options)
    return frames["counts"].writeStream


def _rows_in_and_means_out(frame: DataFrame) -> DataStreamWriter:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            # In two tasks about as many as there are keys.
            yield batch.slice(0, 500 if number == 0 else 0)

    return frame.mapInArrow(read, frame.schema).writeStream


def _rows_in_and_out(frame: DataFrame) -> DataStreamWriter:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    narrow = frame.selectExpr("ts", "k", "k as count")
    return narrow.mapInArrow(read, narrow.schema).writeStream


def _spark_mean(frame: DataFrame) -> DataStreamWriter:
    from pyspark.sql import functions as F

    marked = frame.withWatermark("ts", "0 seconds")
    means = marked.groupBy(F.window("ts", WINDOW), "k").agg(F.avg("v"))
    return means.writeStream.outputMode("append")


def _spark_count(frame: DataFrame) -> DataStreamWriter:
    return frame.groupBy("k").count().writeStream.outputMode("update")


def _counted(part: pd.DataFrame, before: int) -> pd.DataFrame:
    """The count after each row."""
    counts = np.arange(before + 1, before + 1 + len(part))
    return pd.DataFrame({"ts": part["ts"], "k": part["k"], "count": counts})


def _pandas_count(frame: DataFrame) -> DataStreamWriter:
    def count(key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        total = state.get[0] if state.exists else 0
        for part in parts:
            yield _counted(part, total)
            total += len(part)
        state.update((total,))

    counts = frame.groupBy("k").applyInPandasWithState(
        count, "ts timestamp, k long, count long", "count long", "append", "NoTimeout"
    )
    return counts.writeStream.outputMode("append")


def _pandas_mean(frame: DataFrame) -> DataStreamWriter:
    def mean(key: Any, parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            total, rows = state.get
            state.remove()
            yield pd.DataFrame({"ts": [key[0]], "k": [key[1]], "mean": [total / rows]})
            return
        total, rows = state.get if state.exists else (0.0, 0)
        for part in parts:
            total, rows = total + float(part["v"].sum()), rows + len(part)
        state.update((total, rows))
        state.setTimeoutTimestamp(_milliseconds(key[0]))

    means = _by_window(frame).applyInPandasWithState(
        mean,
        "ts timestamp, k long, mean double",
        "total double, n long",
        "append",
        "EventTimeTimeout",
    )
    return means.writeStream.outputMode("append")


def _state_count(frame: DataFrame) -> DataStreamWriter:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("count", "count long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
            total = self.total.get()[0] if self.total.exists() else 0
            for part in rows:
                yield _counted(part, total)
                total += len(part)
            self.total.update((total,))

        def close(self) -> None:
            pass

    counts = frame.groupBy("k").transformWithStateInPandas(
        Count(), "ts timestamp, k long, count long", "append", "None"
    )
    return counts.writeStream.outputMode("append")


def _state_mean(frame: DataFrame) -> DataStreamWriter:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Mean(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.sums = handle.getValueState("sums", "total double, n long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
            known = self.sums.exists()
            total, count = self.sums.get() if known else (0.0, 0)
            for part in rows:
                total, count = total + float(part["v"].sum()), count + len(part)
            self.sums.update((total, count))
            if not known:
                self.handle.registerTimer(_milliseconds(key[0]))
            return iter(())

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[pd.DataFrame]:
            total, count = self.sums.get()
            self.sums.clear()
            yield pd.DataFrame({"ts": [key[0]], "k": [key[1]], "mean": [total / count]})

        def close(self) -> None:
            pass

    means = _by_window(frame).transformWithStateInPandas(
        Mean(), "ts timestamp, k long, mean double", "append", "EventTime"
    )
    return means.writeStream.outputMode("append")


def _by_window(frame: DataFrame) -> GroupedData:
    """Rows by the end of their window and their key."""
    from pyspark.sql import functions as F

    marked = frame.withWatermark("ts", "0 seconds")
    return marked.withColumn("w", F.window("ts", WINDOW).end).groupBy("w", "k")


def _milliseconds(end: Any) -> int:
    return int(pd.Timestamp(end).timestamp() * 1000)


def _as_partitioned(flow: Callable[..., DataStreamWriter]) -> Peer:
    return lambda frame: flow(frame, repartition=False)


def _without_shuffles(flow: Callable[..., DataStreamWriter]) -> Peer:
    return lambda frame: flow(frame, repartition=False, shuffle=False)


QUERIES: Final[dict[str, dict[str, Peer]]] = {
    "tumbling mean by key": {
        "flow": _flow_mean,
        "flow without repartition": _as_partitioned(_flow_mean),
        "flow without shuffles": _without_shuffles(_flow_mean),
        "Spark's own": _spark_mean,
        PLAIN: _rows_in_and_means_out,
        "applyInPandasWithState": _pandas_mean,
        "transformWithStateInPandas": _state_mean,
    },
    "rolling count": {
        "flow": _flow_count,
        "flow without repartition": _as_partitioned(_flow_count),
        "flow without shuffles": _without_shuffles(_flow_count),
        "Spark's own": _spark_count,
        PLAIN: _rows_in_and_out,
        "applyInPandasWithState": _pandas_count,
        "transformWithStateInPandas": _state_count,
    },
}
"""Each query as each peer has it."""

NEED_PROTOBUF: Final = ("transformWithStateInPandas",)
NEED_ROCKS: Final = NEED_PROTOBUF
