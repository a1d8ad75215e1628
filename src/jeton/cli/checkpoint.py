"""`jeton checkpoint`: the versions in a checkpoint folder, one of them, and what changed."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from jeton.cli.command import FINE, BuiltIn, UsageError, add_json, count, print_json, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jeton.cli.stored import Change, Container, Stored, Version
    from jeton.storage.checkpoints import Checkpoint
    from jeton.storage.manifest import Key

_LONGEST: Final = 60
"""Characters of a position that are shown."""
_TRIES: Final = 10
"""How many times to look again if a running query has deleted all versions meanwhile."""


def _ls(options: argparse.Namespace) -> int:
    from jeton.cli.stored import find_stores

    stores = find_stores(options.path)
    if not stores:
        raise UsageError(f"there are no checkpoints in {options.path}")
    records = [_listed(stored, options.quick) for stored in stores]
    if options.json:
        print_json({"path": options.path, "stores": records})
        return FINE
    for at, record in enumerate(records):
        if at:
            print()
        _print_listed(record)
    return FINE


def _listed(stored: Stored, quick: bool) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for _ in range(_TRIES):
        versions = stored.versions()
        # The newest stays longest.
        records = [_version(version, quick) for version in reversed(versions)]
        found = [each for each in reversed(records) if each is not None]
        if found or not versions:
            break
    flow = next((each["flow"] for each in reversed(found) if "flow" in each), None)
    return {
        "path": stored.path,
        "kind": "long-lived" if stored.log is None else "streaming",
        "flow": flow,
        "lease": stored.lease(),
        "versions": found,
    }


def _version(version: Version, quick: bool) -> dict[str, Any] | None:
    """The record of a version; nothing if a running query has deleted it meanwhile."""
    from jeton.core.errors import SnapshotError

    committed = version.committed
    record: dict[str, Any] = {
        "version": version.number,
        "attempt": version.known.epoch,
        "committed": _iso(committed),
        "age_seconds": None if committed is None else round(_age(committed), 1),
    }
    try:
        found = version.checkpoint
        record |= {
            "flow": found.flow,
            "workers": found.workers,
            "bins": found.bins,
            "bytes": version.size(),
            "bytes_written": version.written(),
            "positions": version.positions(),
        }
        if not quick:
            rows: dict[str, int] = {}
            for key, container in version.containers().items():
                rows[key.operator] = rows.get(key.operator, 0) + container.rows
            record["rows"] = rows
        return {**record, "damaged": None}
    except SnapshotError as error:
        if version.number not in version.stored.store.versions():
            return None
        return {**record, "damaged": str(error)}


def _print_listed(record: Mapping[str, Any]) -> None:
    lease = record["lease"]
    print(record["path"])
    flow = "a flow" if record["flow"] is None else f"flow {record['flow']!r}"
    query = "" if lease["query"] is None else f" of query {lease['query']}"
    print(f"  {flow}{query}; {_lease_text(lease)}")
    if not record["versions"]:
        print("  no versions yet")
        return
    lines = [("version", "age", "size", "written", "workers", "rows", "sources")]
    for each in record["versions"]:
        age = "?" if each["age_seconds"] is None else duration(each["age_seconds"])
        if "workers" not in each or each["damaged"]:
            lines.append((str(each["version"]), age, "damaged", "", "", "", ""))
            continue
        lines.append(
            (
                str(each["version"]),
                age,
                bytes_text(each["bytes"]),
                bytes_text(each["bytes_written"]),
                str(each["workers"]),
                f"{sum(each['rows'].values()):,}" if "rows" in each else "",
                _sources_text(each["positions"], record["kind"]),
            )
        )
    _print_lines(lines)
    newest = record["versions"][-1]
    for operator, rows in newest.get("rows", {}).items():
        print(f"  {operator}: {count(rows, 'row')}")
    for each in record["versions"]:
        if each["damaged"]:
            print(f"  version {each['version']}: {each['damaged']}")


def _lease_text(lease: Mapping[str, Any]) -> str:
    if lease["holder"] is None:
        return "no run has taken the lease"
    times = count(lease["attempt"], "time")
    return f"the lease was taken {times}, run {lease['holder']} holds it"


def _sources_text(positions: Mapping[str, Any], kind: str) -> str:
    if kind == "streaming":
        # What Spark's sources write as their offsets is their own affair.
        return ", ".join(positions)
    return ", ".join(
        f"{name} ({count(len(each), 'partition')})" for name, each in positions.items()
    )


def _show(options: argparse.Namespace) -> int:
    from jeton.cli.stored import one_store

    stored = one_store(options.path, options.flow)
    version, found, containers_found = _read(stored, options.version)
    operators: dict[str, dict[str, Any]] = {}
    for key, container in containers_found.items():
        operators.setdefault(key.operator, {})[key.name] = {
            "rows": container.rows,
            "bytes": container.size,
        }
    record: dict[str, Any] = {
        "path": version.stored.path,
        "version": version.number,
        "attempt": version.known.epoch,
        "manifest": version.known.manifest,
        "committed": _iso(version.committed),
        "flow": found.flow,
        "workers": found.workers,
        "bins": found.bins,
        "bytes": version.size(),
        "bytes_written": version.written(),
        "files": sorted(found.files),
        "operators": operators,
        "positions": version.positions(),
        "lease": version.stored.lease(),
    }
    if options.json:
        print_json(record)
        return FINE
    print(f"version {version.number} of flow {found.flow!r} in {version.stored.path}")
    if version.committed is not None:
        print(f"  committed {record['committed']}, {duration(_age(version.committed))} ago")
    print(
        f"  {count(found.workers, 'worker')}, {found.bins} bins, {bytes_text(record['bytes'])} in "
        f"{count(len(found.files), 'file')}, {bytes_text(record['bytes_written'])} written for it"
    )
    print(f"  attempt {version.known.epoch}; {_lease_text(record['lease'])}")
    for operator, containers in operators.items():
        print(f"  {operator}")
        for name, each in containers.items():
            print(f"    {name}: {count(each['rows'], 'row')}, {bytes_text(each['bytes'])}")
    for source, position in record["positions"].items():
        print(f"  source {source}")
        parts = position.items() if isinstance(position, dict) else [("", position)]
        for partition, at in parts:
            print(f"    {partition}: {_short(at)}" if partition else f"    {_short(at)}")
    return FINE


def _read(
    stored: Stored, number: int | None
) -> tuple[Version, Checkpoint, Mapping[Key, Container]]:
    """A version with its state; the newest one even while a query makes others."""
    from jeton.core.errors import SnapshotError

    for left in reversed(range(_TRIES)):
        version = stored.version(number)
        try:
            return version, version.checkpoint, version.containers()
        except SnapshotError:
            if number is not None or not left or version.number in stored.store.versions():
                raise
    raise AssertionError("the last try returns or raises")


def _diff(options: argparse.Namespace) -> int:
    from jeton.cli.stored import changes, moved, one_store

    stored = one_store(options.path, options.flow)
    before, after = stored.version(options.before), stored.version(options.after)
    found = changes(before, after)
    positions = moved(before.positions(), after.positions())
    names = [{*each.checkpoint.operators} for each in (before, after)]
    record: dict[str, Any] = {
        "path": stored.path,
        "before": before.number,
        "after": after.number,
        "workers": [before.checkpoint.workers, after.checkpoint.workers],
        "operators_added": sorted(names[1] - names[0]),
        "operators_removed": sorted(names[0] - names[1]),
        "containers": [
            {"operator": key.operator, "container": key.name, **change.to_json()}
            for key, change in found.items()
        ],
        "positions": positions,
    }
    if options.json:
        print_json(record)
        return FINE
    print(f"{stored.path}: version {before.number} to {after.number}")
    if before.checkpoint.workers != after.checkpoint.workers:
        print(f"  workers: {before.checkpoint.workers} to {after.checkpoint.workers}")
    for what in ("added", "removed"):
        for name in record[f"operators_{what}"]:
            print(f"  operator {name}: {what}")
    for key, change in found.items():
        print(f"  {key.operator}/{key.name}: {_change_text(change)}")
    for name, each in positions.items():
        print(f"  source {name}: {_short(each['before'])} to {_short(each['after'])}")
    return FINE


def _change_text(change: Change) -> str:
    what = "key" if change.keyed else "row"
    parts = [
        f"{count(number, what)} {how}"
        for how in ("added", "removed", "changed")
        if (number := getattr(change, f"keys_{how}"))
    ]
    rows = count(change.rows_after, "row")
    if change.rows_before != change.rows_after:
        rows = f"{change.rows_before:,} to {rows}"
    return f"{', '.join(parts) or 'no change'} ({rows})"


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def _age(committed: datetime) -> float:
    return max(0.0, (datetime.now(UTC) - committed).total_seconds())


def _short(position: Any) -> str:
    """A position in few words; those of partitions say what else is known of them.

    >>> _short({"position": 7, "ended": True, "floor": 3, "idle": False})
    '7 (ended)'
    """
    text = str(position)
    if isinstance(position, dict) and "position" in position:
        flags = ", ".join(name for name in ("ended", "idle") if position.get(name))
        text = f"{position['position']}" + (f" ({flags})" if flags else "")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _print_lines(lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        *cells, last = line
        right = (text.rjust(width) for text, width in zip(cells, widths, strict=False))
        print(f"  {'  '.join([*right, last])}".rstrip())


def duration(seconds: float) -> str:
    """Seconds in the largest unit that fits.

    >>> duration(12.4), duration(300), duration(90_000)
    ('12 s', '5 min', '25 h')
    """
    for size, unit in ((172_800, "d"), (7_200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / {'d': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"


def bytes_text(size: float) -> str:
    """A number of bytes in the largest unit that fits.

    >>> bytes_text(512), bytes_text(1_250_000)
    ('512 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        help="the checkpoint of a long-lived query, or the checkpoint location of a streaming one",
    )


def _add_flow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flow", metavar="NAME", help="which flow, if there are several")


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    _add_path(parser)
    parser.add_argument(
        "--quick", action="store_true", help="do not read the state, and so do not count its rows"
    )
    add_json(parser, "all that is known")


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    _add_path(parser)
    number = whole_number("a version", least=0)
    parser.add_argument(
        "version", nargs="?", type=number, metavar="VERSION", help="by default the newest"
    )
    _add_flow(parser)
    add_json(parser, "all that is known")


def _diff_arguments(parser: argparse.ArgumentParser) -> None:
    _add_path(parser)
    number = whole_number("a version", least=0)
    parser.add_argument("before", type=number, metavar="A", help="a version")
    parser.add_argument("after", type=number, metavar="B", help="a later version")
    _add_flow(parser)
    add_json(parser, "the differences")


_COMMANDS: Final = (
    BuiltIn(
        "ls",
        "list the versions",
        "List the versions of the state under a folder: age, size, workers, rows, positions of "
        "sources, and who holds the lease. It only reads, also while the query runs.",
        "jeton checkpoint ls /data/checkpoints/live\njeton checkpoint ls /data/checkpoints --json",
        _ls_arguments,
        _ls,
    ),
    BuiltIn(
        "show",
        "show one version",
        "Show one version of the state: operators, their containers, positions of sources.",
        "jeton checkpoint show /data/checkpoints/live 12",
        _show_arguments,
        _show,
    ),
    BuiltIn(
        "diff",
        "show what changed between two versions",
        "Show what changed between two versions: operators, keys, positions of sources.",
        "jeton checkpoint diff /data/checkpoints/live 11 12",
        _diff_arguments,
        _diff,
    ),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for command in _COMMANDS:
        command.add_to(commands)


COMMAND: Final = BuiltIn(
    "checkpoint",
    "list, show and compare versions of a query's state",
    "Look at the checkpoints of long-lived and of streaming queries, without changing anything.",
    "jeton checkpoint ls /data/checkpoints/live",
    _add_arguments,
)
