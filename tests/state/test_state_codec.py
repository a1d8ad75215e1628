"""State of users' own objects: plain values by default, others only as the program says."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import zoneinfo
from collections import Counter, deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError, SnapshotError
from jeton.state import plain_codec
from jeton.state.python_values import stored


@dataclass
class Point:
    x: int
    y: int


class Points:
    """Stores points as JSON."""

    def encode(self, value: Point) -> bytes:
        return json.dumps([value.x, value.y]).encode()

    def decode(self, data: bytes) -> Point:
        return Point(*json.loads(data))


CODECS: dict[str, Any] = {"pickle": "pickle", "its own": Points()}


def remembering(where: str, make: Any, codec: Any) -> jt.Flow:
    """A flow that keeps an object for each key, and says at the second record which one."""
    flow = jt.Flow("objects")
    keyed = flow.input("in").key_by("k")

    def step(state: Any, row: dict[str, Any]) -> Any:
        known = [] if state == "new" else [{"said": repr(state)}]
        return make(row["k"]), known

    if where == "stateful_map":
        out = keyed.stateful_map(step, "new", state_codec=codec, name="mine")
    elif where == "timers":
        out = keyed.stateful_map(
            lambda state, row, timers: step(state, row),
            "new",
            on_timer=lambda state, key, timers: (state, []),
            state_codec=codec,
            name="mine",
        )
    elif where == "fold":
        out = keyed.running().fold(
            "k", lambda: None, lambda _, k: make(k), finish=repr, state_codec=codec, name="said"
        )
    else:

        def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
            token.drop()
            values: jt.state.KeyedValues[Any] = jt.state.KeyedValues(state_codec=codec)
            info.keep(values)

            def step(input: jt.Input, output: jt.Output) -> None:
                for ref, batch in input:
                    for k in batch["k"].tolist():
                        if k in values:
                            output.session(ref).give(k=k, said=repr(values[k]))
                        values[k] = make(k)

            return step

        out = keyed.unary_frontier(build, name="mine")
    flow.output("out", out)
    return flow


WHERE = ["stateful_map", "timers", "fold", "keyed values"]
ROWS = {"time": [0, 0, 0], "k": [1, 2, 3]}


def operator_of(where: str) -> str:
    return "fold" if where == "fold" else "mine"


def snapshot_of(flow: jt.Flow) -> jt.state.Snapshot:
    with flow.open(workers=2) as run:
        run.input("in").send(ROWS)
        for worker in range(2):
            run.input("in", worker).advance_to(1)
        run.run_to_rest()
        return run.snapshot()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("where", WHERE)
def test_objects_come_back_with_a_codec(where: str, codec: str) -> None:
    flow = remembering(where, lambda k: Point(k, -k), CODECS[codec])
    snapshot = snapshot_of(flow)
    with flow.open(workers=3, restore=snapshot) as run:
        run.input("in").send({**ROWS, "time": [1, 1, 1]})
        rows = run.finish()["out"].to_pylist()
    assert {row["k"]: row["said"] for row in rows} == {k: repr(Point(k, -k)) for k in (1, 2, 3)}


@pytest.mark.parametrize("where", WHERE)
def test_objects_without_one_are_an_error_that_names_operator_and_type(where: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        snapshot_of(remembering(where, lambda k: Point(k, -k), "plain"))
    text = str(caught.value)
    assert f"a value of type {Point.__module__}.Point cannot be stored" in text
    assert f"operator {operator_of(where)!r}" in text
    assert "state_codec" in text


class Trap:
    """Unpickling this would run code."""

    sprung = False

    def __reduce__(self) -> Any:
        return setattr, (Trap, "sprung", True)


@pytest.mark.parametrize("where", WHERE)
def test_pickles_of_old_checkpoints_are_not_read_without_the_opt_in(where: str) -> None:
    snapshot = snapshot_of(remembering(where, lambda k: f"{k}", "plain"))
    trap = pickle.dumps(Trap(), 5)
    [(name, kept)] = [(n, k) for n, k in snapshot.operators.items() if n == operator_of(where)]
    tables = {}
    for container, table in kept.items():
        for column in table.column_names:
            if table.schema.field(column).type == pa.large_binary():
                old = pa.array([trap] * table.num_rows, pa.large_binary())
                table = table.set_column(table.column_names.index(column), column, old)
        tables[container] = table
    spoilt = jt.state.Snapshot(snapshot.flow, {**snapshot.operators, name: tables})
    flow = remembering(where, str, "plain")
    with pytest.raises(SnapshotError, match=r"pickled values.*state_codec=\"pickle\""):
        flow.open(workers=2, restore=spoilt)
    with pytest.raises(SnapshotError, match="pickled values"):
        remembering(where, str, Points()).open(workers=2, restore=spoilt)
    assert not Trap.sprung
    remembering(where, str, "pickle").open(workers=2, restore=spoilt).close()
    assert vars(Trap)["sprung"]
    Trap.sprung = False


def test_plain_state_outlives_a_change_of_codecs() -> None:
    """Under "pickle", plain values are stored as such, so that it can be left out again."""
    snapshot = snapshot_of(remembering("stateful_map", lambda k: {"k": k}, "pickle"))
    flow = remembering("stateful_map", lambda k: {"k": k}, "plain")
    with flow.open(workers=1, restore=snapshot) as run:
        run.input("in").send({**ROWS, "time": [1, 1, 1]})
        assert run.finish()["out"].num_rows == 3


def test_another_codec_than_before_is_an_error() -> None:
    snapshot = snapshot_of(remembering("stateful_map", lambda k: Point(k, k), Points()))
    with pytest.raises(SnapshotError, match="the same state_codec= as before"):
        remembering("stateful_map", str, "plain").open(restore=snapshot)


@pytest.mark.parametrize("codec", ["json", None, 3, object()])
def test_what_is_no_codec_is_refused_at_the_call(codec: Any) -> None:
    with pytest.raises(GraphError, match="state_codec="):
        remembering("stateful_map", str, codec)
    with pytest.raises(GraphError, match="state_codec="):
        jt.state.KeyedValues(state_codec=codec)


def test_an_encoder_must_return_bytes() -> None:
    class Wrong(Points):
        def encode(self, value: Point) -> Any:
            return "text"

    with pytest.raises(SnapshotError, match="must return bytes, not str"):
        snapshot_of(remembering("stateful_map", lambda k: Point(k, k), Wrong()))


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
ZONES = [None, dt.UTC, BERLIN, dt.timezone(dt.timedelta(hours=1, seconds=7), "old time")]
hashable = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(st.characters()),
        st.binary(),
        st.decimals(allow_nan=False),
        st.uuids(),
        st.dates(),
        st.times(timezones=st.sampled_from(ZONES)),
        st.timedeltas(),
        st.datetimes(timezones=st.sampled_from(ZONES)),
        st.integers(-128, 127).map(np.int8),
        st.floats(allow_nan=False).map(np.float64),
        st.integers(0, 2**62).map(lambda n: np.datetime64(n, "ns")),
        st.integers(0, 2**62).map(lambda n: pd.Timestamp(n, unit="ns", tz="Europe/Berlin")),
        st.integers(-(2**62), 2**62).map(lambda n: pd.Timedelta(n, unit="ns")),
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner.filter(lambda v: v == v), max_size=3)
    ),
    max_leaves=5,
)
values = st.recursive(
    hashable,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=4),
        st.dictionaries(st.text(max_size=3) | st.just("$"), inner, max_size=4),
        st.sets(hashable, max_size=3),
        st.lists(inner, max_size=3).map(lambda v: deque(v, maxlen=5)),
        st.lists(st.text(max_size=2), max_size=5).map(Counter),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types throughout: 1, 1.0 and True are three values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one == other and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, dt.datetime) and one.tzinfo is not None:
        return bool(one == other and one.isoformat() == other.isoformat())
    if isinstance(one, dt.time | dt.datetime):
        # Times of day in a zone of several offsets are equal without regard to the zone.
        return bool(one == other and one.tzinfo == other.tzinfo)
    return bool(one == other)


@settings(max_examples=60, deadline=None)
@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert same(plain_codec.decode(plain_codec.encode(value)), value)


def test_zones_come_back_or_are_refused_before_anything_is_stored() -> None:
    noon = pd.Timestamp("2024-07-01 12:00")
    for zone in ZONES[1:]:
        for value in (noon.tz_localize(zone), dt.time(12, tzinfo=zone)):
            again = plain_codec.decode(plain_codec.encode(value))
            assert again == value
            assert again.isoformat() == value.isoformat()
            assert again.tzname() == value.tzname()
    for value in (
        noon.tz_localize("dateutil/Europe/Berlin"),
        dt.datetime(2024, 7, 1, tzinfo=noon.tz_localize("dateutil/Europe/Berlin").tzinfo),
    ):
        with pytest.raises(SnapshotError, match="a zone of type dateutil"):
            plain_codec.encode(value)


def test_times_that_were_stored_before_they_had_zones() -> None:
    assert plain_codec.decode(b'{"$":["time","01:02:00",1]}') == dt.time(1, 2, fold=1)
    stored_then = b'{"$":["datetime","2024-01-01T00:00:00+01:00",0,null]}'
    zone = dt.timezone(dt.timedelta(hours=1))
    assert plain_codec.decode(stored_then) == dt.datetime(2024, 1, 1, tzinfo=zone)


def test_arrays_and_odd_values_come_back() -> None:
    for array in (np.arange(6.0).reshape(2, 3), np.array(["a", "bc"]), np.zeros((0, 4), np.int8)):
        again = plain_codec.decode(plain_codec.encode(array))
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)
        assert again.flags.writeable
    for value in (float("nan"), float("-inf"), Decimal("NaN"), pd.NaT, UUID(int=7)):
        assert repr(plain_codec.decode(plain_codec.encode(value))) == repr(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"$":["nobody"]}',
        b'{"$":[]}',
        b'{"$":7}',
        b'{"$":["array","O",[1],"AAAAAAAAAAA="]}',
        b'{"$":["set",[[]]]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_plain_value_are_an_error(data: bytes) -> None:
    with pytest.raises(SnapshotError, match="not a plain value"):
        plain_codec.decode(data)


def test_what_contains_itself_is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(SnapshotError, match="contains itself"):
        stored([value])


def test_typed_bytes_are_not_taken_for_stored_values() -> None:
    typed: jt.state.KeyedValues[bytes] = jt.state.KeyedValues(type=pa.large_binary())
    typed["a"] = b"\x80\x05."
    again: jt.state.KeyedValues[bytes] = jt.state.KeyedValues(type=pa.large_binary())
    again.restore(typed.snapshot(), ())
    assert dict(again) == {"a": b"\x80\x05."}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Decimal("2.5"), pa.int64()),
        (dt.datetime(2024, 5, 1, microsecond=5), pa.timestamp("ms")),
        (dt.datetime(2024, 5, 1, tzinfo=dt.UTC), pa.timestamp("us")),
        (dt.datetime(2024, 5, 1, 7), pa.date32()),
        (dt.timedelta(microseconds=1), pa.duration("ms")),
    ],
)
def test_a_declared_type_cuts_nothing_off(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(SnapshotError, match="cannot be stored as"):
        stored([None, value], kind)


def test_values_that_fit_a_declared_type() -> None:
    for value, kind in (
        (Decimal(2), pa.int64()),
        (pd.Timestamp(5), pa.timestamp("ns")),
        (dt.datetime(2024, 5, 1), pa.date32()),
        (dt.datetime(2024, 5, 1, tzinfo=BERLIN), pa.timestamp("us", "UTC")),
        (pd.Timedelta(5), pa.duration("ns")),
    ):
        assert stored([None, value], kind).null_count == 1
