"""Containers in which operators keep state, and their snapshots; public as `jt.state`.

- For rows of Python values: `KeyedValues` by key, `TimeMap` by time, `KeyedTimes` by time and key.
- For columns: `KeySlots` is a hash table from keys to slots, and `grown` makes room in the arrays
  of values by slot; `DueSlots` holds slots until their times, `RecordQueue` whole records.
- `SortedRuns` is the store of sorted rows behind both, with `sort_order` and `merge_order`.
- `TokenSet` holds the least tokens for everything that is pending.
- `encode_value` and `decode_value` store Python values as a `StateCodec` says: see `Codec`.

docs/state.md shows how to use them.
"""

from jeton.columns.keys import hash_columns, key_family, same_values
from jeton.core.antichain import MutableAntichain
from jeton.core.token_set import TokenSet
from jeton.state.due_slots import DueSlots
from jeton.state.key_ids import KeyTypes
from jeton.state.key_slots import KeySlots
from jeton.state.keyed_times import KeyedTimes
from jeton.state.keyed_values import KeyedValues
from jeton.state.python_values import Codec, StateCodec, decode_value, encode_value
from jeton.state.record_queue import RecordQueue
from jeton.state.slot_pool import grown
from jeton.state.snapshot import Snapshot, Stateful, bins_of, for_everyone
from jeton.state.sorted_runs import SortedRuns, merge_order, sort_order
from jeton.state.time_map import TimeMap

__all__ = [
    "Codec",
    "DueSlots",
    "KeySlots",
    "KeyTypes",
    "KeyedTimes",
    "KeyedValues",
    "MutableAntichain",
    "RecordQueue",
    "Snapshot",
    "SortedRuns",
    "StateCodec",
    "Stateful",
    "TimeMap",
    "TokenSet",
    "bins_of",
    "decode_value",
    "encode_value",
    "for_everyone",
    "grown",
    "hash_columns",
    "key_family",
    "merge_order",
    "same_values",
    "sort_order",
]
