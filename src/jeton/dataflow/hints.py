"""Hints for methods that a stream does not have, and for values that are not streams.

Users of pandas, Polars and PySpark try the names that they know; and key, window and aggregate are
easily forgotten. Each mistake gets a message that names the next step.
"""

from __future__ import annotations

from typing import Final

from jeton.core.checks import described, suggestion
from jeton.core.errors import GraphError

_ELSEWHERE: Final = {
    "agg": "aggregate(name=jt.agg.…), after key_by(…) and a window",
    "apply": "map(…) for whole batches, or map_rows(…) for single rows",
    "assign": "with_columns(…)",
    "collect": "flow.output(…) and flow.run(…)",
    "drop_duplicates": "distinct(…) or deduplicate(…)",
    "dropDuplicates": "distinct(…) or deduplicate(…)",
    "foreach": "inspect(…)",
    "group_by": "key_by(…)",
    "groupBy": "key_by(…)",
    "groupby": "key_by(…)",
    "head": "flow.output(…) and flow.run(…)",
    "session": "session_window(…), after key_by(…)",
    "show": "flow.output(…) and flow.run(…)",
    "to_pandas": "flow.output(…) and flow.run(…)",
    "toPandas": "flow.output(…) and flow.run(…)",
    "unionAll": "union(…)",
    "unique": "distinct(…)",
    "where": "filter(…)",
    "window": "tumbling(…) or sliding(…), after key_by(…)",
    "withColumn": "with_columns(name=…)",
    "withColumnRenamed": "rename({old: new})",
    "withColumns": "with_columns(name=…)",
    "withWatermark": "flow.input(…, lateness=…)",
    "with_column": "with_columns(name=…)",
}
"""The names of other libraries, and what does the same here."""


def no_stream_method(stream: object, name: str, of_keyed: type, of_groups: type) -> AttributeError:
    """The error for a method that a stream does not have, but a keyed one, or another library."""
    if hasattr(of_groups, name) and not name.startswith("_"):
        hint = f'choose a key and a window first, as in key_by("column").tumbling(10).{name}(…)'
    elif hasattr(of_keyed, name) and not name.startswith("_"):
        hint = f'choose a key first, as in key_by("column").{name}(…)'
    elif name in getattr(vars(stream).get("schema"), "names", ()):
        return AttributeError(
            f"a stream has no {name!r}: to use that column, write jt.col({name!r})"
        )
    else:
        return _no_attribute("a stream", stream, name)
    return AttributeError(
        f"a stream has no {name!r}: {hint} (key_by() without columns groups all records)"
    )


def no_keyed_method(keyed: object, name: str, of_stream: type, of_groups: type) -> AttributeError:
    """The error for a method that a keyed stream does not have."""
    if hasattr(of_groups, name) and not name.startswith("_"):
        hint = f"say when results are emitted, as in running().{name}(…) or tumbling(10).{name}(…)"
    elif hasattr(of_stream, name) and not name.startswith("_"):
        hint = (
            f"{name}(…) belongs before key_by(…), or after an aggregate such as running().count()"
        )
    else:
        return _no_attribute("a keyed stream", keyed, name)
    return AttributeError(f"a keyed stream has no {name!r}: {hint}")


def no_group_method(groups: object, name: str, of_stream: type) -> AttributeError:
    """The error for a method that groups do not have."""
    if hasattr(of_stream, name) and not name.startswith("_"):
        return AttributeError(
            f"groups have no {name!r}: choose an aggregate such as .count() first, as in "
            f".count().{name}(…)"
        )
    return _no_attribute("a group", groups, name)


def require_stream(value: object, where: str) -> None:
    """Refuse a value that is not a stream where one is needed."""
    if hasattr(value, "scope") and hasattr(value, "sources"):
        return
    unfinished = getattr(value, "_unfinished", None)
    if unfinished is not None:
        raise GraphError(f"{where} needs a stream, and {unfinished}")
    raise GraphError(
        f"{where} needs a stream, such as flow.input(…) or what its methods return, not "
        f"{described(value)}"
    )


def _no_attribute(what: str, owner: object, name: str) -> AttributeError:
    if name in _ELSEWHERE:
        return AttributeError(f"{what} has no {name!r}: use {_ELSEWHERE[name]}")
    known = [known for known in dir(owner) if not known.startswith("_")]
    return AttributeError(f"{what} has no {name!r}{suggestion(name, known)}")
