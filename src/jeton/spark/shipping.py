"""Flows on their way to executors: pickled, like every PySpark function.

A function that uses a lock, a connection or a Spark session cannot be pickled. PySpark's error for
this does not say which function of which operator it is, nor which variable; this one does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jeton.core.checks import type_name
from jeton.core.errors import GraphError, summary
from jeton.core.source_lines import SourceLine
from jeton.spark.internals import dumps_by_value

if TYPE_CHECKING:
    from types import FunctionType

    from jeton.dataflow.flow import Flow


def require_picklable(flow: Flow) -> None:
    """Refuse a flow with an operator that cannot be sent to workers, and name the variable.

    >>> import threading, jeton as jt
    >>> lock, flow = threading.Lock(), jt.Flow("shared")
    >>> flow.output("n", flow.input("n").filter(lambda batch: lock.locked()))
    >>> require_picklable(flow)
    Traceback (most recent call last):
    jeton.core.errors.GraphError: ... uses 'lock', a _thread.lock, which cannot be pickled ...
    """
    for plan in flow.operators:
        error = _refused(plan.build)
        if error is None:
            continue
        found = _culprit(plan.build, set())
        cause = summary(error).splitlines()[0]
        if found is None:
            raise GraphError(f"the operator cannot be sent to workers: {cause}").located(
                operator=plan.name, line=plan.defined
            ) from error
        function, variable, value = found
        code = function.__code__
        raise GraphError(
            f"the function {function.__name__} cannot be sent to workers: it uses {variable!r}, "
            f"{type_name(value)}, which cannot be pickled ({cause}). Make it inside the function, "
            "or in the build function of an operator, which runs on each worker"
        ).located(
            operator=plan.name,
            line=SourceLine(code.co_filename, code.co_firstlineno).with_code(),
        ) from error


@contextmanager
def shipping(flow: Flow) -> Iterator[None]:
    """If PySpark cannot pickle a flow in this block, say which variable is the reason."""
    try:
        yield
    except Exception:
        require_picklable(flow)
        raise


def _refused(value: Any) -> Exception | None:
    """The reason why a value cannot be pickled, if it cannot."""
    try:
        dumps_by_value(value)
    except Exception as error:
        return error
    return None


def _culprit(value: Any, seen: set[int]) -> tuple[FunctionType, str, Any] | None:
    """The function, its variable and the value that cannot be pickled, as deep as can be seen."""
    for function in _functions(value):
        if id(function) in seen:
            continue
        seen.add(id(function))
        for name, used in _variables(function):
            if _refused(used) is not None:
                return _culprit(used, seen) or (function, name, used)
    return None


def _functions(value: Any) -> Iterator[FunctionType]:
    """The Python functions that a value is, or consists of."""
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _functions(part)
    elif hasattr(value, "__code__") and hasattr(value, "__globals__"):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _functions(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _functions(part)


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function uses from outside, which are pickled with it."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
