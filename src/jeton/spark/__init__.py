"""Jeton on Spark: sessions, and the handles of running flows.

`local_session` starts Spark on this machine. `Frames` and `StreamingFrames` are results of
`Flow.on_spark`, and `Query` is the handle that `Flow.start` returns.

Names are imported when they are first used: a worker needs few of these modules, and starts sooner
without the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jeton.spark.metrics import Frames
    from jeton.spark.query import Query
    from jeton.spark.session import local_session
    from jeton.spark.streaming import StreamingFrames

__all__ = [
    "Frames",
    "Query",
    "StreamingFrames",
    "local_session",
]

_MODULES: Final = {
    "Frames": "metrics",
    "Query": "query",
    "StreamingFrames": "streaming",
    "local_session": "session",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(f"jeton.spark.{_MODULES[name]}"), name)
        raise AttributeError(f"module 'jeton.spark' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return list(__all__)
