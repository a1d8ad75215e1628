"""`jeton run`: a flow over files, in this process or on Spark."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jeton.cli.command import FINE, BuiltIn, UsageError, add_json, print_json, say, whole_number
from jeton.cli.command import count as counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jeton.cli.flows import NamedFlow
    from jeton.cli.targets import Target
    from jeton.dataflow.flow import Flow


@dataclass(frozen=True)
class Outcome:
    """The numbers of a run."""

    workers: int | None
    """Nothing if Spark decides."""
    rows_in: int | None
    """Nothing under Spark Connect, which does not count."""
    rows_out: Mapping[str, int]
    late: int
    metrics: Mapping[str, Any]


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the files of inputs."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the file or folder with the records of an input: Parquet, CSV, JSON or Arrow",
    )
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        metavar="[NAME=]FORMAT",
        help="parquet, csv, json, ndjson or arrow: of one input or output, or of all files whose "
        "names do not say it",
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from jeton.cli.flows import add_flow

    add_flow(parser)
    add_inputs(parser)
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="where to write the rows of an output; `-` prints them, a name with a slash at its "
        "end is a folder. Without any, all outputs are printed",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    parser.add_argument(
        "--workers",
        type=whole_number("a number of workers"),
        metavar="N",
        help="number of workers (default: 1 in this process, on Spark what the cluster can run)",
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="run on Spark: local[2], spark://host:7077, yarn, k8s://…, or sc://… for Connect",
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark",
    )
    add_json(parser, "a summary of the run (rows, late, seconds, metrics)")


def _run(options: argparse.Namespace) -> int:
    from jeton.cli.flows import find_flow, require_names
    from jeton.cli.tables import named_formats, named_paths
    from jeton.cli.targets import STDOUT, Target, published_together, require_different
    from jeton.storage import store_settings
    from jeton.storage.store_settings import StoreSettings

    inputs = named_paths(options.input, "--input")
    outputs = named_paths(options.output, "--output")
    if options.json and STDOUT in outputs.values():
        raise UsageError("--json prints the summary to stdout: write the outputs to files")
    if options.conf and options.master is None:
        raise UsageError("--conf is a setting of Spark: add --master")
    settings = named_paths(options.conf, "--conf")
    store_settings.use(StoreSettings.of_spark(settings))
    named = find_flow(options.flow)
    flow = named.make()
    require_names(inputs, flow.inputs, "input", flow)
    require_names(outputs, flow.outputs, "output", flow)
    missing = [name for name in flow.inputs if name not in inputs]
    if missing:
        raise UsageError(
            f"flow {flow.name!r} needs {' '.join(f'--input {name}=PATH' for name in missing)} "
            f"(its inputs: {', '.join(flow.inputs)})"
        )
    if not outputs and not options.json:
        outputs = dict.fromkeys(flow.outputs, STDOUT)
    general, formats = named_formats(options.format, [*flow.inputs, *outputs])
    targets = [
        Target.of(name, path, formats.get(name), general, options.overwrite)
        for name, path in outputs.items()
    ]
    require_different(targets)
    if options.master is not None:
        for target in targets:
            target.require_spark_can_write()
    files = {name: (path, formats.get(name), general) for name, path in inputs.items()}
    began = time.perf_counter()
    with published_together(targets) as by_output:
        if options.master is None:
            outcome = _run_here(flow, files, by_output, options.workers or 1)
        else:
            outcome = _run_on_spark(
                named, flow, files, by_output, options.workers, options.master, settings
            )
    seconds = time.perf_counter() - began
    _report(options, flow, inputs, outputs, outcome, seconds)
    return FINE


InputFiles = Mapping[str, tuple[str, str | None, str | None]]
"""For each input its path, its own format if it was given, and the one for all names."""


def _run_here(
    flow: Flow, files: InputFiles, targets: Mapping[str, Target], workers: int
) -> Outcome:
    from jeton.runtime.metrics import add_metrics

    tables = read_inputs(files)
    with flow.open(workers=workers) as run:
        run.feed(tables)
        with _Bar(flow, run, sum(table.num_rows for table in tables.values())) as bar:
            while run.turn():
                bar.show()
            result = run.finish()
        metrics = reduce(add_metrics, (agent.metrics().to_json() for agent in run.agents))
    # No sink has handed rows on, and the clock of such a run is simulated.
    del metrics["rows_out"], metrics["seconds"]
    for name, target in targets.items():
        target.write(result[name])
    return Outcome(
        workers,
        sum(table.num_rows for table in tables.values()),
        {name: table.num_rows for name, table in result.items()},
        sum(result.late.values()),
        metrics,
    )


def read_inputs(files: InputFiles) -> dict[str, Any]:
    """The table of each input."""
    from jeton.cli.tables import read_table

    return {name: read_table(*found) for name, found in files.items()}


class _Bar:
    """Rows in and out, and how far each output is, on a terminal; else nothing."""

    def __init__(self, flow: Flow, run: Any, rows: int) -> None:
        self._flow = flow
        self._run = run
        self._rows = rows
        self._bar: Any = None
        self._next = 0.0

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._rows, desc=self._flow.name, unit=" rows", unit_scale=True, leave=False
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self) -> None:
        """Update the bar if it is time to."""
        if self._bar is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.1
        workers = [agent.metrics() for agent in self._run.agents]
        self._bar.n = sum(each.rows_in for each in workers)
        states = []
        for name in self._flow.outputs:
            at = self._flow.handle("output", name)
            out = sum(len(b) for w in self._run.workers for b in w.handles[at])
            frontier = _frontier(workers[0].operators[at].frontiers[0], self._run.unit)
            states.append(f"{name} {out:,} rows, {frontier}")
        self._bar.set_postfix_str("; ".join(states), refresh=False)
        self._bar.refresh()


def _frontier(times: Sequence[Any], unit: str | None) -> str:
    """The least time that may still come, in words.

    >>> _frontier([7], "integer"), _frontier([-(2**63)], None), _frontier([], None)
    ('from 7', 'not begun', 'complete')
    >>> _frontier([1_700_000_000], "s UTC")
    'from 2023-11-14 22:13:20Z'
    """
    import pyarrow as pa

    from jeton.columns.time_units import INTEGER, type_of
    from jeton.core.times import START_OF_TIME

    if not times:
        return "complete"
    if times[0] == START_OF_TIME:
        return "not begun"
    if unit is None or unit == INTEGER:
        return f"from {times[0]}"
    return f"from {pa.scalar(times[0], type_of(unit)).cast(pa.string())}"


def _run_on_spark(
    named: NamedFlow,
    flow: Flow,
    files: InputFiles,
    targets: Mapping[str, Target],
    workers: int | None,
    master: str,
    settings: Mapping[str, str],
) -> Outcome:
    from pyspark.errors import PySparkException

    from jeton.core.errors import JetonError, summary
    from jeton.spark.internals import ship_by_value

    with _session(master, settings) as spark:
        # Executors need not be able to import the user's module.
        ship_by_value(named.module)
        try:
            frames = {name: frame_of(spark, *found) for name, found in files.items()}
            result = flow.on_spark(frames, workers=workers)
            if len(result) > 1:
                # Else every output would run the whole flow again.
                result.cache()
            rows_out = {
                name: _write_from_spark(flow, name, frame, targets.get(name))
                for name, frame in result.items()
            }
            metrics = result.metrics()
            result.unpersist()
        except PySparkException as error:
            raise JetonError(summary(error)) from error
    return Outcome(workers, metrics.get("rows_in"), rows_out, metrics.get("late", 0), metrics)


@contextmanager
def _session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for this run; one that runs in this process already is used as it is."""
    from pyspark.sql import SparkSession

    from jeton.core.errors import JetonError
    from jeton.spark.application import context_of
    from jeton.spark.store_access import adopt

    running = SparkSession.getActiveSession()
    if running is not None:
        if running.sparkContext.master != master:
            raise JetonError(
                f"a session with master {running.sparkContext.master} runs in this process, so "
                f"none with {master} can start"
            )
        yield running
        return
    spark = _started(master, settings)
    if context_of(spark) is not None:
        adopt(spark)
    try:
        yield spark
    finally:
        spark.stop()


def _started(master: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    from jeton.core.errors import JetonError, summary
    from jeton.spark.java import ensure_java
    from jeton.spark.session import local_session

    # UTC, so that timestamps mean the same as in this process.
    conf: dict[str, str | float | bool | None] = {"spark.sql.session.timeZone": "UTC", **settings}
    here = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    try:
        if here is not None:
            cores = os.cpu_count() if here[1] == "*" else int(here[1] or 1)
            return local_session(cores or 1, **conf)
        builder: SparkSession.Builder = SparkSession.builder
        if master.startswith("sc://"):
            builder = builder.remote(master)
        else:
            ensure_java()
            builder = builder.master(master).appName("jeton")
        return builder.config(map=conf).getOrCreate()
    except Exception as error:
        raise JetonError(f"Spark could not be started on {master}: {summary(error)}") from error


def frame_of(spark: SparkSession, path: str, form: str | None, general: str | None) -> DataFrame:
    """The DataFrame of an input: Spark reads Parquet, this process the rest, as without Spark."""
    from jeton.cli.tables import format_in, format_of, read_table

    elsewhere = "://" in path and not path.startswith("file:")
    known = form or (format_of(path) or general if elsewhere else format_in(path, general))
    if known == "parquet":
        place = path if elsewhere else Path(path).absolute().as_uri()
        return spark.read.option("mergeSchema", True).parquet(place)
    return spark.createDataFrame(read_table(path, form, general))


def _write_from_spark(flow: Flow, name: str, frame: DataFrame, target: Target | None) -> int:
    """Write an output that Spark computes; returns the number of its rows."""
    if target is None:
        return frame.count()
    if target.is_folder:
        target.write_by_spark(frame)
        return target.rows_by_spark(frame.sparkSession)
    time_name = flow.operators[flow.handle("output", name)].time_name
    table = frame.toArrow().sort_by(time_name)
    target.write(table)
    return int(table.num_rows)


def _report(
    options: argparse.Namespace,
    flow: Flow,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    outcome: Outcome,
    seconds: float,
) -> None:
    if options.json:
        print_json(
            {
                "flow": flow.name,
                "master": options.master,
                "workers": outcome.workers,
                "inputs": dict(inputs),
                "outputs": {
                    name: {"path": outputs.get(name), "rows": rows}
                    for name, rows in outcome.rows_out.items()
                },
                "rows_in": outcome.rows_in,
                "rows_out": sum(outcome.rows_out.values()),
                "late": outcome.late,
                "seconds": round(seconds, 3),
                "metrics": outcome.metrics,
            }
        )
        return
    for name, path in outputs.items():
        if path != "-":
            say(f"{path}: {counted(outcome.rows_out[name], 'row')} of {name}")


COMMAND: Final = BuiltIn(
    "run",
    "run a flow over files, in this process or on Spark",
    "Run a flow over files. In this process by default, on Spark with --master. Outputs appear "
    "once the whole run has succeeded; a run that fails leaves no files behind.",
    "\n".join(
        (
            "jeton run averages.py:flow --input readings=readings.csv --output means=means.parquet",
            "jeton run averages:flow --input readings=data/ --master 'local[2]' --json",
        )
    ),
    _add_arguments,
    _run,
)
