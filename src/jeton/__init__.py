"""Jeton: dataflow programs coordinated by timestamp tokens.

>>> import jeton as jt
>>> flow = jt.Flow("hello")
>>> flow.output("out", flow.input("in").map(lambda batch: {"n": batch["n"] + 1}))
>>> flow.run({"in": {"time": [0], "n": [41]}})["out"].to_pylist()
[{'time': 0, 'n': 42}]
"""

from jeton.columns.batch import Batch, concat
from jeton.columns.compiled import njit
from jeton.columns.kernel import Kernel, SlowKernel, kernel
from jeton.columns.keys import hash_columns, key_family, same_values
from jeton.core.antichain import Antichain, MutableAntichain
from jeton.core.changes import ChangeBatch
from jeton.core.errors import (
    BatchError,
    ExpiredReference,
    FlowStalled,
    GraphError,
    JetonError,
    LeakedToken,
    MissingColumn,
    OperatorFailed,
    ProtocolError,
    SnapshotError,
    TimeError,
    TokenError,
    ZeroCycleError,
)
from jeton.core.summaries import IDENTITY, Advance, Summary
from jeton.core.times import END_OF_TIME, START_OF_TIME, IntegerTimes, Product, Timestamp
from jeton.core.token_set import TokenSet
from jeton.core.tokens import ActivatingToken, TimestampToken, TokenRef
from jeton.dataflow.flow import Flow
from jeton.dataflow.keyed import KeyedStream
from jeton.dataflow.pacts import Broadcast, Exchange, Pact, Pipeline, Together
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output, Session
from jeton.dataflow.scope import Loop, Scope
from jeton.dataflow.stream import Stream
from jeton.runtime.in_process import Run
from jeton.runtime.result import Probe, Result
from jeton.state import aggregates as agg
from jeton.state.key_ids import KeyTypes
from jeton.state.keyed_times import KeyedTimes
from jeton.state.keyed_values import KeyedValues
from jeton.state.record_queue import RecordQueue
from jeton.state.snapshot import Snapshot, Stateful, bins_of
from jeton.state.time_map import TimeMap

__version__ = "0.1.0"

__all__ = [
    "END_OF_TIME",
    "IDENTITY",
    "START_OF_TIME",
    "ActivatingToken",
    "Advance",
    "Antichain",
    "Batch",
    "BatchError",
    "Broadcast",
    "ChangeBatch",
    "Exchange",
    "ExpiredReference",
    "Flow",
    "FlowStalled",
    "GraphError",
    "Input",
    "IntegerTimes",
    "JetonError",
    "Kernel",
    "KeyTypes",
    "KeyedStream",
    "KeyedTimes",
    "KeyedValues",
    "LeakedToken",
    "Loop",
    "MissingColumn",
    "MutableAntichain",
    "OperatorFailed",
    "OperatorInfo",
    "Output",
    "Pact",
    "Pipeline",
    "Probe",
    "Product",
    "ProtocolError",
    "RecordQueue",
    "Result",
    "Run",
    "Scope",
    "Session",
    "SlowKernel",
    "Snapshot",
    "SnapshotError",
    "Stateful",
    "Stream",
    "Summary",
    "TimeError",
    "TimeMap",
    "Timestamp",
    "TimestampToken",
    "Together",
    "TokenError",
    "TokenRef",
    "TokenSet",
    "ZeroCycleError",
    "agg",
    "bins_of",
    "concat",
    "hash_columns",
    "kernel",
    "key_family",
    "njit",
    "same_values",
]
