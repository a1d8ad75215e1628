"""Functions of a batch: columns of text, or with nulls, compare and compute like all others."""

from __future__ import annotations

import datetime
import operator
import pickle
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError, GraphError

ROWS = {"time": [1, 2, 3], "k": ["a", "b", "a"], "n": [1, 2, 3], "m": [1, 2, None]}


def run_one(make: Any, data: Any = ROWS) -> pa.Table:
    """The result of a flow with one input and one output."""
    flow = jt.Flow("one")
    flow.output("o", make(flow.input("i")))
    return flow.run({"i": data})["o"]


def column(values: Any) -> Any:
    """A column as users' functions get it."""
    return jt.Batch({"x": values}, times=[0] * len(values))["x"]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (lambda b: b["k"] == "a", [1, 3]),
        (lambda b: b["k"] != "a", [2]),
        (lambda b: b["k"] > "a", [2]),
        (lambda b: (b["k"] == "a") & (b["n"] > 1), [3]),
        (lambda b: (b["n"] > 1) & (b["k"] == "a"), [3]),
        (lambda b: (b["k"] == "b") | (b["n"] == 1), [1, 2]),
        (lambda b: ~(b["k"] == "a"), [2]),
        (lambda b: (b["m"] == 1) & (b["n"] > 0), [1]),
        (lambda b: (b["n"] > 0) & (b["m"] >= 1), [1, 2]),
        (lambda b: np.logical_and(b["m"] >= 1, b["n"] > 1), [2]),
        (lambda b: b["m"] + b["n"] > 2, [2]),
        (lambda b: b["n"] == b["m"], [1, 2]),
        (lambda b: np.maximum(b["m"], 2) == 2, [1, 2]),
        (lambda b: (b["k"] != "a") & (b["time"] > 0), [2]),
        (lambda b: pc.equal(b["k"], "a"), [1, 3]),
        (lambda b: pc.is_in(b["k"], value_set=pa.array(["b"])), [2]),
        (lambda b: b["m"].is_null(), [3]),
    ],
)
def test_conditions_on_text_and_nulls(condition: Any, kept: list[int]) -> None:
    assert run_one(lambda s: s.filter(condition))["n"].to_pylist() == kept
    assert run_one(lambda s: s.branch(condition)[1])["n"].to_pylist() == kept
    others = [n for n in (1, 2, 3) if n not in kept]
    assert run_one(lambda s: s.branch(condition)[0])["n"].to_pylist() == others


def test_computed_columns() -> None:
    made = run_one(
        lambda s: s.with_columns(
            a=lambda b: (b["k"] == "a") * b["n"],
            b=lambda b: b["m"] * 2 - b["n"],
            c=lambda b: b["k"] + "!",
            d=lambda b: -b["m"],
            e=lambda b: 10 - b["m"],
        ).select("a", "b", "c", "d", "e")
    )
    assert made.drop_columns(["time"]).to_pylist() == [
        {"a": 1, "b": 1, "c": "a!", "d": -1, "e": 9},
        {"a": 0, "b": 2, "c": "b!", "d": -2, "e": 8},
        {"a": 3, "b": None, "c": "a!", "d": None, "e": None},
    ]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "gt", "eq"])
@given(
    values=st.lists(st.none() | st.integers(-50, 50), min_size=1, max_size=8),
    other=st.integers(1, 9),
)
def test_a_null_changes_nothing_for_other_records(
    name: str, values: list[int | None], other: int
) -> None:
    apply = getattr(operator, name)
    found = pa.array(apply(column(pa.array(values, pa.int64())), other)).to_pylist()
    expected = [None if v is None else apply(np.array([v]), other)[0] for v in values]
    assert found == expected


def test_answers_do_not_depend_on_which_batch_has_the_null() -> None:
    flow = jt.Flow("f")
    flow.output("o", flow.input("i").filter(lambda b: (b["m"] == 1) & (b["n"] > 0)))
    batchings: list[list[list[int | None]]] = [[[1, None]], [[1], [None]]]
    for sends in batchings:
        with flow.open() as run:
            for m in sends:
                run.input("i").send({"time": [0] * len(m), "m": m, "n": [1] * len(m)})
            assert run.finish()["o"]["m"].to_pylist() == [1]


def test_instants_compare_with_instants() -> None:
    stamps = column(pa.array([1, 2, None], pa.timestamp("s", "UTC")))
    second = pa.scalar(2, pa.timestamp("s", "UTC"))
    assert (stamps >= second).to_pylist() == [False, True, None]
    days = column(pa.array([1, 2], pa.date32()))
    assert (days == datetime.date(1970, 1, 3)).tolist() == [False, True]


def test_what_does_not_go_together_is_refused() -> None:
    text = column(["a", "b"])
    with pytest.raises(BatchError, match=r"do not go together"):
        _ = text > 5
    with pytest.raises(BatchError, match=r"is_null"):
        _ = text == None  # noqa: E711
    with pytest.raises(ValueError, match=r"with & and \|"):
        bool(text)
    with pytest.raises(BatchError, match=r"string \* 2: these do not go together"):
        text * 2


def test_columns_go_wherever_arrays_do() -> None:
    array = pa.array(["a", None, "c"])
    mine = column(array)
    assert pa.array(mine).equals(array)
    assert pa.table({"x": mine})["x"].to_pylist() == ["a", None, "c"]
    assert np.asarray(mine).tolist() == ["a", None, "c"]
    assert list(mine) == mine.to_list() == ["a", None, "c"]
    assert mine[1:].to_list() == [None, "c"]
    assert mine[0] == "a"
    assert mine[np.array([2, 0])].to_list() == ["c", "a"]
    assert mine[np.array([True, False, True])].to_list() == ["a", "c"]
    assert "a" in mine
    assert "z" not in mine
    assert pickle.loads(pickle.dumps(mine)).to_list() == ["a", None, "c"]
    assert pd.Series(mine).tolist()[::2] == ["a", "c"]
    assert pl.Series(mine.to_arrow()).to_list() == ["a", None, "c"]
    assert jt.Batch({"y": mine}, times=[0, 0, 0]).rows()[2] == {"time": 0, "y": "c"}
    with pytest.raises(TypeError):
        hash(mine)


def test_numbers_go_wherever_arrays_do() -> None:
    mine = column([3, 1, 2])
    assert (mine.sum(), mine.max(), mine.dtype) == (6, 3, np.int64)
    assert np.where(mine > 1, mine, 0).tolist() == [3, 0, 2]
    assert np.zeros(4)[mine].tolist() == [0, 0, 0]
    assert np.column_stack([mine, mine]).shape == (3, 2)
    assert np.argsort(mine).tolist() == [1, 2, 0]
    assert np.asarray(mine) is np.asarray(mine)
    assert mine[mine > 1].to_list() == [3, 2]
    assert pa.array(mine).to_pylist() == pd.Series(mine).tolist() == [3, 1, 2]
    assert mine.astype(float).to_list() == [3.0, 1.0, 2.0]
    assert pickle.loads(pickle.dumps(mine)).to_list() == [3, 1, 2]
    assert pc.add(mine, 1).to_pylist() == [4, 2, 3]


def test_a_series_is_not_changed_in_place() -> None:
    mine = column([1, 2, 3])
    before = mine
    mine += column([10, 20, 30])
    assert (mine.to_list(), before.to_list()) == ([11, 22, 33], [1, 2, 3])
    mine *= 2
    assert mine.to_list() == [22, 44, 66]
    assert (before.count(2), before.index(3), list(reversed(before))) == (1, 2, [3, 2, 1])
    assert before.copy().to_list() == [1, 2, 3]
    with pytest.raises(TypeError, match="a Series does not change"):
        before.append(4)


@pytest.mark.parametrize(
    ("values", "filling"),
    [
        ([5, None], 0.5),
        ([5, None], "x"),
        (pa.array([0, None], pa.timestamp("us")), 5),
        (pa.array([5, None], pa.date32()), datetime.datetime(2024, 1, 1, 23)),
        (pa.array([1, None], pa.timestamp("s")), datetime.datetime(2024, 1, 1, 0, 0, 0, 500_000)),
        (pa.array([1, None], pa.duration("s")), datetime.timedelta(seconds=1.5)),
        (pa.array([0, None], pa.timestamp("us", "UTC")), datetime.datetime(1970, 1, 1)),
    ],
)
def test_a_filling_that_is_no_value_of_the_column_is_refused(values: Any, filling: Any) -> None:
    for some in (values, values[:1]):
        with pytest.raises(BatchError, match="is not a value of type"):
            column(some).fill_null(filling)


def test_fillings_of_other_types_that_fit() -> None:
    assert column(pa.array([1, None], pa.int8())).fill_null(7).to_list() == [1, 7]
    assert column([1.5, None]).fill_null(2).to_list() == [1.5, 2.0]
    assert column(pa.array(["a", None], pa.large_string())).fill_null("b").to_list() == ["a", "b"]


def test_is_in_follows_the_rules_of_equality() -> None:
    assert column(np.array([1, 2], np.int8)).is_in([1, 1000]).to_list() == [True, False]
    assert column([1, 2]).is_in([1.5, 2.0]).to_list() == [False, True]
    assert column([None, None]).is_in(["a"]).to_list() == [None, None]
    assert column([-0.0, 0.0, 1.0, None]).is_in([0.0]).to_list() == [True, True, False, None]
    assert column([-0.0, 0.0]).is_in([-0.0]).to_list() == [True, True]
    for values, wanted in ((["1"], [1]), ([1], ["1"]), ([True], ["true"])):
        with pytest.raises(BatchError, match="cannot be compared"):
            column(values).is_in(wanted)
    with pytest.raises(BatchError, match="not a column or a single text"):
        column(["a"]).is_in("abc")
    with pytest.raises(BatchError, match="not a column or a single text"):
        jt.col("a").is_in(jt.col("b"))  # type: ignore[arg-type]


def test_times_do_not_wrap_and_are_not_numbers() -> None:
    day = column(np.array(["2024-01-01"], "M8[ns]"))
    with pytest.raises(BatchError, match="does not fit into ns"):
        _ = day < datetime.datetime(9999, 12, 31)
    assert (day < datetime.datetime(2024, 1, 2)).to_list() == [True]
    assert (column(np.array([1], "M8[ns]")) == pd.Timestamp(1)).to_list() == [True]
    instant = column(pa.array([1], pa.timestamp("ns", "UTC")))
    assert (instant == pd.Timestamp(1, tz="UTC")).to_list() == [True]
    hour = datetime.timedelta(hours=1)
    assert (instant + hour).to_list() == [pd.Timestamp(3600 * 10**9 + 1, tz="UTC")]
    with pytest.raises(BatchError, match=r"use \.dt\.date\(\)"):
        _ = instant < datetime.date(2024, 4, 1)
    length = column(np.array([6], "m8[s]"))
    assert (length / 2).to_list() == [datetime.timedelta(seconds=3)]
    for times in (length, day):
        for name in ("add", "eq", "lt"):
            with pytest.raises(BatchError, match="numbers are not times"):
                getattr(operator, name)(times, 1)
    assert (column(pa.array([1, 2]).dictionary_encode()) == 1).to_list() == [True, False]


def test_instants_and_clocks_are_cast_by_their_zone_only() -> None:
    instants = column(pa.array([0], pa.timestamp("us", "Europe/Berlin")))
    clock = column(pa.array([0], pa.timestamp("us")))
    for times, kind in ((instants, datetime.datetime), (clock, pa.timestamp("us", "UTC"))):
        with pytest.raises(BatchError, match=r"use \.dt\.replace_time_zone"):
            times.cast(kind)
    midnight = datetime.datetime(1970, 1, 1)
    shown = instants.dt.replace_time_zone(None)
    assert shown.to_list() == [midnight.replace(hour=1)]
    assert instants.dt.convert_time_zone("UTC").dt.replace_time_zone(None).to_list() == [midnight]
    assert shown.dt.replace_time_zone("Europe/Berlin").to_list() == instants.to_list()
    assert clock.dt.replace_time_zone("UTC").to_list() == instants.to_list()
    assert instants.cast(pa.timestamp("s", "UTC")).to_list() == instants.to_list()
    assert instants.cast(str).to_list() == ["1970-01-01 01:00:00.000000+0100"]
    late = column(pa.array([82_800], pa.timestamp("s", "Europe/Berlin")))
    assert late.cast(datetime.date).to_list() == [datetime.date(1970, 1, 2)]
    assert late.dt.date().to_list() == [datetime.date(1970, 1, 2)]


def test_times_that_a_zone_does_not_have() -> None:
    spring = column([datetime.datetime(2024, 3, 31, 2, 30)])
    autumn = column([datetime.datetime(2024, 10, 27, 2, 30)])
    for times in (spring, autumn):
        with pytest.raises(BatchError, match="assume_timezone: Timestamp"):
            times.dt.replace_time_zone("Europe/Berlin")
    with pytest.raises(GraphError, match="no time zone 'Mars'"):
        spring.dt.replace_time_zone("Mars")
    with pytest.raises(BatchError, match=r"no zone to convert from: replace_time_zone\(\)"):
        spring.dt.convert_time_zone("UTC")
    with pytest.raises(BatchError, match="for timestamps, not for int64"):
        column([1]).dt.convert_time_zone("UTC")


DIGITS = Decimal("1" * 38)


def test_decimals_of_38_digits() -> None:
    longest = column(pa.array([DIGITS, None]))
    assert (longest + 1).to_list() == [Decimal("1" * 37 + "2"), None]
    assert (longest + longest).to_list() == [Decimal("2" * 38), None]
    assert (-longest).to_list() == [Decimal("-" + "1" * 38), None]
    assert (longest - longest).type == pa.decimal128(38, 0)
    assert (column(pa.array([DIGITS], pa.decimal128(38, 0))[:0]) + 1).type == pa.decimal128(38, 0)
    assert (column(pa.array([Decimal("1.5")])) + 1).to_list() == [Decimal("2.5")]
    most = column(pa.array([Decimal("9" * 38)]))
    for function, left in (
        (operator.add, most),
        (operator.mul, longest),
        (operator.truediv, longest),
    ):
        with pytest.raises(BatchError, match=r"decimal128\(38, 0\).*more digits.*38: cast"):
            function(left, left)


def test_a_null_does_not_take_methods_away() -> None:
    for values in ([3, None, 1], [3.5, None, float("nan")], [True, None, False]):
        some, plain = column(values), column([value for value in values if value is not None])
        for name in ("max", "min", "sum", "mean", "std", "any", "all"):
            np.testing.assert_equal(getattr(some, name)(), getattr(plain, name)())
        assert type(some.max()) is type(plain.max())
    assert column([1, None]).astype(float).to_list() == [1.0, None]
    assert column([1.5, None]).astype(int).to_list() == [1, None]
    assert column([1, None]).astype("datetime64[s]").to_list() == [
        datetime.datetime(1970, 1, 1, 0, 0, 1),
        None,
    ]
    assert column(["b", "a", None]).max() == "b"
    assert column([None, 1])[:1].max() is None
    assert (~column([1, None])).to_list() == [-2, None]
    with pytest.raises(AttributeError, match="a column of type int64 has no 'foo'"):
        column([1, None]).foo()


def test_none_is_not_a_number_and_no_bound() -> None:
    with pytest.raises(BatchError, match=r"int64 \+ None: None has no type"):
        column([1, 2]) + None
    with pytest.raises(BatchError, match="use is_null"):
        _ = column([1, 2]) == None  # noqa: E711
    assert column([1, 5, 9]).clip(None, 4).to_list() == [1, 4, 4]
    assert column([1, 5, None]).clip(lower=2).to_list() == [2, 5, None]
    assert column([1, 5, 9]).clip().to_list() == [1, 5, 9]


INTERVALS = pa.array([(1, 0, 0), (0, 30, 0), None], pa.month_day_nano_interval())


def test_intervals_of_months_and_days_have_no_order() -> None:
    table = pa.table({"time": [1, 1, 2], "k": [7, 7, 7], "x": INTERVALS})
    first, other, _ = INTERVALS.to_pylist()
    for order in ([0, 1, 2], [1, 0, 2]):
        found = run_one(lambda s: s.key_by("k").tumbling(10).collect("x"), table.take(order))
        assert found["collect"].to_pylist() == [sorted([first, other], key=repr)]
        found = run_one(lambda s: s.key_by("k").tumbling(10).first("x"), table.take(order))
        assert found["first"].to_pylist() == [min(first, other, key=repr)]
    for name in ("min", "max"):
        with pytest.raises(BatchError, match=f"have no order, so none is the {name}"):
            run_one(lambda s, n=name: getattr(s.key_by("k").tumbling(10), n)("x"), table)
    with pytest.raises(BatchError, match="which has no order"):
        run_one(lambda s: s.key_by("k").tumbling(10).top_k(1, by="x"), table)


@pytest.mark.parametrize(
    ("values", "fillings"),
    [
        (pa.array(["a", None]), pa.array([1, 2])),
        (pa.array([True, None]), pa.array([1, 2])),
        (pa.array([1, None]), pa.array([1, 2], pa.timestamp("s"))),
        (pa.array([0.5, None], pa.float32()), pa.array([0.1, 0.1])),
        (pa.array([1, None]), pa.array([0.5, 0.5])),
        (pa.array([1, None], pa.uint64()), pa.array([-1, -1])),
    ],
    ids=lambda array: str(array.type),
)
def test_a_column_of_fillings_has_values_of_the_type(values: pa.Array, fillings: pa.Array) -> None:
    with pytest.raises(BatchError, match=r"fill_null: .*: cast one of them first"):
        column(values).fill_null(column(fillings))


def test_columns_of_fillings_that_fit() -> None:
    whole = column(pa.array([0.5, None], pa.float32())).fill_null(column([1.0, 0.25]))
    assert whole.to_list() == [0.5, 0.25]
    empty = column(pa.array([0.5, None], pa.float32())).fill_null(column([1.0, float("nan")]))
    assert np.isnan(empty.to_list()[1])
    assert column(["a", None]).fill_null(column(pa.array(["x", "y"]))).to_list() == ["a", "y"]
    unknown = column(pa.array([1.5, None], pa.float32())).fill_null(column([None, None]))
    assert unknown.to_list() == [1.5, None]


def test_numbers_beyond_a_narrow_type_are_errors() -> None:
    with pytest.raises(BatchError, match=r"cast: 1e\+300 is beyond float"):
        column([1e300]).cast(np.float32)
    with pytest.raises(BatchError, match=r"is beyond halffloat"):
        column([1e6]).cast(np.float16)
    assert column([0.5, None]).cast(np.float16).to_list() == [0.5, None]
    assert column([0.1, float("inf"), None]).cast(np.float32).to_list()[1:] == [float("inf"), None]
    flow = jt.Flow("narrow")
    flow.output("out", flow.input("in", schema={"x": np.float32}))
    with pytest.raises(BatchError, match=r"'x' is of type double and does not fit float: 1e\+300"):
        flow.run({"in": {"time": [0], "x": [1e300]}})


def test_powers_and_comparisons_of_long_decimals() -> None:
    with pytest.raises(BatchError, match=r"int64 \*\* -1: Integers to negative"):
        column([2, None]) ** -1
    longest = column(pa.array([DIGITS, None]))
    assert (longest > Decimal("1.5")).to_list() == [True, None]
    assert (longest == column(pa.array([Decimal("1.5"), Decimal(2)]))).to_list() == [False, None]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64])
def test_plain_values_leave_the_type_of_integers_as_it_is(kind: Any) -> None:
    values = column(np.array([0, 5, np.iinfo(kind).max], kind))
    for made in (values % 0, values // 0, values % 3, values.clip(1, 3), values.clip(upper=7)):
        assert made.type == pa.from_numpy_dtype(kind)
    assert (values % 0).to_list() == [None, None, None]
    assert values.clip(1, 3).to_list() == [1, 3, 3]


def test_instants_of_different_units_and_zones_are_compared() -> None:
    noon = datetime.datetime(2026, 3, 29, 12, tzinfo=datetime.UTC)
    later = noon + datetime.timedelta(hours=1)
    for unit in ("s", "ms", "us", "ns"):
        berlin = column(pa.array([noon, later, None], pa.timestamp(unit, "Europe/Berlin")))
        assert (berlin == noon).to_list() == [True, False, None]
        assert (berlin > noon).to_list() == [False, True, None]
        utc = column(pa.array([later, later, later], pa.timestamp("us", "UTC")))
        assert (berlin == utc).to_list() == [False, True, None]
        assert (utc - berlin).to_list() == [later - noon, datetime.timedelta(0), None]
    first = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(BatchError, match="does not fit into ns"):
        operator.gt(column(pa.array([noon], pa.timestamp("ns", "UTC"))), first)


def test_divisions_by_zero_do_not_warn() -> None:
    """Warnings are errors here; threads other than the first have NumPy's settings of their own."""
    numbers, zeros = column(np.array([-1.0, 0.0, 2.0])), column(np.zeros(3))

    def divided() -> list[list[Any]]:
        made = [numbers / zeros, numbers // zeros, numbers % zeros, 1 / zeros, zeros**-1]
        made += [column(np.array([1, 0])) / 0, column(pa.array([1.0, None])) / 0]
        return [[str(value) for value in one.to_list()] for one in made]

    expected = [
        ["-inf", "nan", "inf"], ["-inf", "nan", "inf"], ["nan"] * 3, ["inf"] * 3, ["inf"] * 3,
        ["inf", "nan"], ["inf", "None"],
    ]  # fmt: skip
    assert divided() == expected
    with ThreadPoolExecutor(1) as other:
        assert other.submit(divided).result() == expected
    flow = jt.Flow("ratios")
    flow.output("out", flow.input("in").with_columns(r=jt.col("a") / jt.col("b")))
    found = flow.run({"in": {"time": [0, 0], "a": [1.0, 2.0], "b": [0.0, 4.0]}})["out"]
    assert found["r"].to_pylist() == [float("inf"), 0.5]


HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize("more", [[], [None]])
@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda d: d / 0, [None, None]),
        (lambda d: d // 0, [None, None]),
        (lambda d: d * float("nan"), [None, None]),
        (lambda d: d / np.array([0, 2, 2])[: len(d)], [None, HOUR]),
        (lambda d: d // np.array([0.0, 2.0, 2.0])[: len(d)], [None, HOUR]),
        (lambda d: d % (d - HOUR), [None, datetime.timedelta(0)]),
        (lambda d: HOUR / (d / HOUR - 1), [None, HOUR]),
        (lambda d: -d, [-HOUR, -2 * HOUR]),
    ],
)
def test_durations_without_a_result_are_null(compute: Any, expected: Any, more: Any) -> None:
    lengths = column(pa.array([HOUR, 2 * HOUR, *more], pa.duration("us")))
    assert compute(lengths).to_list() == [*expected, *more]


def test_the_least_integer_is_not_a_time() -> None:
    for more in ([], [None]):
        numbers = column(pa.array([-(2**63), 1, *more], pa.int64()))
        for kind in (pa.timestamp("s"), pa.duration("s")):
            assert numbers.cast(kind).is_null().to_list() == [True, False, *(True for _ in more)]


@pytest.mark.parametrize("zero", [0, np.array([0, 0, 0]), np.array([0, 0, 0], np.uint8), 0.0])
def test_floats_by_zero_are_infinite_or_not_a_number(zero: Any) -> None:
    numbers = column([1.0, -1.0, 0.0])
    assert repr((numbers // zero).to_list()) == "[inf, -inf, nan]"
    assert repr((numbers % zero).to_list()) == "[nan, nan, nan]"
    assert repr((numbers // column([0, None, 0])).to_list()) == "[inf, None, nan]"


@pytest.mark.parametrize("more", [[], [None]])
@pytest.mark.parametrize(
    ("kind", "compute", "expected"),
    [
        (pa.int8(), lambda n: n + 300, [301, 302]),
        (pa.int8(), lambda n: 300 - n, [299, 298]),
        (pa.int32(), lambda n: n * 2**40, [2**40, 2**41]),
        (pa.uint32(), lambda n: n + -1, [0, 1]),
        (pa.uint8(), lambda n: n + 2**63, [2**63 + 1, 2**63 + 2]),
        (pa.int64(), lambda n: n / 2**64, [2.0**-64, 2.0**-63]),
    ],
)
def test_constants_beyond_a_narrow_type_widen_it(
    kind: pa.DataType, compute: Any, expected: Any, more: Any
) -> None:
    assert compute(column(pa.array([1, 2, *more], kind))).to_list() == [*expected, *more]


@pytest.mark.parametrize(
    ("kind", "compute", "shown"),
    [
        (pa.int64(), lambda n: n * 2**64, r"int64 \* 18446744073709551616"),
        (pa.uint64(), lambda n: n - -1, "uint64 - -1"),
        (pa.int64(), lambda n: 2**63 + n, r"int64 \+ 9223372036854775808"),
    ],
)
def test_constants_beyond_all_integers_are_refused(
    kind: pa.DataType, compute: Any, shown: str
) -> None:
    stream = jt.Flow("far").input("i", schema=pa.schema([("n", kind)]))
    for far in (compute(jt.col("n")), lambda batch: compute(batch["n"])):
        with pytest.raises(GraphError, match=f"{shown}: no type of integers has"):
            stream.with_columns(far=far)
    for more in ([], [None]):
        with pytest.raises(BatchError, match=f"{shown}: no type of integers has"):
            compute(column(pa.array([1, *more], kind)))


def test_values_of_pandas_in_a_list_keep_their_nanoseconds() -> None:
    at, later = pd.Timestamp(1_700_000_000_000_000_000), pd.Timestamp(1_700_000_000_000_000_001)
    long, longer = pd.Timedelta(1000, "ns"), pd.Timedelta(1001, "ns")
    for zone in (None, "UTC"):
        first, second = (each.tz_localize(zone) for each in (at, later))
        batch = jt.Batch({"at": [second, first], "long": [longer, long]}, times=[0, 0])
        assert batch["at"].to_list() == [second, first]
        assert batch["at"].is_in([second]).to_list() == [True, False]
        assert batch["at"].is_in([first]).to_list() == [False, True]
        assert batch["long"].is_in([longer]).to_list() == [True, False]
    whole = jt.Batch({"at": np.array([at.to_datetime64()])}, times=[0])
    assert whole["at"].is_in([later]).to_list() == [False]
