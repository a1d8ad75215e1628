"""Thirty mistakes and more, each with the message that it must give.

A message says what is wrong, with the value; where; and what to do. Whoever changes one reads the
others here, so that all have one voice. Mistakes with tokens are in tests/conformance.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

import jeton as jt
from jeton import cli
from jeton.connectors import sinks, sources
from jeton.dataflow.inputs import InputStream
from jeton.spark.shipping import require_picklable

COLUMNS = {"item": str, "price": float}
BIDS = {"time": [1, 2], "item": ["cup", "pen"], "price": [3.0, 5.0]}


def bids(schema: Any = COLUMNS) -> InputStream:
    return jt.Flow("shop").input("bids", schema=schema)


def stamped() -> InputStream:
    """A stream with timestamps that have no zone."""
    return bids({"time": datetime.datetime, **COLUMNS})


def shop() -> jt.Flow:
    """A flow that works."""
    stream = bids()
    stream.flow.output("out", stream)
    return stream.flow


def named(stream: Any) -> None:
    """Name a value as an output, as if it were a stream."""
    jt.Flow("shop").output("out", stream)


def run(change: Callable[[Any], Any]) -> jt.Result:
    """Run a flow of one operator."""
    stream = bids()
    stream.flow.output("out", change(stream))
    return stream.flow.run({"bids": BIDS})


def run_on(table: Any, stream: InputStream | None = None) -> jt.Result:
    """Run a flow that copies its input."""
    stream = stream or bids()
    stream.flow.output("out", stream)
    return stream.flow.run({"bids": table})


def give_rows() -> None:
    def build(token: Any, info: Any) -> Any:
        token.drop()

        def step(input: Any, output: Any) -> None:
            for ref, _ in input:
                output.session(ref).give([{"n": 1}])

        return step

    run(lambda stream: stream.unary(build))


def locked_filter() -> None:
    lock = threading.Lock()
    stream = bids()
    stream.flow.output("out", stream.filter(lambda batch: lock.locked()))
    require_picklable(stream.flow)


def output_twice() -> None:
    stream = bids()
    stream.flow.output("out", stream)
    stream.flow.output("out", stream)


def untyped_batch() -> Any:
    return jt.Batch({"price": [3.0]}, times=[1])


# Values of wrong types are what this page is about.
untyped: Any = bids
shop_untyped: Any = shop

MISTAKES: list[tuple[str, Callable[[], Any], str]] = [
    # Key, window, aggregate
    (
        "a window without an aggregate",
        lambda: named(bids().key_by("item").tumbling(10)),
        "output 'out' needs a stream, and these are groups without a result: choose an aggregate "
        "such as .count()",
    ),
    (
        "a key without a window",
        lambda: named(bids().key_by("item")),
        "output 'out' needs a stream, and this one is only keyed: say when results are emitted, "
        "and choose an aggregate, as in .tumbling(10).count() or .running().count()",
    ),
    (
        "a window, then a map",
        lambda: untyped().key_by("item").tumbling(10).map(len),
        "groups have no 'map': choose an aggregate such as .count() first, as in .count().map(…)",
    ),
    (
        "an aggregate without a window",
        lambda: untyped().key_by("item").count(),
        "a keyed stream has no 'count': say when results are emitted, as in running().count(…) or "
        "tumbling(10).count(…)",
    ),
    (
        "a filter after key_by",
        lambda: untyped().key_by("item").filter(len),
        "a keyed stream has no 'filter': filter(…) belongs before key_by(…), or after an "
        "aggregate such as running().count()",
    ),
    (
        "a window without a key",
        lambda: untyped().tumbling(10),
        "a stream has no 'tumbling': choose a key first, as in key_by(\"column\").tumbling(…) "
        "(key_by() without columns groups all records)",
    ),
    (
        "a sum without a key",
        lambda: untyped().sum("price"),
        "a stream has no 'sum': choose a key and a window first, as in "
        'key_by("column").tumbling(10).sum(…) (key_by() without columns groups all records)',
    ),
    (
        "a list of key columns",
        lambda: untyped().key_by(["item"]),
        "key_by needs names of columns, each as a text of its own, not ['item'] (a list)",
    ),
    (
        "a key that is nearly right",
        lambda: bids().key_by("pric"),
        "there is no column 'pric': did you mean 'price'? (there are: 'item', 'price', 'time') in "
        "<Stream of bids[0]>",
    ),
    (
        "the name of an aggregate",
        lambda: untyped().key_by("item").tumbling(10).aggregate(n="count"),
        "aggregate() needs aggregates such as n=jt.agg.count() or n=jt.agg.sum('column'), not "
        "n='count' (a str)",
    ),
    (
        "the best none",
        lambda: bids().key_by("item").tumbling(10).top_k(0, by="price"),
        "top_k needs an integer, at least one, not 0",
    ),
    # Names of other libraries
    (
        "groupBy",
        lambda: untyped().groupBy("item"),
        "a stream has no 'groupBy': use key_by(…)",
    ),
    (
        "withColumn",
        lambda: untyped().withColumn("n", 1),
        "a stream has no 'withColumn': use with_columns(name=…)",
    ),
    (
        "withWatermark",
        lambda: untyped().withWatermark("time", "10 minutes"),
        "a stream has no 'withWatermark': use flow.input(…, lateness=…)",
    ),
    (
        "a method that is nearly right",
        lambda: untyped().selct("item"),
        "a stream has no 'selct': did you mean 'select'?",
    ),
    (
        "a column as an attribute of a stream",
        lambda: bids().filter(bids().price > 3),  # type: ignore[attr-defined]
        "a stream has no 'price': to use that column, write jt.col('price')",
    ),
    (
        "an aggregate of a column",
        lambda: bids().with_columns(total=jt.col("price").sum()),  # type: ignore[attr-defined]
        "an expression has no 'sum': aggregates belong to groups, as in "
        "key_by('item').tumbling(10).sum('n') or key_by('item').running().sum('n')",
    ),
    (
        "an expression in select",
        lambda: bids().select(jt.col("price") * 2),  # type: ignore[arg-type]
        "select needs names of columns, each as a text of its own, not a jeton.Expr: name it by "
        "with_columns(name=…) before",
    ),
    (
        "a column of a stream",
        lambda: untyped()["price"] > 3,
        "a stream has no rows or columns before the flow runs: to use column 'price', write "
        "jt.col('price'), as in filter(jt.col('price') > 0)",
    ),
    (
        "an aggregate of another library",
        lambda: jt.agg.avg("price"),  # type: ignore[attr-defined]
        "jt.agg has no 'avg': use jt.agg.mean",
    ),
    (
        "an aggregate that is nearly right",
        lambda: jt.agg.medain("price"),  # type: ignore[attr-defined]
        "jt.agg has no 'medain': did you mean 'median'?",
    ),
    (
        "a condition in SQL",
        lambda: bids().filter("price > 3"),
        "filter needs an expression, such as jt.col('price') > 3, or the name of a column of "
        "booleans, not 'price > 3'",
    ),
    # Times
    (
        "times as text",
        lambda: run_on({**BIDS, "time": ["2026-01-31", "2026-02-01"]}),
        "the time column 'time' is of type string, and times are integers, timestamps or dates: "
        "parse it first, as in pandas.to_datetime(…)",
    ),
    (
        "integers where timestamps are declared",
        lambda: run_on(BIDS, stamped()),
        "the times of input 'bids' are declared as timestamps, but it got integers",
    ),
    (
        "a time column without a name",
        lambda: jt.Flow("shop").input("bids", time=5),  # type: ignore[arg-type]
        "the name of a time column is text, not 5 (an int)",
    ),
    (
        "a negative lateness",
        lambda: jt.Flow("shop").input("bids", lateness=-5),
        "the lateness of input 'bids' is zero or more, not -5",
    ),
    (
        "advance to a text",
        lambda: shop().open().input("bids").advance_to("2026-01-31"),
        "the time of input 'bids' is text, '2026-01-31': pass an integer or a timestamp, such as "
        "datetime(2026, 1, 31, 12)",
    ),
    # Functions and columns
    (
        "rows that are not dictionaries",
        lambda: run(lambda stream: stream.map_rows(lambda row: 3)),
        "map_rows needs a function that returns a row, a list of rows or None, and this one "
        "returned 3 (an int): a row is a dictionary, {'name': value}",
    ),
    (
        "a build without a step",
        lambda: run(lambda stream: stream.unary(lambda token, info: token.drop())),
        "build(token, info) has to return a function, step(input, output), not None",
    ),
    (
        "a build with two inputs and without a step",
        lambda: run(lambda stream: stream.binary(stream, lambda token, info: token.drop())),
        "build(token, info) has to return a function, step(left, right, output), not None",
    ),
    (
        "an operator without a function",
        lambda: bids().unary_frontier(3),  # type: ignore[arg-type]
        "unary_frontier needs a function, such as build(token, info), which returns step(input, "
        "output), not 3 (an int)",
    ),
    (
        "a column as a pact",
        lambda: bids().unary(lambda token, info: print, pact="item"),  # type: ignore[arg-type]
        "the pact of operator 'unary' is jt.Exchange('column'), jt.Gather(), jt.Broadcast() or "
        "jt.Pipeline(), not 'item' (a str)",
    ),
    (
        "a table in place of the inputs",
        lambda: shop().run(BIDS),
        "the inputs are a dictionary with a table for each of them, and 'time', 'item', 'price' "
        "look like columns: pass {'bids': …}",
    ),
    # Sources and sinks
    (
        "a start that Kafka does not know",
        lambda: sources.Kafka("broker:9092", "bids", start="begin"),  # type: ignore[arg-type]
        "start= of Kafka, unless it is a datetime, is 'earliest' or 'latest', not 'begin' (a str)",
    ),
    (
        "a format by its name",
        lambda: sources.Kafka("broker:9092", "bids", format="json"),  # type: ignore[arg-type]
        "format= of Kafka is one of jeton.connectors.formats, such as formats.JSON(), not 'json' "
        "(a str)",
    ),
    (
        "files of an unknown format",
        lambda: sources.Files("/data", format="jsonl"),
        "format= of Files is 'parquet', 'csv', 'json', 'arrow', 'feather', 'ipc' or 'orc', not "
        "'jsonl' (a str)",
    ),
    (
        "a folder that is not there",
        lambda: sources.Files("/not/there", format="csv", end=True).partitions(2),
        "there is no folder /not/there",
    ),
    (
        "batches in place of a function",
        lambda: sources.Batches([BIDS]),  # type: ignore[arg-type]
        "a source of batches needs a function, such as lambda partition, partitions: [table], not "
        "a list",
    ),
    (
        "a rate that is not a number",
        lambda: sources.Rate("fast", lambda positions: {}),  # type: ignore[arg-type]
        "a rate is a number above zero, not 'fast' (a str)",
    ),
    (
        "a callback by its name",
        lambda: sinks.Callback("print"),  # type: ignore[arg-type]
        "a Callback needs a function, such as print, not 'print' (a str)",
    ),
    (
        "a map that returns an array",
        lambda: run(lambda stream: stream.map(lambda batch: np.zeros(len(batch)))),
        "map needs a function that returns columns by name, and this one returned a "
        "numpy.ndarray: return {'name': values}, or use with_columns(name=…) to add a column to "
        "those that there are",
    ),
    (
        "a map without a function",
        lambda: untyped().map("price"),
        "map needs a function from a batch to columns, not 'price'",
    ),
    (
        "a column that is nearly right",
        lambda: bids().filter(lambda batch: batch["prise"] > 3),
        "there is no column 'prise': did you mean 'price'? (there are: 'item', 'price', 'time') in "
        "<Stream of bids[0]>",
    ),
    (
        "a column as an attribute",
        lambda: untyped_batch().price,
        "a batch has no attribute 'price': its columns are read by name, batch['price']",
    ),
    (
        "a filter by text",
        lambda: bids().filter("item"),
        "column 'item' of <Stream of bids[0]> is string, not booleans",
    ),
    (
        "a map of other lengths",
        lambda: run(lambda stream: stream.map(lambda batch: {"n": [1, 2, 3]})),
        "column 'n' has 3 values, but the batch has 2",
    ),
    (
        "a column without a name",
        lambda: untyped().with_columns(["price"]),
        "with_columns needs a name for each column, as in with_columns(total=…), not ['price'] "
        "(a list)",
    ),
    (
        "a new name without the old one",
        lambda: untyped().rename("price"),
        "rename needs a dictionary {old: new}, not 'price' (a str)",
    ),
    (
        "a frame beside a stream",
        lambda: untyped().concat(pd.DataFrame(BIDS)),
        "concat needs a stream, such as flow.input(…) or what its methods return, not a "
        "pandas.DataFrame",
    ),
    (
        "a join with a stream that is not keyed",
        lambda: untyped().key_by("item").join(bids()),
        "join() needs the other stream keyed too: join(other.key_by(…))",
    ),
    # Inputs and outputs
    (
        "nothing as an output",
        lambda: named(None),
        "output 'out' needs a stream, such as flow.input(…) or what its methods return, not None",
    ),
    (
        "an output of another flow",
        lambda: jt.Flow("other").output("out", bids()),
        "output 'out' of flow 'other' got a stream of another flow, 'shop': name it as an output "
        "of that one",
    ),
    (
        "an output of that name",
        output_twice,
        "flow 'shop' has an output 'out' already: choose another name",
    ),
    (
        "an input of that name",
        lambda: shop().input("bids"),
        "flow 'shop' has an input 'bids' already: choose another name",
    ),
    (
        "a number as a name",
        lambda: jt.Flow("shop").input(3),  # type: ignore[arg-type]
        "the name of an input is text, not 3 (an int)",
    ),
    (
        "a list as a schema",
        lambda: bids(["item", "price"]),
        "a schema is a dictionary of columns and their types, as in {'price': float}, or one of "
        "Arrow or Spark, not ['item', 'price'] (a list)",
    ),
    (
        "a type that is not known",
        lambda: bids({"item": "strng"}),
        "'strng' is not a type of a column: use a pyarrow or NumPy type, or one of bool, int, "
        "float, str, bytes, datetime, date, timedelta",
    ),
    # Running
    (
        "no inputs",
        lambda: shop().run(),
        "flow 'shop' needs a table for each of its inputs, and has none for 'bids': pass an empty "
        "one where there are no rows, or use open() to send rows",
    ),
    (
        "an input that is nearly right",
        lambda: shop().run({"bid": BIDS}),
        "flow 'shop' has no input 'bid': did you mean 'bids'? (there are: 'bids')",
    ),
    (
        "a frame instead of inputs",
        lambda: shop_untyped().run(pd.DataFrame(BIDS)),
        "the inputs are a dictionary with a table for each of them, not a pandas.DataFrame: pass "
        "{'bids': …}",
    ),
    (
        "a file name instead of a table",
        lambda: shop().run({"bids": "bids.csv"}),
        "cannot read records from a str: pass an Arrow table, a dictionary of columns, a pandas or "
        "Polars data frame, or a list of rows",
    ),
    (
        "a column that the schema does not have",
        lambda: shop().run({"bids": {**BIDS, "extra": [1, 2]}}),
        "input 'bids' got columns that its schema does not have: 'extra'. Leave them out, or add "
        "them to schema=",
    ),
    (
        "a column that the table does not have",
        lambda: shop().run({"bids": {"time": [1], "item": ["cup"]}}),
        "input 'bids': there is no column 'price' (there are: 'item', 'time')",
    ),
    (
        "a column of another type",
        lambda: shop().run({"bids": {**BIDS, "price": ["3", "5"]}}),
        "input 'bids': column 'price' is of type string, its schema says double: cast it first",
    ),
    (
        "no time column",
        lambda: shop().run({"bids": {"item": ["cup"], "price": [3.0]}}),
        "there is no time column 'time' (there are: 'item', 'price')",
    ),
    (
        "no workers",
        lambda: shop().run({"bids": BIDS}, workers=0),
        "a flow needs at least one worker, not workers=0",
    ),
    (
        "workers as text",
        lambda: shop_untyped().run({"bids": BIDS}, workers="2"),
        "workers= is a whole number, not '2' (a str)",
    ),
    (
        "a worker that there is not",
        lambda: shop().open(workers=2).input("bids", worker=2),
        "there is no worker 2: this run has 2",
    ),
    (
        "an output that is nearly right",
        lambda: run(lambda stream: stream)["ot"],
        "there is no output 'ot': did you mean 'out'? (there are: 'out')",
    ),
    (
        "a file instead of a snapshot",
        lambda: shop_untyped().open(restore="snapshot.bin"),
        "restore= needs a snapshot, as run.snapshot() returns, not 'snapshot.bin' (a str)",
    ),
    # Times and aggregates
    (
        "a time column that is not named",
        lambda: run_on({"n": [1], "at": pd.to_datetime(["2026-01-31"])}, bids(None)),
        "there is no time column 'time' (there are: 'n', 'at'): name the one that has the times, "
        "as in time='at'",
    ),
    (
        "times in the index",
        lambda: run_on(pd.DataFrame({"n": [1]}, index=pd.to_datetime(["2026-01-31"])), bids(None)),
        "the frame has its times in the index, which is not read: pass "
        "frame.rename_axis('time').reset_index()",
    ),
    (
        "times with fractions",
        lambda: run_on(pd.DataFrame({"time": [1.5], "n": [1]}), bids(None)),
        "times are integers or timestamps, one for each record, not float64: make integers of "
        "them, values.astype('int64'), or timestamps, as in pandas.to_datetime(values, unit='s')",
    ),
    (
        "instants for times that are declared without a zone",
        lambda: run_on({**BIDS, "time": pd.to_datetime(["2026-01-31"] * 2, utc=True)}, stamped()),
        "the times of input 'bids' are timestamps with a time zone, but other times of this flow "
        "are timestamps: give all of them a zone (pa.timestamp('us', 'UTC') in a schema, "
        "'timestamp' in Spark), or none (datetime in a schema, 'timestamp_ntz' in Spark)",
    ),
    (
        "a sum of text",
        lambda: bids().key_by("item").tumbling(10).sum("item"),
        "column 'item': values of type string cannot be summed in <Stream of bids[0]>",
    ),
    (
        "a mean of text",
        lambda: bids().key_by("item").tumbling(10).mean("item"),
        "column 'item': values of type string have no mean in <Stream of bids[0]>",
    ),
    (
        "days of a zone for times without one",
        lambda: stamped().key_by().tumbling("1 day", zone="Europe/Berlin"),
        "tumbling('1 day', zone='Europe/Berlin') needs times with a time zone, which those of this "
        "flow are declared without: leave zone= out, or give the time column a zone",
    ),
    (
        "a window of a negative duration",
        lambda: stamped().key_by().tumbling("-5s"),
        "the size of a window is greater than zero, not '-5s'",
    ),
    # Columns
    (
        "a part of times that is not called",
        lambda: bids().with_columns(hour=jt.col("price").dt.hour),
        ".dt.hour is a method: write .dt.hour(…) in <Stream of bids[0]>",
    ),
    (
        "a part of times that is compared and not called",
        lambda: jt.col("at").dt.hour > 7,  # type: ignore[operator]
        ".dt.hour is a method: write .dt.hour(…)",
    ),
    (
        "isin of pandas",
        lambda: jt.col("item").isin(["cup"]),  # type: ignore[attr-defined]
        "an expression has no 'isin': use is_in(…)",
    ),
    (
        "isna of pandas in a function",
        lambda: jt.Batch({"n": [1]}, times=[0])["n"].isna(),
        "a column of type int64 has no 'isna': use is_null()",
    ),
    (
        "upper of pandas",
        lambda: jt.col("item").str.upper(),  # type: ignore[attr-defined]
        ".str has no 'upper': use to_uppercase()",
    ),
    (
        "a method of text with a typing error",
        lambda: jt.Batch({"k": ["a"]}, times=[0])["k"].str.contain("a"),  # type: ignore[attr-defined]
        ".str has no 'contain': did you mean 'contains'?",
    ),
    (
        "to_datetime without a format",
        lambda: jt.col("item").str.to_datetime(),
        "to_datetime needs the format of the texts, as in "
        ".str.to_datetime('%Y-%m-%dT%H:%M:%S'), with '.%f' for parts of a second and '%z' for a "
        "zone",
    ),
    (
        "an expression beside the columns of a batch",
        lambda: jt.when(jt.Batch({"n": [1]}, times=[0])["n"] > 0).then(jt.col("n")),
        "when() has a condition on a batch and the value col('n'): use batch[…] in both",
    ),
    # Spark
    (
        "no session",
        lambda: shop_untyped().start(None),
        "start() needs a Spark session, not None: jeton.spark.local_session() makes one on this "
        "machine",
    ),
    (
        "pandas on Spark",
        lambda: shop_untyped().on_spark({"bids": pd.DataFrame(BIDS)}),
        "input 'bids' got a pandas.DataFrame, not a DataFrame of Spark or a source: use "
        "spark.createDataFrame(…), or flow.run(…) to run without Spark",
    ),
    (
        "a frame instead of inputs on Spark",
        lambda: shop_untyped().on_spark(pd.DataFrame(BIDS)),
        "the inputs are a dictionary with a DataFrame of Spark, or a source, for each of them, "
        "not a pandas.DataFrame: pass {'bids': …}",
    ),
    (
        "a lock in a function",
        locked_filter,
        "the function <lambda> cannot be sent to workers: it uses 'lock', a _thread.lock, which "
        "cannot be pickled (TypeError: cannot pickle '_thread.lock' object). Make it inside the "
        "function, or in the build function of an operator, which runs on each worker",
    ),
    (
        "rows for a session",
        give_rows,
        "a session takes a batch or columns, not a list: give columns of values, "
        "session.give(n=[1, 2]), or one row at a time, session.give(n=1)",
    ),
]


@pytest.mark.parametrize(
    ("mistake", "text"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_has_its_message(mistake: Callable[[], Any], text: str) -> None:
    with pytest.raises((jt.errors.JetonError, AttributeError)) as caught:
        mistake()
    error = caught.value
    assert (error.message if isinstance(error, jt.errors.JetonError) else str(error)) == text


def test_there_are_thirty() -> None:
    assert len({text for _, _, text in MISTAKES}) >= 30


def test_an_error_of_a_function_has_the_line_of_the_operator() -> None:
    with pytest.raises(jt.errors.BatchError, match=r"operator 'map', worker 0, time 1") as caught:
        run(lambda stream: stream.map(lambda batch: 5))
    assert __file__.rpartition("/")[2] in str(caught.value)


def test_a_variable_of_a_module_is_named_too() -> None:
    source = "import threading\nlock = threading.Lock()\ndef step(batch): return lock.locked()"
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(source, names)
    stream = bids()
    stream.flow.output("out", stream.filter(names["step"]))
    with pytest.raises(jt.errors.GraphError, match=r"the function step .* it uses 'lock'"):
        require_picklable(stream.flow)


def test_what_can_be_pickled_passes() -> None:
    factor = 3
    stream = bids()
    stream.flow.output("out", stream.with_columns(n=lambda batch: batch["price"] * factor))
    require_picklable(stream.flow)


def test_unknown_names_stay_attribute_errors() -> None:
    assert not hasattr(bids(), "tumbling")
    assert getattr(bids().key_by("item"), "nonsense", None) is None


def test_what_is_not_a_stream_yet_says_so_at_a_prompt() -> None:
    assert repr(bids().key_by("item")) == "<KeyedStream by 'item'>"
    windows = bids().key_by().tumbling(10)
    assert repr(windows) == (
        "<Windows of <KeyedStream by no column>: choose an aggregate such as .count()>"
    )
    assert "flow.output(name, stream)" in repr(bids().flow.run({"bids": BIDS}))


def test_a_result_without_an_output_is_like_a_dictionary() -> None:
    result = run(lambda stream: stream)
    assert "ot" not in result
    assert result.get("ot") is None
    with pytest.raises(KeyError):
        result["ot"]


@pytest.mark.parametrize("workers", ["0", "-1", "two"])
def test_a_demo_needs_workers(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--workers", workers])
    assert f"'{workers}' is not a number of workers: 1 or more" in capsys.readouterr().err


def test_completions_of_aggregates_are_aggregates() -> None:
    assert not {"np", "pa", "Aggregate", "maker"} & set(dir(jt.agg))
    assert {"sum", "mean", "count_distinct"} <= set(dir(jt.agg))


def test_the_columns_of_an_output_without_rows() -> None:
    stream = stamped()
    stream.flow.output("out", stream.filter(jt.col("price") > 1))
    empty = stream.flow.empty_output("out")
    assert empty is not None
    assert empty.num_rows == 0
    assert empty.schema.names == ["time", "item", "price"]
    assert str(empty.schema.field("time").type) == "timestamp[us]"
    assert shop_untyped().empty_output("out") is None


def test_errors_show_timestamps() -> None:
    stream = bids(None)
    stream.flow.output("out", stream.filter(lambda batch: batch["item"] == 1 // 0))
    rows = {"time": [datetime.datetime(2024, 5, 1)], "item": ["cup"]}
    with pytest.raises(jt.errors.OperatorFailed, match=r"worker 0, time 2024-05-01 00:00:00\]"):
        stream.flow.run({"bids": rows})
    with pytest.raises(jt.errors.OperatorFailed, match=r"worker 0, time 5\]"):
        stream.flow.run({"bids": {"time": [5], "item": ["cup"]}})
