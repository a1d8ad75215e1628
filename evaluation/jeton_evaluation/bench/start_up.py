"""Start-up: seconds from a new Python process to the first rows, and to those of a second flow.

Each column has its own part: the import, then the session, then the first rows, then those of the
next flow. A user waits for the sum of the first three. The start of the interpreter is not in it.
Each case runs in a process of its own: windows in process, of a DataFrame, and of a long-lived
query; and the DataFrame through a `mapInArrow` without Jeton. Every process runs twice: with an
empty folder for compiled loops, so that Numba compiles all that the flow needs, and with the folder
that the first has filled. The second is what a user sees, after `make setup` or `jeton compile`.
All of it takes some five minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from jeton_evaluation.bench.harness import Line, OptionError, Rounds, Say, Table, command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Lap: TypeAlias = Callable[[str], None]
"""Called with a name, at the end of what it names."""

ROWS: Final = 1_000
TABLE = Table(
    {
        "case": "case:<12",
        "loops": "loops:<10",
        "import": "import:>8.2f",
        "session": "session:>9.2f",
        "first rows": "first:>12.2f",
        "of the next flow": "second:>18.2f",
    }
)


def run(
    say: Say,
    rounds: Rounds = 3,
    only: Annotated[str, "cases that begin like this"] = "",
) -> Iterator[Line]:
    """Measure each case in new processes."""
    # Not at the top: the processes that are measured import this module.
    from tqdm import tqdm

    chosen = [case for case in CASES if case.startswith(only)]
    if not chosen:
        raise OptionError(f"no case begins with {only!r}: there are {', '.join(CASES)}")
    say("seconds, in a new process\n" + TABLE.head)
    for case in chosen:
        laps: dict[str, list[Line]] = {"compiled": [], "loaded": []}
        for _ in tqdm(range(rounds), case, unit="round", disable=None, leave=False):
            with TemporaryDirectory() as folder:
                for seen in laps.values():
                    seen.append(measured(case, Path(folder)))
        for loops, seen in laps.items():
            line = {"case": case, "loops": loops}
            line |= {name: median(each[name] for each in seen) for name in seen[0]}
            say(TABLE.row({"session": 0.0} | line))
            yield line


main = command(run)


def measured(case: str, compiled: Path) -> Line:
    """The laps of a case in a new process, whose compiled loops are in a folder."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __spec__.name, case],
        env={
            **os.environ,
            "NUMBA_CACHE_DIR": str(compiled),
            "PYSPARK_PYTHON": sys.executable,
            "JETON_INSPECT": "0",
        },
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the case {case!r} failed:\n{done.stderr[-4000:]}")
    found: Line = json.loads(done.stdout.splitlines()[-1])
    return found


def windows() -> Any:
    """The flow of all cases: means of a key's windows."""
    import jeton as jt

    flow = jt.Flow("start-up")
    keyed = flow.input("rows", schema={"key": int, "value": float}).key_by("key")
    flow.output("means", keyed.tumbling(100).mean("value"))
    return flow


def columns() -> dict[str, list[Any]]:
    """Rows of ten keys."""
    numbers = range(ROWS)
    return {
        "time": list(numbers),
        "key": [number % 10 for number in numbers],
        "value": [number / 2 for number in numbers],
    }


def in_process(lap: Lap) -> None:
    """Windows of two workers in this process."""
    import jeton

    lap("import")
    assert jeton.__version__
    for name in ("first", "second"):
        assert windows().run({"rows": columns()}, workers=2)["means"].num_rows
        lap(name)


def frame_of(spark: SparkSession) -> DataFrame:
    """The rows as a DataFrame."""
    rows = list(zip(*columns().values(), strict=True))
    return spark.createDataFrame(rows, "time long, key long, value double")


def on_spark(lap: Lap) -> None:
    """Windows of a DataFrame."""
    from jeton.spark.session import local_session

    lap("import")
    with local_session(workers=2) as spark:
        lap("session")
        for name in ("first", "second"):
            means = windows().on_spark({"rows": frame_of(spark)}, workers=2)["means"]
            assert means.collect()
            lap(name)


def map_in_arrow(lap: Lap) -> None:
    """The same DataFrame through Python and back, without Jeton."""
    from pyspark.sql import SparkSession

    lap("import")
    with SparkSession.builder.master("local[2]").getOrCreate() as spark:
        lap("session")
        for name in ("first", "second"):
            frame = frame_of(spark).repartition(2, "key")
            assert frame.mapInArrow(lambda batches: batches, frame.schema).collect()
            lap(name)


def start(lap: Lap) -> None:
    """Windows of a query that goes on."""
    from jeton.connectors import sinks, sources
    from jeton.spark.session import local_session

    lap("import")
    with local_session(workers=2) as spark:
        lap("session")
        for name in ("first", "second"):
            came = Event()
            query = windows().start(
                spark,
                sources={"rows": sources.Rate(10_000, lambda n: {"key": n % 10, "value": n / 2})},
                sinks={"means": sinks.Callback(lambda table, came=came: came.set())},
                workers=2,
            )
            with query:
                assert came.wait(300)
                lap(name)


CASES: Final = {
    "in process": in_process,
    "mapInArrow": map_in_arrow,
    "on_spark": on_spark,
    "start": start,
}


def in_new_process(case: str) -> None:
    """Run a case, and print the seconds of its laps as JSON."""
    laps, last = {}, perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = perf_counter()
        laps[name], last = now - last, now

    CASES[case](lap)
    print(json.dumps(laps))


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        in_new_process(sys.argv[1])
