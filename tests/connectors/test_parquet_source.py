"""Parquet as a source: shares, columns, folders with values in their names, and push-down."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs as arrow_fs

import jeton as jt
from jeton.cluster.rendezvous import Meeting
from jeton.columns.expressions import Expr, condition_of
from jeton.connectors.source_plan import SourcePlan, narrowed
from jeton.connectors.sources import Parquet, Source
from jeton.errors import GraphError, JetonError
from jeton.runtime.agent import Agent
from jeton.spark.native_tasks import NativeBatches, NativeTask
from jeton.spark.tasks import Ends
from jeton.storage.files import Files
from jeton.testing import check_source

BERLIN = pa.timestamp("us", "Europe/Berlin")


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table(
        {
            "time": list(numbers),
            "n": pa.array([None if n % 5 == 0 else n for n in numbers], pa.int64()),
            "text": [f"t{n % 7}" for n in numbers],
            "price": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(12, 2)),
        }
    )


def read_all(source: Source, workers: int = 1) -> pa.Table:
    parts = []
    for name, position in source.partitions(workers).items():
        reader = source.open(name, position)
        while not reader.ended:
            batch = reader.read()
            if batch is not None:
                parts.append(pa.Table.from_batches([batch]))
    return pa.concat_tables(parts) if parts else source.schema().empty_table()  # type: ignore[union-attr]


def run_natively(flow: jt.Flow, sources: Mapping[str, Source]) -> tuple[pa.Table, NativeTask]:
    """The rows of the output of a flow on one worker that reads sources, as a batch does."""
    made: dict[str, Source] = {}
    columns: dict[str, tuple[str, ...]] = {}
    for name, source in sources.items():
        made[name], left = narrowed(flow, name, source)
        if left is not None:
            columns[name] = left
    plan = SourcePlan("it", made)
    plan.begin(1, {})
    task = NativeTask(
        flow, Ends((), ()), Meeting("", 0, b"", ""), False, None, made, plan.partitions, columns
    )
    with closing(Agent(flow)) as agent:
        agent.attach(feed=NativeBatches(agent, task, iter(())))
        agent.run()
        [name] = flow.outputs
        batches = agent.worker.handles[flow.handle("output", name)]
        return pa.concat_tables([each.to_arrow() for each in batches]), task


def rows_of(found: pa.Table) -> list[str]:
    return sorted(map(repr, found.to_pylist()))


def test_it_keeps_the_promises_of_sources(tmp_path: Path) -> None:
    pq.write_table(table(500), tmp_path / "a.parquet", row_group_size=70)
    pq.write_table(table(90, 500), tmp_path / "b.parquet", row_group_size=70)
    assert check_source(Parquet(tmp_path), workers=3) == 590
    assert check_source(Parquet(tmp_path / "a.parquet"), workers=1) == 500


def test_shares_are_even_and_the_same_each_time(tmp_path: Path) -> None:
    for number in range(5):
        part = table(1000 * (number + 1), 10_000 * number)
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=250)
    source = Parquet(tmp_path)
    shares = source.partitions(3)
    assert shares == Parquet(tmp_path).partitions(3)
    read = [len(groups) for share in shares.values() for _, _, groups in share["read"]]
    assert sum(read) == 60
    sizes = [sum(len(groups) for _, _, groups in share["read"]) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert rows_of(read_all(source, 3)) == rows_of(read_all(source, 1))


def test_a_worker_reads_what_the_driver_has_seen(tmp_path: Path) -> None:
    pq.write_table(table(10), tmp_path / "a.parquet")
    source = Parquet(tmp_path)
    shares = source.partitions(1)
    there: Parquet = pickle.loads(pickle.dumps(source))
    pq.write_table(table(10, 10), tmp_path / "later.parquet")
    reader = there.open("0/1", shares["0/1"])
    assert reader.read().num_rows == 10  # type: ignore[union-attr]
    assert reader.read() is None
    pq.write_table(table(11), tmp_path / "a.parquet")
    with pytest.raises(JetonError, match="it has changed since the driver looked at it"):
        there.open("0/1", shares["0/1"]).read()


def test_names_of_folders_are_columns(tmp_path: Path) -> None:
    for day, place in ((3, "a%20b"), (4, "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / f"day={day}" / f"place={place}"
        folder.mkdir(parents=True)
        pq.write_table(table(4, day), folder / "0.parquet")
    (tmp_path / "_temporary").mkdir()
    pq.write_table(table(4), tmp_path / "_temporary" / "0.parquet")
    source = Parquet(tmp_path)
    found = read_all(source)
    assert found["day"].to_pylist() == [3] * 4 + [4] * 4
    assert found["place"].to_pylist() == ["a b"] * 4 + [None] * 4
    declared = source.typed(pa.schema({"day": pa.string(), "n": pa.int64()}), "time")
    assert declared.schema().names == ["time", "day", "n"]
    assert read_all(declared)["day"].to_pylist() == ["3"] * 4 + ["4"] * 4
    for condition, files in ((jt.col("day") > 3, 1), (jt.col("place").is_null(), 1)):
        narrow = source.narrowed(None, condition_of(condition), "time")
        assert len(narrow.partitions(1)["0/1"]["read"]) == files


def test_a_folder_of_values_may_begin_with_an_underscore(tmp_path: Path) -> None:
    for folder in ("_day=3", "_day=4", "_temporary", ".hidden=1"):
        (tmp_path / folder).mkdir()
        pq.write_table(table(2), tmp_path / folder / "0.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert read_all(Parquet(tmp_path))["_day"].to_pylist() == [3, 3, 4, 4]


def test_files_need_not_have_the_same_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"time": [1], "n": pa.array([1], pa.int16())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"time": [2], "n": [2**40], "k": ["x"]}), tmp_path / "b.parquet")
    assert read_all(Parquet(tmp_path)).to_pydict() == {
        "time": [1, 2],
        "n": [1, 2**40],
        "k": [None, "x"],
    }
    pq.write_table(pa.table({"time": [2], "n": ["three"]}), tmp_path / "c.parquet")
    with pytest.raises(GraphError, match=r"the columns of c\.parquet do not go with those"):
        Parquet(tmp_path).schema()


def test_a_column_may_have_a_dictionary_in_some_files(tmp_path: Path) -> None:
    words = pa.array(["a", "b"])
    for name, column in (("1", words.dictionary_encode()), ("2", words), ("3", pa.nulls(2))):
        pq.write_table(pa.table({"time": [1, 2], "word": column}), tmp_path / f"{name}.parquet")
    flow = jt.Flow("words")
    flow.output("out", flow.input("in").filter(jt.col("word") > "a"))
    found, _ = run_natively(flow, {"in": Parquet(tmp_path)})
    assert found["word"].to_pylist() == ["b", "b"]


def test_old_timestamps_of_spark_are_instants(tmp_path: Path) -> None:
    at = dt.datetime(2024, 5, 1, 9, tzinfo=dt.UTC)
    old = pa.table({"time": pa.array([at], pa.timestamp("us", "UTC"))})
    pq.write_table(old, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    found = read_all(Parquet(tmp_path))
    assert found.schema.field("time").type == pa.timestamp("us", "UTC")
    assert found["time"].to_pylist() == [at]


def test_files_of_other_stores_are_read_in_parts(tmp_path: Path) -> None:
    pq.write_table(table(300), tmp_path / "a.parquet", row_group_size=100)
    there = arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(_fsspec()))
    source = Parquet(tmp_path)
    source.files = Files(str(tmp_path), there)
    assert not source.files.is_local
    assert rows_of(read_all(source, 2)) == rows_of(table(300))


def _fsspec() -> Any:
    return pytest.importorskip("fsspec.implementations.local").LocalFileSystem()


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="there are no Parquet files in"):
        Parquet(tmp_path).schema()
    pq.write_table(table(3), tmp_path / "a.parquet")
    with pytest.raises(GraphError, match=r"no column 'tex': did you mean 'text'\?"):
        Parquet(tmp_path).typed(pa.schema({"tex": pa.string()}), "time").schema()
    twice = pa.Table.from_arrays([pa.array([1])] * 3, names=["time", "n", "n"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(GraphError, match="have 2 columns called 'n'"):
        Parquet(tmp_path / "twice.parquet").schema()
    (tmp_path / "twice.parquet").unlink()
    (tmp_path / "b.parquet").write_text("not a file of columns")
    with pytest.raises(JetonError, match=r"b\.parquet is not a Parquet file"):
        Parquet(tmp_path).schema()


# Push-down

FLOATS = st.one_of(
    st.none(), st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")])
)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int32(), st.one_of(st.none(), st.integers(-9, 9))),
    "f": (pa.float64(), FLOATS),
    "s": (pa.string(), st.one_of(st.none(), st.text("aäz", max_size=3))),
    "b": (pa.bool_(), st.one_of(st.none(), st.booleans())),
    "d": (
        pa.decimal128(6, 2),
        st.one_of(st.none(), st.integers(-500, 500).map(lambda n: Decimal(n) / 100)),
    ),
    "at": (
        BERLIN,
        st.one_of(
            st.none(),
            st.integers(0, 20).map(lambda n: dt.datetime(2024, 5, 1, n, tzinfo=dt.UTC)),
        ),
    ),
    "day": (
        pa.date32(),
        st.one_of(st.none(), st.integers(1, 20).map(lambda n: dt.date(2024, 5, n))),
    ),
}
COMPARE: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


@st.composite
def comparisons(draw: st.DrawFn) -> Expr:
    name = draw(st.sampled_from(list(COLUMNS)))
    column, values = jt.col(name), COLUMNS[name][1].filter(lambda value: value is not None)
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "not null", "between"]))
    if kind == "in":
        return column.is_in(draw(st.lists(values, max_size=3)))
    if kind == "null":
        return column.is_null()
    if kind == "not null":
        return column.is_not_null()
    if kind == "between" and name != "b":
        return column.is_between(draw(values), draw(values))
    compare = draw(st.sampled_from(COMPARE[:2] if name == "b" else COMPARE))
    made: Expr = compare(column, draw(values))
    return made


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(st.data(), CONDITIONS, st.integers(1, 4), st.booleans())
def test_push_down_changes_no_answer(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    condition: Expr,
    size: int,
    sort: bool,
) -> None:
    rows = data.draw(st.integers(1, 12))
    columns = {
        name: pa.array(data.draw(st.lists(values, min_size=rows, max_size=rows)), kind)
        for name, (kind, values) in COLUMNS.items()
    }
    whole = pa.table({"time": list(range(rows)), **columns})
    if sort:
        whole = whole.sort_by("i")
    folder = tmp_path_factory.mktemp("pushed")
    pq.write_table(whole, folder / "a.parquet", row_group_size=size)
    narrow = Parquet(folder).narrowed(None, condition_of(condition), "time")
    assert kept(read_all(narrow), condition) == kept(whole, condition)


def kept(rows: pa.Table, condition: Expr) -> list[str]:
    batch = jt.Batch.from_arrow(rows, time="time")
    return rows_of(batch.filter(condition(batch)).to_arrow())


def test_row_groups_are_left_out(tmp_path: Path) -> None:
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=100)
    source = Parquet(tmp_path)
    cases = (
        (jt.col("n") > 849, 2),
        ((jt.col("n") > 849) & (jt.col("n") * 2 > 5), 2),
        ((jt.col("n") > 849) | (jt.col("text") == "t1"), 10),
        ((jt.col("n") > 949) | (jt.col("n") < 10), 2),
        (jt.col("price").is_in([Decimal("2.50"), Decimal("300")]), 1),
        (jt.col("text") == "u", 0),
        (jt.col("n").is_null(), 10),
    )
    for condition, groups in cases:
        narrow = source.narrowed(None, condition_of(condition), "time")
        assert narrow.about().startswith(f"{groups} of 10 row groups"), condition


def test_bounds_are_compared_as_the_type_of_all_files(tmp_path: Path) -> None:
    # As a single-precision number, the constant is 2³¹ itself.
    for name, kind in (("1", pa.float32()), ("2", pa.int32())):
        values = pa.array([2.0**31 if name == "1" else 5], kind)
        pq.write_table(pa.table({"time": [1], "n": values}), tmp_path / f"{name}.parquet")
    flow = jt.Flow("large")
    flow.output("out", flow.input("in").filter(jt.col("n") > 2**31 - 1))
    found, _ = run_natively(flow, {"in": Parquet(tmp_path)})
    assert found["n"].to_pylist() == [2.0**31]


def test_statistics_that_lack_nanoseconds_leave_no_row_out(tmp_path: Path) -> None:
    late = pa.array([3_600_000_000_001], pa.time64("ns"))
    pq.write_table(pa.table({"time": [1], "at": late}), tmp_path / "1.parquet")
    for condition in (jt.col("at") > dt.time(1), jt.col("at") != dt.time(1)):
        flow = jt.Flow("late")
        flow.output("out", flow.input("in").filter(condition))
        found, _ = run_natively(flow, {"in": Parquet(tmp_path)})
        assert found["at"].cast(pa.int64()).to_pylist() == [3_600_000_000_001]


def test_a_column_called_like_a_field_of_another_has_bounds_of_its_own(tmp_path: Path) -> None:
    rows = {"time": [1, 2], "a.b": [3, 4], "a": [{"b": 70}, {"b": 80}]}
    pq.write_table(pa.table(rows), tmp_path / "1.parquet")
    flow = jt.Flow("dotted")
    flow.output("out", flow.input("in").filter(jt.col("a.b") < 50).select("a.b"))
    found, _ = run_natively(flow, {"in": Parquet(tmp_path)})
    assert found["a.b"].to_pylist() == [3, 4]


def test_a_record_without_a_time_stays_an_error(tmp_path: Path) -> None:
    rows = pa.table({"time": pa.array([1, None], pa.int64()), "n": [1, 2]})
    pq.write_table(rows, tmp_path / "a.parquet")
    narrow = Parquet(tmp_path).narrowed(None, condition_of(jt.col("n") > 5), "time")
    assert narrow.about().startswith("1 of 1 row group")


def wide(flow: jt.Flow) -> jt.Stream:
    schema = {"a": int, "b": float, "k": str, "flag": bool, "end": int, "unused": str}
    return flow.input("in", time="ts", schema=schema)


def doubled(a: int) -> int:
    return a * 2


USES: dict[str, tuple[Callable[[jt.Stream], jt.Stream], set[str]]] = {
    "aggregate": (lambda s: s.key_by("k").tumbling(10).sum("b"), {"k", "b"}),
    "count": (lambda s: s.key_by().tumbling(10).count(), set()),
    "filter": (
        lambda s: s.filter((jt.col("a") > 20) & jt.col("flag")).key_by("k").each_time().count(),
        {"a", "flag", "k"},
    ),
    "by name": (
        lambda s: s.filter("flag").key_by("k").sliding(10, every=5).max("a"),
        {"flag", "k", "a"},
    ),
    "computed": (
        lambda s: s.with_columns(c=jt.col("a") * 2, one=1).key_by("one").tumbling(10).sum("c"),
        {"a"},
    ),
    "kernel": (lambda s: s.map(jt.kernel(doubled)), {"a"}),
    "selected": (lambda s: s.rename({"a": "z"}).select("z", "k"), {"a", "k"}),
    "dropped": (lambda s: s.drop("unused", "end", "b"), {"a", "k", "flag"}),
    "sessions": (
        lambda s: s.delay(3).exchange("k").key_by("k").session_window(gap_column="a").mean("b"),
        {"k", "a", "b"},
    ),
    "distinct": (lambda s: s.key_by("k").distinct(), {"k"}),
    "until": (lambda s: s.key_by("k").until("end").count(), {"k", "end"}),
    "running": (lambda s: s.key_by("k").running().sum("a").select("sum"), {"k", "a"}),
    "branched": (lambda s: s.branch(jt.col("a") > 30)[1].select("b"), {"a", "b"}),
    "several": (
        lambda s: s.select("a").concat(s.filter(jt.col("b") > 3).select("a")),
        {"a", "b"},
    ),
    "a function": (lambda s: s.filter(lambda batch: batch["a"] > 3).select("b"), set()),
    "ties": (lambda s: s.key_by("k").tumbling(10).top_k(2, by="a").select("rank"), set()),
}
EVERYTHING = {"a", "b", "k", "flag", "end", "unused"}


@pytest.mark.parametrize("name", USES)
def test_only_used_columns_are_read(name: str, tmp_path: Path) -> None:
    build, used = USES[name]
    flow = jt.Flow("used")
    flow.output("out", build(wide(flow)))
    rows = {
        "ts": list(range(60)),
        "a": [n % 50 + 1 for n in range(60)],
        "b": [n / 4 for n in range(60)],
        "k": [f"k{n % 3}" for n in range(60)],
        "flag": [n % 2 == 0 for n in range(60)],
        "end": [n + 5 for n in range(60)],
        "unused": ["x"] * 60,
    }
    pq.write_table(pa.table({**rows, "undeclared": [0] * 60}), tmp_path / "a.parquet")
    found, task = run_natively(flow, {"in": Parquet(tmp_path)})
    assert rows_of(found) == rows_of(flow.run({"in": rows})["out"])
    wanted = EVERYTHING if name in ("a function", "ties") else used
    assert set(task.sources["in"].schema().names) == {"ts", *wanted}  # type: ignore[union-attr]


def test_explain_says_what_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    flow = jt.Flow("few")
    kept_rows = wide(flow).filter((jt.col("a") > 3) & jt.col("k").is_in(["x"]))
    flow.output("out", kept_rows.key_by("k").tumbling(10).count())
    flow.explain()
    assert "times in 'ts', uses a, k where (a > 3) and (k in ['x'])" in capsys.readouterr().out
