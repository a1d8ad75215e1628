"""Data frames as inputs: Polars' text, pandas' index, columns of one name."""

from __future__ import annotations

from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import jeton as jt
from jeton.columns.column import as_column
from jeton.errors import BatchError, GraphError

CATEGORY = pa.dictionary(pa.uint32(), pa.string_view())


def views() -> pa.Table:
    """A table as Polars hands it over."""
    words = pa.array(["to", "be", "to", None], pa.string_view())
    plain = pa.array(["to", "be", "to", None])
    encoded = plain.dictionary_encode()
    category = pa.DictionaryArray.from_arrays(
        encoded.indices.cast(pa.uint32()), encoded.dictionary.cast(pa.string_view())
    )
    return pa.table(
        {
            "time": [1, 2, 3, 4],
            "text": words,
            "binary": plain.cast(pa.binary()).cast(pa.binary_view()),
            "category": category,
            "list": pa.array([["a"], [], None, ["b", "c"]], pa.large_list(pa.string_view())),
            "n": [1, 2, 3, 4],
        }
    )


@pytest.mark.parametrize("key", ["text", "binary", "category"])
@pytest.mark.parametrize("workers", [1, 3])
def test_views_are_keys_and_values(key: str, workers: int) -> None:
    flow = jt.Flow("views")
    rows = flow.input("rows")
    flow.output("sums", rows.key_by(key).tumbling(10).sum("n"))
    flow.output("best", rows.key_by(key).tumbling(10).top_k(1, by="n"))
    flow.output("pairs", rows.key_by(key).join(rows.key_by(key)))
    result = flow.run({"rows": views()}, workers=workers)
    assert sorted(result["sums"]["sum"].to_pylist()) == [2, 4, 4]
    assert result["best"].num_rows == 3
    assert result["pairs"].num_rows == 3  # nulls meet nobody
    assert sorted(map(str, result["best"]["list"].to_pylist())) == ["None", "['b', 'c']", "[]"]


def test_polars_frames() -> None:
    polars = pytest.importorskip("polars")
    kinds = {
        "text": polars.String,
        "category": polars.Categorical,
        "enum": polars.Enum(["to", "be"]),
    }
    words = ["be", "to", "be"]
    frame = polars.DataFrame({"time": [1, 2, 3], "n": [1, 2, 3]}).with_columns(
        **{name: polars.Series(words, dtype=kind) for name, kind in kinds.items()},
        binary=polars.Series([word.encode() for word in words]),
    )
    for key in (*kinds, "binary"):
        flow = jt.Flow("polars")
        flow.output("sums", flow.input("rows").key_by(key).tumbling(10).sum("n"))
        assert sorted(flow.run({"rows": frame})["sums"]["sum"].to_pylist()) == [2, 4]
    # The order of an enumeration's values is theirs, not that in which they came.
    flow = jt.Flow("polars")
    flow.output("sums", flow.input("rows").key_by("enum").tumbling(10).sum("n"))
    [column] = flow.run({"rows": frame})["sums"]["enum"].chunks
    assert column.dictionary.to_pylist() == ["to", "be"]
    assert column.type.ordered


def test_declared_views_are_text() -> None:
    flow = jt.Flow("views")
    rows = flow.input("rows", schema={"word": pa.string_view()})
    assert rows.schema is not None
    assert rows.schema.field("word").type == pa.large_string()
    flow.output("counts", rows.key_by("word").running().count())
    words = {"time": [0, 1], "word": pa.array(["a", "a"], pa.string_view())}
    assert flow.run({"rows": words})["counts"]["count"].to_pylist() == [1, 2]


def test_no_index_of_pandas_becomes_a_column() -> None:
    frame = pd.DataFrame({"time": [1, 2, 3], "n": [1, 2, 3]})
    flow = jt.Flow("pandas")
    flow.output("out", flow.input("rows"))
    for filtered in (frame[frame.n > 1], frame.set_index(pd.Index([7, 8, 9], name="own"))):
        assert flow.run({"rows": filtered})["out"].column_names == ["time", "n"]


ONE_NAME = ["time", "n", "n"]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table([[1], [2], [3]], names=ONE_NAME),
        pa.record_batch([pa.array([1])] * 3, names=ONE_NAME),
        pd.DataFrame([[1, 2, 3]], columns=ONE_NAME),
        pa.table([[], [], []], names=ONE_NAME),
    ],
    ids=["table", "batch", "pandas", "empty"],
)
def test_columns_of_one_name_are_refused(rows: Any) -> None:
    flow = jt.Flow("twice")
    flow.output("out", flow.input("rows"))
    with pytest.raises(BatchError, match=r"several columns called 'n'.*operator 'rows'"):
        flow.run({"rows": rows})


def test_declared_columns_of_one_name_are_refused() -> None:
    with pytest.raises(GraphError, match="several columns called 'n'"):
        jt.Flow("twice").input("rows", schema=pa.schema([("n", pa.int64()), ("n", pa.int64())]))


def test_no_column_is_of_views() -> None:
    for kind in (pa.struct([("a", pa.string_view())]), pa.list_(pa.binary_view()), CATEGORY):
        column = as_column(pa.chunked_array([pa.nulls(2, kind), pa.nulls(1, kind)]))
        assert isinstance(column, pa.Array)
        assert "view" not in str(column.type)
        assert len(column.take(pa.array([2, 0]))) == 2
