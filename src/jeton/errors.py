"""Errors and warnings of Jeton, all in one place; `JetonError` is the base of the errors.

>>> import jeton as jt
>>> try:
...     jt.Flow("empty").run({"words": {"time": [0]}})
... except jt.errors.JetonError as error:
...     print(type(error).__name__)
GraphError
"""

from jeton.cluster.failures import FailedBefore, QueryFailed, UserError, WorkerFailed
from jeton.columns.kernel import SlowKernel
from jeton.connectors.deliveries import SinkFailed
from jeton.core.errors import (
    BatchError,
    ColumnTypeError,
    ExpiredReference,
    FlowStalled,
    GraphError,
    JavaNotFoundError,
    JetonError,
    LeakedToken,
    MissingColumn,
    OperatorFailed,
    ProtocolError,
    SnapshotError,
    TimeError,
    TokenError,
    UnknownOutput,
    ZeroCycleError,
)
from jeton.mesh.handshake import HandshakeError
from jeton.mesh.link import PeerLost
from jeton.mesh.mesh import PeerFailed
from jeton.storage.chunk_format import CorruptCheckpoint
from jeton.storage.files import NoAtomicCreate, StoreUnavailable
from jeton.storage.leases import Superseded

__all__ = [
    "BatchError",
    "ColumnTypeError",
    "CorruptCheckpoint",
    "ExpiredReference",
    "FailedBefore",
    "FlowStalled",
    "GraphError",
    "HandshakeError",
    "JavaNotFoundError",
    "JetonError",
    "LeakedToken",
    "MissingColumn",
    "NoAtomicCreate",
    "OperatorFailed",
    "PeerFailed",
    "PeerLost",
    "ProtocolError",
    "QueryFailed",
    "SinkFailed",
    "SlowKernel",
    "SnapshotError",
    "StoreUnavailable",
    "Superseded",
    "TimeError",
    "TokenError",
    "UnknownOutput",
    "UserError",
    "WorkerFailed",
    "ZeroCycleError",
]
