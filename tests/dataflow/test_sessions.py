"""DESIGN §4, rule 3: sessions take records at their time or later, whole batches or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tests.helpers import (
    FROM_ZERO,
    UnaryStep,
    consume,
    dropping,
    in_step,
    seeded,
    stamped,
    with_token,
)

import jeton as jt
from jeton.dataflow.ports import Session
from jeton.errors import BatchError, TimeError, TokenError


def test_an_early_record_raises_and_nothing_of_its_batch_is_sent() -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with output.session(ref) as session:
                session.give(n=[1, 2], times=[7, 9])
                with pytest.raises(TokenError, match="nothing of this batch was sent") as caught:
                    session.give(n=[3, 4, 5], times=[8, 6, 9])
                session.give(n=[6], times=[8])
            assert "a record at 6" in str(caught.value)
            assert "[operator 'acting', worker 0, time 7]" in str(caught.value)

    assert stamped(in_step(act, at=7)["out"]) == [(7, 1), (8, 6), (9, 2)]


EARLY: dict[str, Callable[[Session], None]] = {
    "row": lambda session: session.give(n=3, times=6),
    "columns": lambda session: session.give(n=[3, 4], times=[7, 6]),
    "one time": lambda session: session.give(n=[3, 4], times=6),
    "batch": lambda session: session.give(jt.Batch({"n": [3, 4]}, times=[7, 6])),
    "batch at times": lambda session: session.give(
        jt.Batch({"n": [3, 4]}, times=[7, 7]), times=np.array([7, 6])
    ),
}


@pytest.mark.parametrize("give", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("retained", [False, True])
def test_every_way_to_be_early_raises(give: Callable[[Session], None], retained: bool) -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            token = ref.retain()
            with token, output.session(token if retained else ref) as session:
                with pytest.raises(TokenError, match="a record at 6 cannot be sent"):
                    give(session)
                session.give(n=1)

    assert stamped(in_step(act, at=7)["out"]) == [(7, 1)]


def test_session_at_a_later_time_allows_no_earlier_record() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        with output.session(token, time=5) as session:
            with pytest.raises(TokenError, match="a record at 4"):
                session.give(n=[1], times=[4])
            session.give(n=[2])

    assert stamped(with_token(act)["out"]) == [(5, 2)]


def test_session_before_its_token_raises() -> None:
    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        token.downgrade(5)
        with pytest.raises(TokenError, match="cannot open a session at 4"):
            output.session(token, time=4)

    with_token(act)


NOT_RIGHTS: dict[str, tuple[Callable[[jt.TokenRef, jt.Batch], Any], str]] = {
    "time": (lambda ref, batch: ref.time, "7 (an int)"),
    "nothing": (lambda ref, batch: None, "None"),
    "batch": (lambda ref, batch: batch, "a jeton.Batch"),
}


@pytest.mark.parametrize(("wrong", "named"), NOT_RIGHTS.values(), ids=NOT_RIGHTS)
@pytest.mark.parametrize("time", [None, 8])
def test_a_session_with_anything_else_than_a_right_raises(
    wrong: Callable[[jt.TokenRef, jt.Batch], Any], named: str, time: int | None
) -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            with pytest.raises(TokenError) as caught:
                output.session(wrong(ref, batch), time)
            assert str(caught.value) == (
                "a session needs a token, or the reference that came with a message, not "
                f"{named}: output.session(ref) [operator 'acting', worker 0]"
            )
            output.session(ref).give(n=1)

    assert stamped(in_step(act, at=7)["out"]) == [(7, 1)]


def test_an_error_within_a_right_is_not_taken_for_a_wrong_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(ref: jt.TokenRef, book: object, time: object) -> None:
        raise AttributeError("broken")

    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            monkeypatch.setattr(jt.TokenRef, "_admit", broken)
            with pytest.raises(AttributeError, match="broken"):
                output.session(ref)
            monkeypatch.undo()

    in_step(act, at=7)


def given(*gifts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The output when these are given in one session at 2."""

    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with output.session(ref) as session:
                for gift in gifts:
                    session.give(**gift)

    rows: list[dict[str, Any]] = in_step(act, at=2)["out"].to_pylist()
    return rows


def test_rows_and_columns_mix() -> None:
    assert given({"n": 1}, {"n": [2, 3]}, {"n": 4}) == [
        {"time": 2, "n": 1},
        {"time": 2, "n": 2},
        {"time": 2, "n": 3},
        {"time": 2, "n": 4},
    ]


def test_plain_values_are_repeated_beside_columns() -> None:
    assert given({"word": "a", "n": [1, 2]}) == [
        {"time": 2, "n": 1, "word": "a"},
        {"time": 2, "n": 2, "word": "a"},
    ]


def test_rows_of_values_of_all_kinds() -> None:
    row = {"i": 1, "f": 1.5, "s": "text", "b": True, "none": None, "y": b"bytes"}
    assert given(row) == [{"time": 2, **row}]


def test_columns_of_unequal_lengths_raise() -> None:
    with pytest.raises(BatchError, match="unequal lengths"):
        given({"n": [1, 2], "m": [1]})


def test_times_of_another_length_raise() -> None:
    with pytest.raises(BatchError):
        given({"n": [1, 2], "times": [3, 4, 5]})


def test_times_of_another_length_for_a_batch_raise() -> None:
    with pytest.raises((BatchError, TimeError)):
        given({"data": jt.Batch({"n": [1, 2, 3]}, times=[2, 2, 2]), "times": [3, 4]})


def test_one_time_for_a_batch() -> None:
    rows = given({"data": jt.Batch({"n": [1, 2]}, times=[2, 3]), "times": 5})
    assert [row["time"] for row in rows] == [5, 5]


def test_columns_added_to_a_batch() -> None:
    batch = jt.Batch({"n": [1, 2]}, times=[2, 3])
    assert given({"data": batch, "m": [3, 4]})[1] == {"time": 3, "n": 2, "m": 4}


def test_time_column_cannot_be_given_as_a_value() -> None:
    with pytest.raises(BatchError, match="time column"):
        given({"n": 1, "time": 5})
    with pytest.raises(BatchError, match="time column"):
        given({"n": [1], "time": [5]})


@seeded
def test_many_rows_at_many_times(seed: int | None) -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            for n in range(10_000):
                output.session(ref, time=ref.time + n).give(n=n)

    flow = jt.Flow("rows")
    flow.output("out", flow.input("in").unary(dropping(act)).probe("after"))
    result = flow.run({"in": {"time": [1], "n": [0]}}, seed=seed)
    assert stamped(result["out"]) == [(n + 1, n) for n in range(10_000)]


def test_rows_given_while_building_are_sent() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        with token, info.outputs[0].session(token) as session:
            session.give(n=1)
        return consume

    flow = jt.Flow("early bird", time=FROM_ZERO)
    flow.output("out", flow.input("in").unary(build).probe("after"))
    assert stamped(flow.run({"in": {"time": []}})["out"]) == [(0, 1)]


def test_rows_given_while_building_are_not_overtaken() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        with token, info.outputs[0].session(token) as session:
            session.give(n=1)
        return consume

    passed: list[bool] = []

    def look(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            passed.append(input.frontier.passed(ref.time))

    flow = jt.Flow("early bird", time=FROM_ZERO)
    flow.input("in").unary(build).unary(dropping(look))
    with flow.open() as run:
        run.input("in").advance_to(5)
        run.run_to_rest()
        run.input("in").send({"time": [6], "n": [2]})
        run.finish()
    assert passed == [False]


def test_columns_given_while_building_are_sent() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        with token, info.outputs[0].session(token) as session:
            session.give(n=[1])
        return consume

    flow = jt.Flow("early bird", time=FROM_ZERO)
    flow.output("out", flow.input("in").unary(build, name="early"))
    assert stamped(flow.run({"in": {"time": []}}, workers=2, seed=3)["out"]) == [(0, 1), (0, 1)]


def test_a_time_of_another_scope_is_refused_by_name() -> None:
    def plain_time(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                output.session(ref, time=5).give(batch)

        return step

    flow = jt.Flow("loop")

    def body(inner: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        named = inner.unary(plain_time, name="plain")
        return named, named

    flow.output("out", flow.input("in").iterate(body))
    with pytest.raises(jt.errors.TimeError, match="Product"):
        flow.run({"in": {"time": [1], "n": [1]}})
