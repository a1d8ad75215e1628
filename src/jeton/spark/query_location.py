"""Homes: where streaming queries keep what they must not forget, and what else they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyarrow import fs as arrow_fs
from pyspark.sql import SparkSession

from jeton.core.errors import GraphError
from jeton.spark.query_log import QueryLog
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import file_system

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
class Home:
    """Where a query's log is, and the state of its flows.

    >>> home = Home("/data/checkpoint")
    >>> home.path("live counts")
    '/data/checkpoint/jeton/live_counts'
    >>> Home("/data/checkpoint", "/fast", "7e1c").path("live counts")
    '/fast/7e1c/live_counts'
    >>> Home("/data/checkpoint", "/fast", "7e1c").remedy("counts")
    "jeton.spark.streaming.go_back('/data/checkpoint', flow='counts', state='/fast')"
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
        fs, root = file_system(self.root)
        found = fs.get_file_info(arrow_fs.FileSelector(root, allow_not_found=True))
        return {info.base_name: Checkpoints(info.path, fs) for info in found if not info.is_file}

    def remedy(self, flow: str) -> str:
        """The call that mends what can be mended."""
        where = f"{self.checkpoint!r}, flow={flow!r}"
        if self.state is not None:
            where += f", state={self.state!r}"
        return f"jeton.spark.streaming.go_back({where})"


@dataclass(frozen=True)
class Running:
    """A query that runs now."""

    home: Home
    sink: str = ""
    """What Spark calls the sink."""
    mode: str = "Append"
    first_offsets: Callable[[], Sequence[str | None]] = tuple
    """Where each of the sources began, as far as they can tell."""


def running(spark: SparkSession, query: str, state: str | None) -> Running:
    """What is to be known of a query that runs in a session."""
    found: Any = spark.streams.get(query)
    if found is None:
        raise GraphError(f"query {query} is not active in this session")
    inside = found._jsq.streamingQuery()
    home = Home(str(inside.resolvedCheckpointRoot()), state, query)

    def first_offsets() -> list[str | None]:
        sources = inside.sources()
        return [_first_offset(sources.apply(at)) for at in range(sources.size())]

    return Running(home, inside.sink().toString(), inside.outputMode().toString(), first_offsets)


def _first_offset(source: Any) -> str | None:
    try:
        return str(source.initialOffset().json())
    except Py4JError:
        # Sources of the older kind do not tell.
        return None


def skips_what_it_has(sink: str) -> bool:
    """Whether a sink takes no micro-batch a second time, so that Spark does not even run it.

    >>> skips_what_it_has("FileSink[/data/out]"), skips_what_it_has("MemorySink")
    (True, False)
    """
    return sink.startswith("FileSink")
