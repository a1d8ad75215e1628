"""Query 22: the bids with the first three directories of their urls.

A directory that a url does not have is null.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow.compute as pc

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price", "channel", "url")}

SQL: Final = """
SELECT ts, auction, bidder, price, channel,
  get(parts, 3) AS dir1, get(parts, 4) AS dir2, get(parts, 5) AS dir3
FROM (SELECT *, split(url, '/') AS parts FROM bids)
"""


def query(events: Inputs) -> jt.Stream:
    """The bids with three directories each, instead of their urls.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q22")
    >>> columns = {"bids": ["url"]}
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=columns)))
    >>> flow.run({"bids": {"ts": [1], "url": ["https://www.nexmark.com/a/b"]}})[
    ...     "result"
    ... ].to_pylist()
    [{'ts': 1, 'dir1': 'a', 'dir2': 'b', 'dir3': None}]
    """

    def split(batch: jt.Batch) -> dict[str, Any]:
        parts = pc.list_slice(
            pc.split_pattern(batch["url"], "/"), 3, 6, return_fixed_size_list=True
        )
        kept = {name: column for name, column in batch.columns.items() if name != "url"}
        return kept | {f"dir{n + 1}": pc.list_element(parts, n) for n in range(3)}

    return events.bids.map(split)
