"""Failures: the record of why a worker or the driver failed, and the exception that users get.

A failure travels as JSON: its text, and the exception itself where it can be pickled. The driver
keeps the first failure of each attempt at a stage. An error of user code is *final*: Spark would
run the stage again, so tasks of the next attempt get the same failure before any user code runs.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from jeton.core.errors import (
    BatchError,
    FlowStalled,
    GraphError,
    JetonError,
    OperatorFailed,
    TimeError,
    TokenError,
    summary,
)
from jeton.core.source_lines import raising_line, user_line
from jeton.mesh.link import PeerLost
from jeton.storage.store import StoreUnavailable

MOST_TEXT: Final = 8_000
"""Characters of a message, and of a traceback, that are passed on."""
MOST_PICKLED: Final = 24_000
"""Bytes of a pickled exception that are passed on; the text alone stands for a larger one."""
MOST_SENT: Final = 60_000
"""Bytes of a failure on its way to the driver, which takes no message that is much longer."""
MOST_KNOWN: Final = 256
"""Failures that a driver remembers."""

_FINAL: Final = (OperatorFailed, FlowStalled, GraphError, BatchError, TimeError, TokenError)
_MARK: Final = re.compile(r"\[failure ([0-9a-f]{16})\]")


class WorkerFailed(JetonError):
    """A worker failed on Spark; the text has the first cause, with its traceback."""


class QueryFailed(JetonError):
    """A long-lived query ended with an error; the text has the first cause."""


class UserError(Exception):
    """Stands for an exception of user code that cannot be pickled; it has its text."""


@dataclass(frozen=True)
class Failure:
    """Why a worker stopped.

    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError as error:
    ...     failure = Failure.of(OperatorFailed.because(error).located(operator="ratio"), worker=1)
    >>> failure.summary, failure.final
    ("ZeroDivisionError: division by zero [operator 'ratio', worker 1]", True)
    >>> failure = Failure.from_json(failure.to_json())
    >>> failure.exception().__cause__
    ZeroDivisionError('division by zero')
    """

    id: str
    worker: int | None
    """The worker that failed; none for the driver."""
    error: str
    """The class of the first cause, and its number if the operating system gave one."""
    operator: str | None
    frame: str | None
    """File and line of user code that raised it, or else of any code."""
    summary: str
    """The error, operator, worker, time, and the user's line."""
    traceback: str
    final: bool
    """Whether user code, or the flow itself, is at fault, so that it would fail again."""
    lost: bool
    """Whether it is only that another worker has gone."""
    transient: bool
    """Whether it is that files could not be read, which may succeed next time."""
    pickled: str | None
    """The exception and its cause, if they can travel."""

    @classmethod
    def of(
        cls,
        error: BaseException,
        worker: int | None = None,
        dumps: Callable[[object], bytes] = pickle.dumps,
    ) -> Failure:
        """The failure of a worker, or of the driver; the error is pickled with ``dumps``.

        >>> Failure.of(OSError("disk full")).summary
        'OSError: disk full'
        """
        shown = error if isinstance(error, JetonError) else _wrapped(error)
        if not isinstance(error, PeerLost):
            shown.located(worker=worker)
        first = _first_cause(error)
        number = first.errno if isinstance(first, OSError) else None
        line = shown.line or user_line(first) or raising_line(first)
        at_driver = worker is None
        return cls(
            id=os.urandom(8).hex(),
            worker=worker,
            error=type(first).__qualname__ + ("" if number is None else f" {number}"),
            operator=shown.operator,
            frame=None if line is None else f"{line.file}:{line.number}",
            summary=_shortened(summary(error) if at_driver else str(shown)),
            traceback=_shortened("".join(traceback.format_exception(first)).rstrip()),
            final=isinstance(shown, _FINAL) or shown.operator is not None,
            lost=isinstance(error, PeerLost),
            transient=isinstance(error, StoreUnavailable),
            pickled=None if at_driver else _pickled(shown, dumps),
        )

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """The facts by which the same failure is recognised when it comes again."""
        return self.error, self.operator, self.frame

    @property
    def text(self) -> str:
        """All of it: the summary, then the worker's traceback. The mark is how it is found."""
        return f"{self.summary}\n\n{self.note}"

    @property
    def note(self) -> str:
        """The worker's traceback, under the mark by which the failure is found in Spark's text."""
        whose = "the driver" if self.worker is None else f"worker {self.worker}"
        return f"Traceback of {whose} [failure {self.id}]:\n{self.traceback}"

    def exception(self) -> JetonError:
        """The exception itself, with the worker's traceback as a note."""
        error = self._unpickled() or WorkerFailed(self.summary)
        if error.line is not None:
            error.line = error.line.with_code()
        error.add_note(self.note)
        return error

    def _unpickled(self) -> JetonError | None:
        if self.pickled is None:
            return None
        try:
            error, cause = pickle.loads(base64.b64decode(self.pickled))
        except Exception:
            # A class that only the worker has, for instance.
            return None
        error.__cause__ = cause
        return error if isinstance(error, JetonError) else None

    def to_json(self) -> dict[str, Any]:
        """The record to send, at most `MOST_SENT` bytes as JSON."""
        value = asdict(self)
        if len(json.dumps(value)) > MOST_SENT:
            # Text that JSON makes six times as long.
            value["summary"] = _shortened(self.summary, MOST_TEXT // 3)
            value["traceback"] = _shortened(self.traceback, MOST_TEXT // 3)
        if len(json.dumps(value)) > MOST_SENT:
            value["pickled"] = None
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Failure:
        """A failure that was received."""
        return cls(**value)


class FailedBefore(JetonError):
    """An earlier attempt at this stage ended with a failure that would come again."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Failures:
    """The failures that a driver knows of.

    >>> failures = Failures()
    >>> failures.begin("plan", stage=3, epoch=1)
    >>> first, second = (Failure.of(OperatorFailed(f"{n} is odd"), worker=n) for n in (1, 3))
    >>> [failures.record("plan", 3, 1, each) is first for each in (first, second)]
    [True, True]
    >>> failures.final("plan", 3) is first, failures.final("plan", 4) is None
    (True, True)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[tuple[str, int], int] = {}
        self._first: dict[tuple[str, int], Failure] = {}
        self._known: dict[str, Failure] = {}
        """All of them by their ids, to be found in the text of an error of Spark's."""

    def begin(self, plan: str, stage: int, epoch: int) -> None:
        """An attempt at a stage begins; earlier ones no longer matter."""
        with self._lock:
            key = (plan, stage)
            self._first.pop(key, None)
            self._epochs[key] = epoch
            _forget_oldest(self._epochs)

    def record(self, plan: str, stage: int, epoch: int, failure: Failure) -> Failure:
        """A worker has failed; returns the failure that counts for all workers of the attempt."""
        with self._lock:
            self._known[failure.id] = failure
            _forget_oldest(self._known)
            key = (plan, stage)
            if self._epochs.get(key) != epoch:
                return failure
            first = self._first.get(key)
            # A worker that has gone may be how another learns of an error of user code.
            if first is None or (failure.final and not first.final):
                first = self._first[key] = failure
                _forget_oldest(self._first)
            return first

    def find(self, text: str) -> Failure | None:
        """The failure that a text of Spark's comes from, if it is known here.

        >>> failures = Failures()
        >>> failure = failures.record("plan", 3, 1, Failure.of(OperatorFailed("no"), worker=1))
        >>> failures.find(f"Job aborted. Reason: {failure.text} at …") is failure
        True
        """
        with self._lock:
            found = (self._known.get(id) for id in _MARK.findall(text))
            return next((failure for failure in found if failure is not None), None)

    def final(self, plan: str, stage: int) -> Failure | None:
        """The failure for which an attempt at a stage is bound to fail again, if there is one."""
        with self._lock:
            failure = self._first.get((plan, stage))
        return failure if failure is not None and failure.final else None


class blaming:
    """Locates errors of a source or a sink like those of operators.

    >>> with blaming("orders", "reading its source"):
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    jeton.core.errors.OperatorFailed: SystemExit(3) while reading its source [operator 'orders']
      at ...
    """

    def __init__(self, operator: str, doing: str) -> None:
        self._operator = operator
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, JetonError):
            error.located(operator=self._operator, line=user_line(error))
        elif error is not None:
            failed = OperatorFailed.because(error, self._doing)
            raise failed.located(operator=self._operator, line=user_line(error))


def _forget_oldest(kept: dict[Any, Any]) -> None:
    while len(kept) > MOST_KNOWN:
        del kept[next(iter(kept))]


def _wrapped(error: BaseException) -> JetonError:
    """An error outside of any operator: Spark's input, the network, a file."""
    failed = WorkerFailed(OperatorFailed.because(error).message).located(line=user_line(error))
    failed.__cause__ = error
    return failed


def _first_cause(error: BaseException) -> BaseException:
    """The error that others wrap: its traceback has all of theirs."""
    while isinstance(error, JetonError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _shortened(text: str, most: int = MOST_TEXT) -> str:
    """A text of bounded length: its beginning and its end, which have the error."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n…\n{text[-most // 2 :]}"


def _pickled(error: JetonError, dumps: Callable[[object], bytes]) -> str | None:
    """An exception and its cause, so that the driver can raise it with a class of its own."""
    cause = error.__cause__
    # The shorter one is for text of which each character takes several bytes.
    for most in (MOST_TEXT, MOST_TEXT // 8):
        if len(error.message) > most:
            error = copy.copy(error)
            error.message = _shortened(error.message, most)
            error.args = (error.message,)
        for stand_in in _causes(cause, most):
            data = _dumped((error, stand_in), dumps)
            if data is not None:
                return base64.b64encode(data).decode()
    return None


def _causes(cause: BaseException | None, most: int) -> Iterator[BaseException | None]:
    yield cause
    if cause is not None:
        yield UserError(_shortened("".join(traceback.format_exception_only(cause)).rstrip(), most))


def _dumped(value: object, dumps: Callable[[object], bytes]) -> bytes | None:
    try:
        data = dumps(value)
        # Some exceptions can be pickled but not made again.
        pickle.loads(data)
    except Exception:
        return None
    return data if len(data) <= MOST_PICKLED else None
