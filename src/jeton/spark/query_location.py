"""Query locations: where a streaming query keeps its log and the state of its flows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from jeton.core.errors import GraphError
from jeton.spark.query_log import QueryLog
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files

FOLDER: Final = "jeton"
"""Where flows keep their state inside a query's checkpoint location."""
LONGEST: Final = 200
"""Bytes in the name of a flow's folder."""


def folder_of(flow: str) -> str:
    """The name of a flow's own folder among those of other flows.

    >>> folder_of("live counts")
    'live_counts'
    >>> folder_of("..")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: a flow called '..' has no folder for its state: ...
    """
    folder = re.sub(r"[^\w.-]", "_", flow)
    if not folder.strip(".") or len(folder.encode()) > LONGEST:
        raise GraphError(
            f"a flow called {flow!r} has no folder for its state: give it a name with letters, of "
            f"at most {LONGEST} bytes"
        )
    return folder


@dataclass(frozen=True)
class QueryLocation:
    """Where a query's log is, and the state of its flows.

    >>> location = QueryLocation("/data/checkpoint")
    >>> location.path("live counts")
    '/data/checkpoint/jeton/live_counts'
    >>> QueryLocation("/data/checkpoint", "/fast", "7e1c").path("live counts")
    '/fast/7e1c/live_counts'
    >>> QueryLocation("/data/checkpoint", "/fast", "7e1c").remedy("counts")
    "jeton.spark.streaming.roll_back('/data/checkpoint', flow='counts', state='/fast')"
    """

    checkpoint: str
    """The query's checkpoint location."""
    state: str | None = None
    """Where else the state is, if it is not there."""
    query: str = ""

    @property
    def log(self) -> QueryLog:
        """Spark's log of the query."""
        return QueryLog(self.checkpoint)

    @property
    def root(self) -> str:
        """The folder that has a folder for each flow."""
        if self.state is None:
            return f"{self.checkpoint.rstrip('/')}/{FOLDER}"
        return f"{self.state.rstrip('/')}/{self.query}"

    def path(self, flow: str) -> str:
        """Where a flow's state is."""
        return f"{self.root}/{folder_of(flow)}"

    def stores(self) -> dict[str, Checkpoints]:
        """The state of all flows that have some here, by the names of their folders."""
        files = Files(self.root)
        return {name: Checkpoints(f"{self.root}/{name}") for name in files.folders(files.root)}

    def remedy(self, flow: str) -> str:
        """The call that mends what can be mended."""
        where = f"{self.checkpoint!r}, flow={flow!r}"
        if self.state is not None:
            where += f", state={self.state!r}"
        return f"jeton.spark.streaming.roll_back({where})"
