"""The conductor alone: attempts that overtake each other, and workers that stay or leave."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import jeton as jt
from jeton.spark.checkpoints import Checkpoints
from jeton.spark.conductor import Conductor, Rules
from jeton.spark.control import Control


class Tasks:
    """What the tasks of one attempt say, without a Spark around them."""

    def __init__(self, conductor: Conductor, number: int, held: Sequence[Any]) -> None:
        self.ends = []
        for rank in range(len(held)):
            here, there = socket.socketpair()
            conductor.take_over(rank, number, there)
            self.ends.append(Control(here))
        self.held = held

    def say(self, kind: str, **what: Any) -> list[Any]:
        for rank, end in enumerate(self.ends):
            end.send(kind, **{name: value[rank] for name, value in what.items()})
        return [end.receive() for end in self.ends]

    def begin(self, batch: int, stage: int) -> dict[str, Any]:
        count = len(self.ends)
        told: dict[str, Any] = {
            "workers": count,
            "stage": stage,
            "query": "q",
            "run": "r",
            "batch": batch,
        }
        same = {name: [value] * count for name, value in told.items()}
        [(answer, _), *_] = self.say("begin", held=self.held, **same)
        return dict(answer)

    def commit(self) -> str:
        parts = [{"worker": rank, "states": []} for rank in range(len(self.ends))]
        [(answer, _), *_] = self.say("part", part=parts)
        return str(answer["kind"])

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
def conductor(tmp_path: Path) -> Conductor:
    flow = jt.Flow("alone")
    flow.output("out", flow.input("r"))
    rules = Rules(allow_removed=(), keep=2, together=False)
    return Conductor(flow, "plan", rules, lambda _: str(tmp_path), lambda *_: None)


def test_an_attempt_that_was_overtaken_cannot_commit(conductor: Conductor, tmp_path: Path) -> None:
    slow, quick, next_one = (Tasks(conductor, number, [None, None]) for number in (1, 2, 3))
    assert slow.begin(batch=0, stage=5)["epoch"] == 1
    assert quick.begin(batch=0, stage=5)["epoch"] == 2
    assert slow.commit() == "failed"
    assert quick.commit() == "part"
    assert next_one.begin(batch=1, stage=6)["restore"] == 0
    # Spark has gone on, so that what it had before does not count any more.
    assert quick.commit() == "failed"
    assert Checkpoints(tmp_path / "alone").committed() == [(0, 2)]
    for tasks in (slow, quick, next_one):
        tasks.close()


@pytest.mark.parametrize(
    ("held", "live"),
    [
        ([[0, 1, 2, 1], [0, 1, 2, 0]], True),
        ([[0, 1, 2, 1], None], False),
        ([[0, 1, 2, 1], [0, 1, 2, 1]], False),
        ([[0, 1, 2, 1], [0, 2, 2, 0]], False),
        ([[1, 1, 2, 1], [1, 1, 2, 0]], False),
        ([[0, 1, 3, 1], [0, 1, 3, 0]], False),
    ],
    ids=["all", "one is new", "one twice", "of two epochs", "of another batch", "of three"],
)
def test_workers_go_on_only_if_all_are_there(
    conductor: Conductor, held: list[Any], live: bool
) -> None:
    first = Tasks(conductor, 1, [None, None])
    first.begin(batch=0, stage=1)
    assert first.commit() == "part"
    second = Tasks(conductor, 2, held)
    orders = second.begin(batch=1, stage=2)
    assert orders["live"] == live
    assert orders["numbers"] == ([1, 0] if live else [0, 1])
    first.close()
    second.close()


def test_all_tasks_are_let_go_if_one_leaves(conductor: Conductor) -> None:
    tasks = Tasks(conductor, 1, [None, None])
    tasks.begin(batch=0, stage=1)
    tasks.ends[0].close()
    assert tasks.ends[1].receive() is None
    tasks.ends[1].close()


def test_inputs_advance_to_what_the_furthest_worker_has_seen(conductor: Conductor) -> None:
    tasks = Tasks(conductor, 1, [None, None, None])
    tasks.begin(batch=0, stage=1)
    answers = tasks.say("fed", floors=[{"r": 9}, {}, {"r": 5}])
    assert [answer["floors"] for answer, _ in answers] == [{"r": 9}] * 3
    tasks.close()
