"""Query 21: the bids with the id of the channel that they came through.

Four large channels have ids of their own; of the others, the id is what their url says after
``channel_id=``. Bids of which neither is known are left out. Ids are text.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price", "channel", "url")}

LARGE: Final = ("apple", "google", "facebook", "baidu")
"""The large channels: their ids are their places here."""

_LARGE_SQL: Final = " ".join(f"WHEN '{name}' THEN '{id}'" for id, name in enumerate(LARGE))
SQL: Final = f"""
SELECT ts, auction, bidder, price, channel, channel_id
FROM (
  SELECT *, CASE lower(channel) {_LARGE_SQL}
    ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]+)', 2), '') END AS channel_id
  FROM bids
)
WHERE channel_id IS NOT NULL
"""


def query(events: Inputs) -> jt.Stream:
    """The bids whose channel has an id.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q21")
    >>> columns = {"bids": ["channel", "url"]}
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=columns)))
    >>> bids = {"ts": [1, 2, 3], "channel": ["Google", "a", "b"]}
    >>> bids["url"] = ["x", "x?query=1&channel_id=5", "x?query=1"]
    >>> flow.run({"bids": bids})["result"].to_pylist()
    [{'ts': 1, 'channel': 'Google', 'channel_id': '1'},
     {'ts': 2, 'channel': 'a', 'channel_id': '5'}]
    """
    names = pa.array(LARGE)
    ids = pa.array([str(place) for place in range(len(LARGE))])

    def channel_id(batch: jt.Batch) -> Any:
        large = ids.take(pc.index_in(pc.utf8_lower(batch["channel"]), value_set=names))
        # Urls are searched only where that is needed: it takes more time than all the rest.
        unknown = pc.if_else(pc.is_null(large), batch["url"], None)
        found = pc.extract_regex(unknown, r"(?:&|^)channel_id=(?P<id>[^&]+)")
        return pc.coalesce(large, pc.struct_field(found, "id"))

    known = events.bids.with_columns(channel_id=channel_id).drop("url")
    return known.filter(lambda batch: pc.is_valid(batch["channel_id"]))
