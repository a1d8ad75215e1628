"""Containers in which operators keep state, and their snapshots; public as `jt.state`."""

from jeton.columns.keys import hash_columns, key_family, same_values
from jeton.core.antichain import MutableAntichain
from jeton.core.token_set import TokenSet
from jeton.state.key_ids import KeyTypes
from jeton.state.keyed_times import KeyedTimes
from jeton.state.keyed_values import KeyedValues
from jeton.state.record_queue import RecordQueue
from jeton.state.snapshot import Snapshot, Stateful, bins_of
from jeton.state.time_map import TimeMap

__all__ = [
    "KeyTypes",
    "KeyedTimes",
    "KeyedValues",
    "MutableAntichain",
    "RecordQueue",
    "Snapshot",
    "Stateful",
    "TimeMap",
    "TokenSet",
    "bins_of",
    "hash_columns",
    "key_family",
    "same_values",
]
