"""Errors of Spark's, and how those of user code are found in them again.

A worker's exception reaches the driver as text inside a Java exception, which PySpark turns into
one of its own classes. Here that step is extended: a text with the mark of a known failure becomes
the user's exception again. Everything in this module relies on parts of PySpark that it does not
promise. Where they are missing or different, Spark's own exception is raised as ever, and its text
begins, as far as that is in our hands, with what went wrong.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any, Final

from jeton.cluster.failures import Failure, find
from jeton.core.errors import JetonError

log = logging.getLogger(__name__)

_INSTALLED: Final = "_jeton_installed"
_CAUSE: Final = "_jeton_cause"
"""What was an exception's cause before it was raised without."""


def hide_traceback() -> None:
    """Have PySpark's worker pass on the text of its next error without its own traceback.

    The process ends with that error, so that no other task is concerned.
    """
    os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def install() -> bool:
    """Have PySpark raise the exceptions of user code itself; tells whether that is possible.

    >>> install(), install()
    (True, True)
    """
    try:
        from pyspark.errors.exceptions import captured

        if not hasattr(captured, _INSTALLED):
            convert = captured.convert_exception
            made = captured.StreamingQueryException.__init__
            captured.convert_exception = _converting(convert)
            captured.StreamingQueryException.__init__ = _with_cause(made)  # type: ignore[method-assign]
            captured.capture_sql_exception = _chaining(captured.capture_sql_exception)
            # It wraps what Py4J calls; each new session does so again.
            captured.install_exception_handler()
            setattr(captured, _INSTALLED, True)
    except (ImportError, AttributeError) as error:
        log.info("errors of user code are shown as Spark shows them: %s", error)
        return False
    return True


def cancel_stage(context: Any, stage: int, failure: Failure) -> None:
    """Have Spark give a stage up, instead of running it three times more to no avail."""
    try:
        context._jsc.sc().cancelStage(stage, failure.text)
    except Exception as error:
        # Then the next attempt is told by the driver that it is of no use.
        log.info("stage %d could not be cancelled: %s", stage, error)


def _converting(original: Any) -> Any:
    """PySpark's function that makes a Python exception of a Java one, and what is added to it."""

    @functools.wraps(original)
    def convert(java: Any) -> Any:
        converted = original(java)
        if type(converted).__name__ == "StreamingQueryException":
            # Users expect this class; it has the cause.
            return converted
        return _cause_of(converted) or converted

    return convert


def _chaining(original: Any) -> Any:
    """PySpark's wrapper around calls of Java, which raises ``from None``: give the cause back."""

    @functools.wraps(original)
    def capture(function: Any) -> Any:
        captured = original(function)

        @functools.wraps(captured)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return captured(*args, **kwargs)
            except Exception as error:
                cause = getattr(error, _CAUSE, None)
                if cause is not None:
                    error.__cause__ = cause
                raise

        return call

    return capture


def _with_cause(original: Any) -> Any:
    """The constructor of a streaming query's exception, which then begins with the cause."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        cause = _cause_of(self)
        if cause is not None:
            notes = "\n".join(getattr(cause, "__notes__", ()))
            first, *_ = str(self._desc).splitlines() or [""]
            self._desc = f"{cause}\n\n{notes}\n\n{first}"
            self.__cause__ = cause
            setattr(self, _CAUSE, cause)

    return init


def _cause_of(converted: Any) -> JetonError | None:
    """The failure that an exception of PySpark's comes from, as an exception."""
    # Causes went through the same conversion.
    cause = getattr(converted, "_cause", None)
    if isinstance(cause, JetonError):
        return cause
    failure = find(str(getattr(converted, "_desc", "")))
    if failure is None:
        return None
    error = failure.exception()
    setattr(error, _CAUSE, error.__cause__)
    return error
