"""A case: tables, a pipeline over them, and how it is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

import jeton as jt
from tests.oracle import groups, joins
from tests.oracle.duck import Oracle
from tests.oracle.steps import Shape, lasting
from tests.oracle.tables import TIME, TimeRange


@dataclass(frozen=True)
class Node:
    """A step, and the numbers of the streams that it reads."""

    step: joins.Step
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """How a case is run: what must not change its answer."""

    workers: int = 1
    seed: int | None = None
    form: str = "table"
    """The form of the input: ``table``, ``chunks``, ``polars``, ``pandas`` or ``rows``."""
    declared: bool = True
    """Whether inputs declare their columns."""
    lateness: int | None = None
    restart: int | None = None
    """After how many pieces to take a snapshot and go on with other workers, if at all."""


@dataclass(frozen=True)
class Case:
    """Tables, a pipeline and a schedule. Inputs are the first streams; each step adds its own."""

    shape: str
    tables: tuple[pa.Table, ...]
    times: TimeRange
    nodes: tuple[Node, ...]
    schedule: Schedule

    def shapes(self) -> list[Shape]:
        """The known properties of every stream."""
        found = [
            Shape(
                {field.name: field.type for field in table.schema if field.name != TIME},
                self.times.distinct,
                unit=self.unit,
            )
            for table in self.tables
        ]
        for node in self.nodes:
            found += node.step.shapes(*(found[number] for number in node.inputs))
        return found

    @property
    def ends(self) -> list[int]:
        """The streams that no step reads: the outputs."""
        read = {number for node in self.nodes for number in node.inputs}
        return [number for number in range(len(self.shapes())) if number not in read]

    def add_to(self, flow: jt.Flow, prefix: str = "") -> dict[int, jt.Stream]:
        """Add the inputs and steps to a flow; returns the streams that are its outputs."""
        late, declared = self.schedule.lateness, self.schedule.declared
        if self.unit is not None:
            flow.domain.require_stamps("the case has timestamps")
        streams: list[jt.Stream] = [
            flow.input(
                f"{prefix}in{number}",
                time=TIME,
                schema=table.schema if declared else None,
                lateness=None if late is None else lasting(flow, late),
            )
            for number, table in enumerate(self.tables)
        ]
        for node in self.nodes:
            streams += node.step.build(*(streams[number] for number in node.inputs))
        return {number: streams[number] for number in self.ends}

    def expected(self, oracle: Oracle, inputs: Sequence[pa.Table] | None = None) -> list[pa.Table]:
        """The outputs by DuckDB; raises `Refused` if that must be an error."""
        shapes = self.shapes()
        for number, table in enumerate(self.tables if inputs is None else inputs):
            oracle.load(f"s{number}", table)
        made = len(self.tables)
        for node in self.nodes:
            of = [shapes[number] for number in node.inputs]
            into = range(made, made + len(node.step.shapes(*of)))
            made = into.stop
            names = [f"s{number}" for number in node.inputs]
            oracle.follow(node.step, names, of, [f"s{number}" for number in into])
        return [oracle.table(f"s{number}", shapes[number]) for number in self.ends]

    @property
    def scale(self) -> float:
        """A bound of the absolute values of which inexact sums were made."""
        added = {
            of.column
            for node in self.nodes
            if isinstance(node.step, groups.Group | groups.Moving)
            for of in node.step.aggregates
            if of.column is not None
        }
        shapes = self.shapes()
        most, rows = 1.0, 1
        if any(name in shape.times for name in added for shape in shapes):
            most = float(max(abs(self.times.least), abs(self.times.most)))
        for table in self.tables:
            rows += table.num_rows
            # Renamed columns have the same beginnings.
            for name in [n for n in table.column_names if any(x.startswith(n) for x in added)]:
                for value in table[name].to_pylist():
                    if isinstance(value, int | float | Decimal) and math.isfinite(value):
                        most = max(most, abs(float(value)))
        return most * rows

    @property
    def unit(self) -> str | None:
        """The unit of the times, if they are timestamps."""
        unit: str | None = getattr(self.times.type, "unit", None)
        return unit

    def __str__(self) -> str:
        lines = [f"{self.shape}, times {self.times.name}, {self.schedule}"]
        for number, table in enumerate(self.tables):
            types = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
            lines += [f"  s{number} = {{{types}}}, {table.num_rows} rows"]
            lines += [f"    {row}" for row in table.to_pylist()[:40]]
        lines += [f"  {node.inputs} -> {node.step}" for node in self.nodes]
        return "\n".join(lines)
