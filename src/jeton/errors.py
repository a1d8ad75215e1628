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
from jeton.connectors.formats import FormatFailed
from jeton.connectors.kafka import KafkaFailed
from jeton.connectors.sinks.driver_sink import SinkFailed
from jeton.connectors.tables import TableFailed
from jeton.core.errors import (
    BatchError,
    BudgetExceeded,
    ColumnTypeError,
    ExpiredReference,
    FlowStalled,
    GraphError,
    JavaNotFoundError,
    JetonError,
    LeakedToken,
    MissingColumn,
    OperatorFailed,
    PredicateFailed,
    ProtocolError,
    SnapshotError,
    TimeError,
    TokenError,
    UnboundedState,
    UnknownOutput,
    ZeroCycleError,
)
from jeton.mesh.handshake import HandshakeError
from jeton.mesh.link import PeerLost
from jeton.mesh.mesh import PeerFailed
from jeton.mesh.tls import TlsError
from jeton.storage.chunk_format import CorruptCheckpoint
from jeton.storage.leases import Superseded
from jeton.storage.store import NoAtomicCreate, StoreRefused, StoreUnavailable

__all__ = [
    "BatchError",
    "BudgetExceeded",
    "ColumnTypeError",
    "CorruptCheckpoint",
    "ExpiredReference",
    "FailedBefore",
    "FlowStalled",
    "FormatFailed",
    "GraphError",
    "HandshakeError",
    "JavaNotFoundError",
    "JetonError",
    "KafkaFailed",
    "LeakedToken",
    "MissingColumn",
    "NoAtomicCreate",
    "OperatorFailed",
    "PeerFailed",
    "PeerLost",
    "PredicateFailed",
    "ProtocolError",
    "QueryFailed",
    "SinkFailed",
    "SlowKernel",
    "SnapshotError",
    "StoreRefused",
    "StoreUnavailable",
    "Superseded",
    "TableFailed",
    "TimeError",
    "TlsError",
    "TokenError",
    "UnboundedState",
    "UnknownOutput",
    "UserError",
    "WorkerFailed",
    "ZeroCycleError",
]
