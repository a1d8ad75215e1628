"""The errors of Jeton: each has a place, a time and a remedy where they are known."""

from __future__ import annotations

from typing import Any, Self

from jeton.core.source_lines import SourceLine


class JetonError(Exception):
    """Base of every error that Jeton raises on purpose.

    An error that passes through a running operator is *located*: its text then names the
    operator, the worker and the time, and below them the line of the user's own program.

    >>> error = JetonError("no such column 'prise'")
    >>> str(error.located(operator="mean", worker=1, time=12))
    "no such column 'prise' [operator 'mean', worker 1, time 12]"
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.operator: str | None = None
        self.worker: int | None = None
        self.time: Any = None
        self.moment: str | None = None
        """The time for people, as the records of the flow have it."""
        self.line: SourceLine | None = None

    def located(
        self,
        *,
        operator: str | None = None,
        worker: int | None = None,
        time: Any = None,
        moment: str | None = None,
        line: SourceLine | None = None,
    ) -> Self:
        """Fill in where the error happened, except for the parts that are known already.

        ``moment`` is the time for people.
        """
        if self.time is None:
            self.moment = moment
        known = {"operator": operator, "worker": worker, "time": time, "line": line}
        for name, value in known.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        operator = None if self.operator is None else repr(self.operator)
        parts = {"operator": operator, "worker": self.worker, "time": self.moment or self.time}
        where = [f"{name} {value}" for name, value in parts.items() if value is not None]
        text = f"{self.message} [{', '.join(where)}]" if where else self.message
        return text if self.line is None else f"{text}\n  at {self.line}"


class TokenError(JetonError):
    """A token, a token reference or a session was used in a way that it does not allow."""


class ExpiredReference(TokenError):
    """A token reference was touched after its step of the loop: it should have been retained."""


class TimeError(JetonError):
    """A time is not of the kind that the scope uses, or would go backwards."""


class GraphError(JetonError):
    """The dataflow graph cannot be built as described."""


class UnknownOutput(GraphError, KeyError):
    """A result was asked for an output that its flow does not have."""


class ZeroCycleError(GraphError):
    """A cycle of the graph does not advance times, so its frontiers could never move."""


class BatchError(JetonError):
    """Columns that do not fit together, or a column that is not there."""


class ColumnTypeError(BatchError):
    """An operation that columns of these types do not have, whatever their values."""


class MissingColumn(BatchError):
    """A column that does not exist; the message names those that do."""


class ProtocolError(JetonError):
    """Progress batches arrived twice, out of order, or do not add up."""


class SnapshotError(JetonError):
    """State that cannot be taken, or does not fit where it should be restored."""


class BudgetExceeded(JetonError):
    """State does not fit the memory budget, or what is beyond it does not fit the disk."""


class OperatorFailed(JetonError):
    """User code of an operator raised; the original exception is the ``__cause__``.

    >>> str(OperatorFailed.because(ValueError("no price")).located(operator="mean", worker=1))
    "ValueError: no price [operator 'mean', worker 1]"
    >>> OperatorFailed.because(SystemExit(3)).message
    'SystemExit(3)'
    """

    @classmethod
    def because(cls, error: BaseException, doing: str = "") -> Self:
        """An error caused by one of user code; ``doing`` is the action that raised it."""
        name, text = _name_and_text(error)
        failed = cls(f"{name}{doing and ' while '}{doing}" + (f": {text}" if text else ""))
        failed.__cause__ = error
        return failed


class PredicateFailed(OperatorFailed):
    """The predicate of ``pause_when`` raised, or did not return a mask of the rows.

    The flow is paused there, and has lost nothing: ``resume()`` lets it go on.
    """


def summary(error: BaseException) -> str:
    """An exception in one text: its type, and its message if it has one.

    >>> summary(ValueError("no price")), summary(TimeoutError())
    ('ValueError: no price', 'TimeoutError')
    """
    name, text = _name_and_text(error)
    return f"{name}: {text}" if text else name


def _name_and_text(error: BaseException) -> tuple[str, str]:
    try:
        if not isinstance(error, Exception):
            return repr(error), ""  # it has an argument rather than a message
        return type(error).__name__, str(error)
    except Exception as broken:
        return type(error).__name__, f"its text cannot be had: {broken!r}"


class FlowStalled(JetonError):
    """The dataflow came to rest while tokens are still held; the text names the holders."""


class JavaNotFoundError(JetonError):
    """There is no Java that Spark can run on; the message says how to get one."""


class UnboundedState(UserWarning):
    """State stays in memory, though there is a memory budget."""


class LeakedToken(UserWarning):
    """A token was freed by Python without having been dropped.

    Each worker shows this once for each line that retained such tokens. Python shows it by default,
    unlike a `ResourceWarning`.
    """
