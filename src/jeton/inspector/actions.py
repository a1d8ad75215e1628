"""The buttons of the live page: which there are for a run or a query, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Protocol

from jeton.core.errors import GraphError, PredicateFailed
from jeton.runtime.monitor import Monitor

ROWS: Final = 100
"""Rows of a table that a page gets at most."""
SAMPLE: Final = 5
"""Rows of a sample from each worker."""
PATIENCE: Final = 20.0
"""Seconds that an act waits for the step that a run in this process is in."""
REST: Final = 5.0
"""Seconds that a query has to come to rest at its breakpoint, before its state is asked for."""
Arguments = Mapping[str, Any]


class Inspected(Protocol):
    """A run or a query that can be looked at; it may have methods that steer it."""

    @property
    def monitor(self) -> Monitor:
        """Looks at it every second."""
        ...


def reasons(target: Any) -> dict[str, str | None]:
    """For each button why it cannot be used with a target, or nothing if it can.

    >>> reasons(object())["checkpoint"]
    'it takes no checkpoints'
    """
    found: dict[str, str | None] = {}
    for name, method in _METHODS.items():
        found[name] = None if _method(target, method) else "it cannot be steered"
    if not _method(target, "checkpoint"):
        found["checkpoint"] = "it takes no checkpoints"
    elif getattr(target, "committer", None) is None:
        found["checkpoint"] = "it was started without checkpoint="
    workers = getattr(target, "workers", 0)
    if found["migrate"] is None and (workers if isinstance(workers, int) else len(workers)) < 2:
        found["migrate"] = "there is no other worker"
    if found["rebalance"] is not None:
        found["rebalance"] = "there is one process for all workers"
    if not getattr(target, "is_active", True):
        found.update({name: "it has ended" for name in found if name != "why"})
    return found


def act(target: Any, name: str, arguments: Arguments) -> dict[str, Any]:
    """Do what a button says; returns what there is to show."""
    if name not in _ACTS:
        raise GraphError(f"there is no button {name!r}: {sorted(_ACTS)}")
    reason = reasons(target)[name]
    if reason is not None:
        raise GraphError(f"{name}: {reason}")
    turnstile = getattr(target, "turnstile", None)
    if turnstile is None or name == "why":
        return _ACTS[name](target, arguments)
    # The thread that drives a run in this process waits until the act is done.
    with turnstile.within(PATIENCE) as inside:
        if not inside:
            raise GraphError(
                f"{name}: the run is in a step that has taken more than {PATIENCE:g} seconds: "
                "ask why"
            )
        return _ACTS[name](target, arguments)


def time_given(given: Any) -> Any:
    """A time that a user has typed: an integer or a timestamp; nothing if the field is empty.

    Programs may give an integer as it is.

    >>> time_given("12"), time_given("2024-01-01 10:00"), time_given(" "), time_given(12)
    (12, datetime.datetime(2024, 1, 1, 10, 0), None, 12)
    """
    if given is None or type(given) is int:
        return given
    if isinstance(given, str):
        text = given.strip()
        if not text:
            return None
        with suppress(ValueError):
            return int(text)
        with suppress(ValueError):
            return datetime.fromisoformat(text)
    raise GraphError(f"{given!r} is neither an integer nor a timestamp such as 2024-01-01 10:00:00")


def _method(target: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(target, name, None)
    return found if callable(found) else None


def _why(target: Any, arguments: Arguments) -> dict[str, Any]:
    answer = target.why(arguments.get("name") or None, at=time_given(arguments.get("at")))
    return {"text": str(answer), **answer.to_dict()}


def _pause_at(target: Any, arguments: Arguments) -> dict[str, Any]:
    time = time_given(arguments.get("at"))
    target.pause_at() if time is None else target.pause_at(time)
    return {"text": f"paused at {target.paused_at}"}


def _step(target: Any, arguments: Arguments) -> dict[str, Any]:
    until = time_given(arguments.get("at"))
    target.step() if until is None else target.step(until=until)
    return {"text": f"paused at {target.paused_at}"}


def _resume(target: Any, arguments: Arguments) -> dict[str, Any]:
    target.resume()
    return {"text": "resumed"}


def _checkpoint(target: Any, arguments: Arguments) -> dict[str, Any]:
    return {"text": f"checkpoint {target.checkpoint()} is committed"}


def _migrate(target: Any, arguments: Arguments) -> dict[str, Any]:
    """Move the bins of one worker to another, or rebalance if no worker is named."""
    giver, taker = (_worker_given(arguments.get(name)) for name in ("from", "to"))
    if giver is None and taker is None:
        if not _method(target, "rebalance"):
            raise GraphError("migrate: choose the worker that gives its bins, and one that takes")
        moved = target.rebalance()
        return {"text": f"{len(moved.moves)} bins have moved, with {moved.rows} rows of state"}
    placement = target.placement
    for worker in (giver, taker):
        if worker not in placement:
            raise GraphError(f"migrate: there is no worker {worker}: there are {len(placement)}")
    moves = dict.fromkeys(placement[giver], taker)
    if not moves or giver == taker:
        raise GraphError(f"migrate: worker {giver} has no bins for another worker")
    moved = target.migrate(moves, plan=_plan_given(arguments.get("plan")))
    if moved is None:
        return {"text": f"{len(moves)} bins are moving from worker {giver} to worker {taker}"}
    return {"text": f"{len(moved.moves)} bins have moved, with {moved.rows} rows of state"}


def _worker_given(text: Any) -> int | None:
    """The number of a worker, nothing if none is chosen."""
    if text in (None, ""):
        return None
    try:
        return int(text)
    except (TypeError, ValueError):
        raise GraphError(f"migrate: {text!r} is not the number of a worker") from None


def _plan_given(text: Any) -> str | int:
    """A plan of a migration: a name of one, or how many bins move at a time."""
    text = str(text or "").strip() or "all_at_once"
    return int(text) if text.isdecimal() else text


def _state(target: Any, arguments: Arguments) -> dict[str, Any]:
    name = _operator_given(arguments, "state")
    return _at_rest(target, lambda: target.state(name))


def _sample(target: Any, arguments: Arguments) -> dict[str, Any]:
    return _table(target.sample(_operator_given(arguments, "sample"), SAMPLE))


def _operator_given(arguments: Arguments, act: str) -> Any:
    if "name" not in arguments:
        raise GraphError(f'{act}: name an operator, {{"name": …}}')
    return arguments["name"]


def _in_flight(target: Any, arguments: Arguments) -> dict[str, Any]:
    return _at_rest(target, target.in_flight)


def _at_rest(target: Any, look: Callable[[], Any]) -> dict[str, Any]:
    """A table of something that rests; what is paused comes to rest first."""
    run_to_rest, await_paused = _method(target, "run_to_rest"), _method(target, "await_paused")
    if target.paused_at is not None and run_to_rest is not None:
        run_to_rest()
    elif target.paused_at is not None and await_paused is not None:
        try:
            await_paused(REST)
        except PredicateFailed:
            pass  # it rests at what `pause_when` could not judge
        except TimeoutError as error:
            raise GraphError(str(error)) from None
    return _table(look())


def _table(frame: Any) -> dict[str, Any]:
    """The first rows of a DataFrame, as text."""
    shown = frame.head(ROWS)
    return {
        "columns": [str(name) for name in shown.columns],
        "rows": [[_cell(value) for value in row] for row in shown.itertuples(index=False)],
        "total": len(frame),
    }


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_ACTS: Final[dict[str, Callable[[Any, Arguments], dict[str, Any]]]] = {
    "why": _why,
    "pause": _pause_at,
    "step": _step,
    "resume": _resume,
    "checkpoint": _checkpoint,
    "migrate": _migrate,
    "state": _state,
    "sample": _sample,
    "in_flight": _in_flight,
}
_METHODS: Final = {
    "why": "why",
    "pause": "pause_at",
    "step": "step",
    "resume": "resume",
    "checkpoint": "checkpoint",
    "migrate": "migrate",
    "rebalance": "rebalance",
    "state": "state",
    "sample": "sample",
    "in_flight": "in_flight",
}
