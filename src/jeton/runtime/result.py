"""Results of a run: the frontier at a probe, and the tables at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from jeton.columns import show
from jeton.core.antichain import Antichain
from jeton.core.checks import suggestion
from jeton.core.errors import UnknownOutput
from jeton.core.times import Time
from jeton.dataflow.ports import Input


class Probe:
    """The frontier at a location, as one worker knows it."""

    def __init__(self, port: Input) -> None:
        self._port = port

    @property
    def frontier(self) -> Antichain:
        """The least times that may still pass here."""
        return self._port.frontier

    def less_than(self, time: Time) -> bool:
        """Whether a time before ``time`` may still pass."""
        return self.frontier.less_than(time)

    def less_equal(self, time: Time) -> bool:
        """Whether ``time`` may still pass."""
        return self.frontier.less_equal(time)

    @property
    def done(self) -> bool:
        """Whether nothing more can pass."""
        return self.frontier.is_empty


class Result(Mapping[str, pa.Table]):
    """The tables of a run's outputs, and what was noticed on the way.

    >>> import jeton as jt
    >>> flow = jt.Flow("copy")
    >>> flow.output("copy", flow.input("rows"))
    >>> flow.run({"rows": {"time": [3, 12], "word": ["to", None]}})
    Output 'copy': 2 rows
     time word
    int64 string
        3 to
       12 null
    """

    def __init__(
        self,
        tables: Mapping[str, pa.Table],
        *,
        late: dict[str, int],
        leaks: list[str],
        steps: int,
        progress_batches: int,
        checks: int,
    ) -> None:
        self._tables = dict(tables)
        self.late = late
        """For each input, how many records came too late."""
        self.leaks = leaks
        """Tokens that were forgotten, with the line that retained them."""
        self.steps = steps
        """How many times a worker was stepped or something was delivered or fed."""
        self.progress_batches = progress_batches
        """How many progress batches workers sent to each other."""
        self.checks = checks
        """How many times all frontiers were checked against the truth."""

    def __getitem__(self, name: str) -> pa.Table:
        try:
            return self._tables[name]
        except KeyError:
            raise UnknownOutput(
                f"there is no output {name!r}{suggestion(str(name), self._tables)} "
                f"(there are: {', '.join(map(repr, self._tables)) or 'none'})"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __repr__(self) -> str:
        if not self._tables:
            return "Result without outputs: flow.output(name, stream) adds one"
        return "\n\n".join(
            f"Output {name!r}: {show.rows(table.num_rows)}\n{show.as_typed_text(table)}"
            for name, table in self._tables.items()
        )

    def _repr_html_(self) -> str:
        return "".join(
            show.as_html(table, f"Output {name!r}: {show.rows(table.num_rows)}")
            for name, table in self._tables.items()
        )
