"""The coordinator's commands and answers, where frames are not as they should be."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from jeton.cluster.coordinator import Coordinator
from jeton.errors import ProtocolError
from jeton.runtime.commands import Command, Stop


def test_answers_of_unknown_workers_are_refused() -> None:
    coordinator = Coordinator(workers=2)
    for worker in (2, -1):
        with pytest.raises(ProtocolError, match=f"worker {worker} has answered, but there are 2"):
            coordinator.gather(worker, {"kind": "done", "number": 1})
    assert coordinator.gather(0, {"kind": "done", "number": 1}) is None
    assert coordinator.unanswered("done", Stop(number=1)) == [1]
    answers = coordinator.gather(1, {"kind": "done", "number": 1})
    assert answers is not None
    assert len(answers) == 2


def test_two_commands_cannot_have_one_kind() -> None:
    with pytest.raises(TypeError, match=r"kind 'stop' already, jeton.*\.Stop: give .*Mine"):

        @dataclass(frozen=True, kw_only=True)
        class Mine(Command):
            kind = "stop"

    assert isinstance(Command.from_json({"kind": "stop", "number": 1}), Stop)


def test_a_command_may_be_defined_again() -> None:
    """As in a cell of a notebook: then the latest counts."""
    made = [defined(), defined()]
    assert type(Command.from_json({"kind": "defined again"})) is made[1]


def defined() -> type[Command]:
    @dataclass(frozen=True, kw_only=True)
    class Again(Command):
        kind = "defined again"

    return Again
