"""Reading an event log: its rows, a summary for each operator, and how frontiers moved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from jeton.core.errors import JetonError
from jeton.runtime.event_log import SCHEMA

_BEGIN: Final = b"\xff\xff\xff\xff"
"""The first bytes of a stream of Arrow's."""


def read_events(path: str | Path) -> pa.Table:
    """All events of a log, in the order of the clock; those before a crash too.

    A file that belongs to something else is a `JetonError`.

    >>> import tempfile
    >>> read_events(tempfile.mkdtemp()).num_rows
    0
    """
    tables = []
    for file in sorted(Path(path).glob("*.arrow")):
        batches = list(_batches(file))
        tables.append(pa.Table.from_batches(batches, SCHEMA))
    if not tables:
        return SCHEMA.empty_table()
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks().sort_by("clock")


def _batches(file: Path) -> Iterable[pa.RecordBatch]:
    """The batches of a file that are whole."""
    try:
        source = pa.OSFile(str(file))
    except FileNotFoundError:  # the log is being written, and this was its oldest file
        return
    with source:
        begins = source.read(len(_BEGIN))
        source.seek(0)
        try:
            reader = pa.ipc.open_stream(source)
        except (pa.ArrowInvalid, OSError):
            if begins == _BEGIN[: len(begins)]:
                return  # the writer came no further
            raise JetonError(f"{file} is not a file of an event log") from None
        if reader.schema != SCHEMA:
            raise JetonError(f"{file} is not a file of an event log, or of another version")
        try:
            while True:
                yield reader.read_next_batch()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return


def summarise(path: str | Path) -> list[dict[str, Any]]:
    """For each operator how often it was invoked, for how long, and with how many records.

    ``seconds`` is wall time, summed over workers; ``first`` and ``last`` are the clock. ``unit`` is
    that of the times of ``frontier``.
    """
    events = read_events(path).to_pylist()
    found: dict[str, dict[str, Any]] = {}
    totals: dict[tuple[str, int, str], dict[str, Any]] = {}
    for event in events:
        name = event["operator"]
        entry = found.setdefault(
            name,
            {
                "operator": name,
                "events": 0,
                "invocations": 0,
                "seconds": 0.0,
                "records_in": 0,
                "records_out": 0,
                "longest": 0.0,
                "first": event["clock"],
                "last": event["clock"],
                "frontier": "[]",
                "unit": None,
            },
        )
        entry["events"] += 1
        entry["last"] = event["clock"]
        entry["frontier"], entry["unit"] = event["frontier"], event["unit"]
        if event["kind"] == "sample":
            totals[name, event["worker"], event["run"]] = event
            continue
        entry["invocations"] += 1
        entry["seconds"] += event["seconds"]
        entry["records_in"] += event["records_in"]
        entry["records_out"] += event["records_out"]
        entry["longest"] = max(entry["longest"], event["seconds"])
    for (name, *_), event in totals.items():
        # Samples have totals: where there are invocations too, these say the same more exactly.
        if not found[name]["invocations"]:
            for count in ("seconds", "records_in", "records_out"):
                found[name][count] += event[count] or 0
    return list(found.values())


def replay_frontiers(path: str | Path) -> Iterator[tuple[Any, dict[str, list[Any]]]]:
    """How the frontiers moved: the clock, and all frontiers after each move of one of them.

    Of several workers' lower bounds of one frontier, the first that got there counts.
    """
    frontiers: dict[str, list[Any]] = {}
    for event in read_events(path).select(["clock", "operator", "frontier"]).to_pylist():
        times, name = json.loads(event["frontier"]), event["operator"]
        known = frontiers.get(name)
        if known is None or (known and (not times or times > known)):
            frontiers[name] = times
            yield event["clock"], dict(frontiers)
