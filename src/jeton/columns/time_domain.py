"""The time domain of a flow: whether its times are integers or timestamps, and in which unit.

A flow converts timestamps to its unit where they come in, so that it means the same on pandas'
nanoseconds, Spark's microseconds and Parquet's milliseconds. The domain is fixed by whichever comes
first: a declared time column, an integer or a duration given to an operator, or the first data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from jeton.columns.durations import in_unit, is_duration, is_number
from jeton.columns.time_units import (
    ANY,
    INTEGER,
    is_timestamp,
    named,
    one_time,
    type_of,
    unit_of,
    unit_of_one,
    with_zone,
    zone_of,
)
from jeton.core.errors import GraphError, SnapshotError, TimeError
from jeton.core.source_lines import SourceLine, calling_line

CHOICES: Final = ("s", "ms", "us", "ns")
"""The units that a flow can have."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A part of a program that fixes the domain, and what to write there for the other one."""

    text: str
    remedy: str = ""
    line: SourceLine | None = None

    def against(self, other: str) -> str:
        """The message for a claim that something else contradicts."""
        return f"{self.text}, but {other}" + (f": {self.remedy}" if self.remedy else "")

    def __str__(self) -> str:
        """The claim, and the line that makes it."""
        return self.text if self.line is None else f"{self.text} ({self.line})"


_ONE_KIND = (
    "give all of them a zone (pa.timestamp('us', 'UTC') in a schema, 'timestamp' in Spark), or "
    "none (datetime in a schema, 'timestamp_ntz' in Spark)"
)


class TimeDomain:
    """The knowledge of a flow's times while it is built.

    >>> domain = TimeDomain("ms")
    >>> domain.length("10s", "tumbling({})", "size")
    10000
    >>> domain.length(30, "session_window({})", "gap")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: session_window(30) has an integer gap, but tumbling('10s') has a \
duration as its size (...): write session_window('30s')
    """

    def __init__(self, unit: str = "us") -> None:
        if unit not in CHOICES:
            raise GraphError(f"a flow's unit is one of {CHOICES}, not {unit!r}")
        self.unit = unit
        """The unit of timestamps inside the flow."""
        self.stamps: bool | None = None
        """Whether times are timestamps; ``None`` while that is not known."""
        self.full: str | None = None
        """The unit with its zone, or ``integer``, once inputs' declarations say so."""
        self.claim: Claim | None = None

    @property
    def known(self) -> str | None:
        """The unit of batches' times, if that is known with its zone."""
        return INTEGER if self.stamps is False else self.full

    @property
    def type(self) -> pa.DataType:
        """The type of columns with times of the flow; ``pa.null()`` while it is not known."""
        return pa.null() if self.known is None else type_of(self.known)

    def length(self, value: Any, call: str, what: str) -> int:
        """A size, gap, lateness or similar as an integer; zero fits both domains.

        ``call`` is the call that it is given to, with ``{}`` in its place.
        """
        shown = call.format(repr(value))
        if is_number(value):
            if value:
                remedy = f"write {call.format(repr(f'{value}s'))}"
                self._fix(False, Claim(f"{shown} has an integer {what}", remedy, calling_line()))
            return int(value)
        if not is_duration(value):
            raise GraphError(
                f"the {what} of {shown} cannot be {value!r}: pass an integer where times are "
                "integers, and a duration, such as '30s', where they are timestamps"
            )
        length = in_unit(value, self.unit, f"the {what} of {shown}")
        self.require_stamps(f"{shown} has a duration as its {what}")
        return length

    def require_stamps(self, text: str) -> None:
        """Fix the domain to timestamps, for a reason."""
        remedy = "give it an integer, in the unit of the time column"
        self._fix(True, Claim(text, remedy, calling_line()))

    def require_zone(self, zone: str | None, call: str) -> None:
        """Refuse windows in a zone, if times are known to have none.

        >>> domain = TimeDomain()
        >>> domain.declare("rows", pa.timestamp("us"))
        >>> domain.require_zone("Europe/Berlin", "tumbling('1 day', zone='Europe/Berlin')")
        Traceback (most recent call last):
        jeton.core.errors.GraphError: tumbling('1 day', zone='Europe/Berlin') needs times with a ...
        """
        if zone is not None and self.full is not None and zone_of(self.full) is None:
            raise GraphError(
                f"{call} needs times with a time zone, which those of this flow are declared "
                "without: leave zone= out, or give the time column a zone"
            )

    def declare(self, name: str, kind: pa.DataType) -> None:
        """Take note of the type of an input's time column, as its schema declares it."""
        unit = unit_of(kind)
        if unit is None:
            raise GraphError(
                f"the time column of input {name!r} is declared as {kind}: times are integers, "
                "timestamps or dates"
            )
        self._fix(unit != INTEGER, Claim(says(name, unit)))
        if unit == INTEGER:
            self.full = INTEGER
        elif self.full is None:
            self.full = with_zone(self.unit, zone_of(unit))
        elif (zone_of(unit) is None) != (zone_of(self.full) is None):
            raise GraphError(
                f"{says(name, unit)}, but those of other inputs are {named(self.full)}, and the "
                "two cannot be compared: give all of them a zone, or none"
            )

    def _fix(self, stamps: bool, claim: Claim) -> None:
        if self.claim is None:
            self.stamps, self.claim = stamps, claim
        elif self.stamps is not stamps:
            if claim.remedy:
                raise GraphError(claim.against(str(self.claim)))
            raise GraphError(replace(self.claim, text=str(self.claim)).against(claim.text))


class Units:
    """The unit of all times of a worker: from the flow, its inputs, or its peers."""

    __slots__ = ("_heard", "_zone_fixed", "domain", "unit")

    def __init__(self, domain: TimeDomain | None = None) -> None:
        self.domain = domain or TimeDomain()
        self.unit = self.domain.known
        self._heard: str | None = None
        self._zone_fixed = self.unit is not None

    def fix(self, unit: str, name: str) -> None:
        """Take the zone of an input's times as that of the flow, if it has none yet."""
        self.admit(unit, name)
        self._zone_fixed = True

    def admit(self, unit: str, name: str) -> str:
        """The unit to which times in ``unit``, which come in by an input, are to be converted."""
        domain = self.domain
        stamps = unit != INTEGER
        if domain.stamps is not None and domain.stamps is not stamps:
            assert domain.claim is not None
            declared, _, kind = domain.claim.text.partition(" are ")
            if declared == says(name, unit).partition(" are ")[0]:
                raise TimeError(f"{declared} are declared as {kind}, but it got {named(unit)}")
            claim = replace(domain.claim, text=str(domain.claim))
            raise TimeError(claim.against(says(name, unit)))
        target = with_zone(domain.unit, zone_of(unit)) if stamps else INTEGER
        if self.unit is None:
            if self._heard is not None and named(self._heard) != named(target):
                raise TimeError(f"{says(name, unit)}, but other times are {named(self._heard)}")
            self.unit = target
        elif self.unit != target:
            self._refuse_mixture(target, says(name, unit))
        return self.unit

    @property
    def announced(self) -> str | None:
        """The unit for other workers to hear of, which need not know the zone."""
        if self.unit is None or zone_of(self.unit) is None:
            return self.unit
        return with_zone(self.unit, ANY)

    def hear(self, unit: str) -> None:
        """Take note of the unit that another worker has announced, which must be that of all."""
        if self.unit is not None and named(self.unit) != named(unit):
            raise TimeError(
                f"times of another worker are {named(unit)}, but those of this one are "
                f"{named(self.unit)}"
            )
        # A relay may have no times of its own, and passes only the latest unit on.
        if self._heard is not None and named(self._heard) != named(unit):
            raise TimeError(
                f"times of one worker are {named(self._heard)}, but those of another one are "
                f"{named(unit)}"
            )
        self._heard = unit

    def learn(self, unit: str) -> None:
        """Take note of the unit of times that came from a peer, which must be that of all."""
        if self.unit is None:
            self.unit = unit
        elif self.unit != unit:
            self._refuse_mixture(unit, f"times from another worker are {named(unit)}")

    def restore(self, unit: str) -> None:
        """Go on with the unit that a snapshot has."""
        bare, _, zone = unit.partition(" ")
        if unit != INTEGER and bare != self.domain.unit:
            raise SnapshotError(
                f"the snapshot has times in {bare}, this flow has {self.domain.unit}: go on with "
                f"jt.Flow(…, unit={bare!r})"
            )
        if self.unit is None:
            # Earlier releases did not store which zone it was.
            self.unit = with_zone(unit, "UTC") if zone == ANY else unit

    def time(self, value: Any, name: str) -> Any:
        """A time that a user gives to an input: a timestamp in this unit, all else unchanged."""
        if isinstance(value, str):
            raise TimeError(
                f"the time of input {name!r} is text, {value!r}: pass an integer or a timestamp, "
                "such as datetime(2026, 1, 31, 12)"
            )
        if not is_timestamp(value):
            return value
        return one_time(value, self.admit(unit_of_one(value), name), f"the time of input {name!r}")

    def _refuse_mixture(self, unit: str, text: str) -> None:
        """Refuse a second unit, but for another zone where the flow's own is declared."""
        assert self.unit is not None
        if named(unit) != named(self.unit):
            message = f"{text}, but other times of this flow are {named(self.unit)}"
            raise TimeError(message if INTEGER in (unit, self.unit) else f"{message}: {_ONE_KIND}")
        if not self._zone_fixed:
            raise TimeError(
                f"{text}, in {zone_of(unit)}, but others are in {zone_of(self.unit)}: declare the "
                "time columns, flow.input(…, schema=…), so that outputs have the first one's zone"
            )


def says(name: str, unit: str) -> str:
    """A sentence about the times of an input."""
    return f"the times of input {name!r} are {named(unit)}"
