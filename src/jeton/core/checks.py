"""Checks of what users pass in, and the words in which a wrong value is described."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jeton.core.errors import GraphError


def described(value: object) -> str:
    """A wrong value, for an error message: short ones as they are, others by their type.

    >>> described(["item"]), described(None), described(dict.fromkeys(range(100)))
    ("['item'] (a list)", 'None', 'a dict')
    """
    if value is None or isinstance(value, bool):
        return repr(value)
    kind = type_name(value)
    plain = isinstance(value, int | float | str | bytes | list | tuple)
    text = repr(value) if plain else ""
    return f"{text} ({kind})" if 0 < len(text) <= 40 else kind


def type_name(value: object) -> str:
    """A value's type with an article, and with the package that it comes from.

    >>> type_name(3), type_name("x"), type_name(GraphError("x"))
    ('an int', 'a str', 'a jeton.GraphError')
    """
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    name = kind.__name__ if package in ("builtins", "__main__") else f"{package}.{kind.__name__}"
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """A question after the one of ``known`` that looks like ``name``, or nothing.

    >>> suggestion("bid", ["bids", "people"])
    ": did you mean 'bids'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def require_name(name: Any, what: str) -> str:
    """Refuse a name that is not text, or is empty.

    >>> require_name(3, "an input")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: the name of an input is text, not 3 (an int)
    """
    if not isinstance(name, str):
        raise GraphError(f"the name of {what} is text, not {described(name)}")
    if not name:
        raise GraphError(f"the name of {what} is empty: choose one")
    return name


def require_one_of(value: Any, what: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices.

    >>> require_one_of("begin", "start=", ["earliest", "latest"])
    Traceback (most recent call last):
    jeton.core.errors.GraphError: start= is 'earliest' or 'latest', not 'begin' (a str)
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise GraphError(f"{what} is {', '.join(others)} or {last}, not {described(value)}")


def require_function(value: Any, what: str, example: str) -> None:
    """Refuse a value that cannot be called.

    >>> require_function(3, "a callback", "print")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: a callback needs a function, such as print, not 3 (an int)
    """
    if not callable(value):
        raise GraphError(f"{what} needs a function, such as {example}, not {described(value)}")


def require_step(value: Any, signature: str) -> None:
    """Refuse what a build function returned, if it cannot be called.

    >>> require_step(None, "step(input, output)")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: build(token, info) has to return a function, ..., not None
    """
    if not callable(value):
        raise GraphError(
            f"build(token, info) has to return a function, {signature}, not {described(value)}"
        )


def require_workers(workers: Any) -> int:
    """Refuse a number of workers that is not a whole number from 1 on.

    >>> require_workers(0)
    Traceback (most recent call last):
    jeton.core.errors.GraphError: a flow needs at least one worker, not workers=0
    """
    if isinstance(workers, bool) or not hasattr(workers, "__index__"):
        raise GraphError(f"workers= is a whole number, not {described(workers)}")
    if workers < 1:
        raise GraphError(f"a flow needs at least one worker, not workers={workers}")
    return int(workers)


def require_tables(inputs: Any, names: tuple[str, ...], what: str) -> None:
    """Refuse inputs that are not a dictionary with a table, or similar, for each name.

    >>> require_tables([1, 2], ("bids",), "table")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: ... not [1, 2] (a list): pass {'bids': …}
    """
    if not isinstance(inputs, Mapping):
        example = ", ".join(f"{name!r}: …" for name in names)
        raise GraphError(
            f"the inputs are a dictionary with a {what} for each of them, not "
            f"{described(inputs)}: pass {{{example}}}"
        )
    if len(inputs) > 1 and len(names) == 1 and names[0] not in inputs:
        given = ", ".join(map(repr, inputs))
        raise GraphError(
            f"the inputs are a dictionary with a {what} for each of them, and {given} look like "
            f"columns: pass {{{names[0]!r}: …}}"
        )
