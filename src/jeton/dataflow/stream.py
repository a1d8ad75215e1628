"""Streams: records with times, and every operator as a method."""

from __future__ import annotations

from jeton.dataflow.capture import Captures
from jeton.dataflow.operators.binary import Binary
from jeton.dataflow.operators.branch import Branch
from jeton.dataflow.operators.broadcast import Broadcasts
from jeton.dataflow.operators.delay import Delay
from jeton.dataflow.operators.distinct import Distinct
from jeton.dataflow.operators.exchange import Exchanges
from jeton.dataflow.operators.filter import Filter
from jeton.dataflow.operators.flat_map import FlatMap
from jeton.dataflow.operators.inspect import Inspect
from jeton.dataflow.operators.iterate import Iterate
from jeton.dataflow.operators.key_by import KeyBy
from jeton.dataflow.operators.map import Map
from jeton.dataflow.operators.map_rows import MapRows
from jeton.dataflow.operators.partition import Partition
from jeton.dataflow.operators.probe import Probes
from jeton.dataflow.operators.select import Select
from jeton.dataflow.operators.unary import Unary
from jeton.dataflow.operators.with_columns import WithColumns


class Stream(
    KeyBy,
    Distinct,
    Map,
    WithColumns,
    Select,
    FlatMap,
    MapRows,
    Partition,
    Exchanges,
    Broadcasts,
    Filter,
    Branch,
    Delay,
    Inspect,
    Iterate,
    Probes,
    Captures,
    Unary,
    Binary,
):
    """Records with times, produced by operators of a flow.

    A stream is a description: nothing runs before the flow does. Each operator is a method that
    returns a new stream; they are defined one to a file under ``dataflow/operators``.
    """
