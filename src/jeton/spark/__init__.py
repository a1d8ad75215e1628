"""Jeton on Spark: sessions, and the handles of running flows.

`local_session` starts Spark on this machine. `Frames` and `StreamingFrames` are results of
`Flow.on_spark`, and `Query` is the handle that `Flow.start` returns. `Rebalance` says when a query
moves state between its workers by itself.

Names are imported when they are first used: a worker needs few of these modules, and starts sooner
without the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jeton.runtime.balance import Rebalance
    from jeton.spark.metrics import Frames
    from jeton.spark.native import Written
    from jeton.spark.query import Query
    from jeton.spark.session import local_session
    from jeton.spark.streaming import StreamingFrames

__all__ = [
    "Frames",
    "Query",
    "Rebalance",
    "StreamingFrames",
    "Written",
    "local_session",
]

_MODULES: Final = {
    "Frames": "jeton.spark.metrics",
    "Query": "jeton.spark.query",
    "Rebalance": "jeton.runtime.balance",
    "StreamingFrames": "jeton.spark.streaming",
    "Written": "jeton.spark.native",
    "local_session": "jeton.spark.session",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            try:
                module = import_module(_MODULES[name])
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] != "pyspark":
                    raise
                text = "Spark is not installed: pip install 'jeton[spark]'"
                raise ModuleNotFoundError(text, name="pyspark") from None
            return getattr(module, name)
        raise AttributeError(f"module 'jeton.spark' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return list(__all__)
