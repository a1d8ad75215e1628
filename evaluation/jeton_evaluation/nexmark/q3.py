"""Query 3: who sells things of one category in some states, and what.

A join of auctions and persons over all of time: each auction of the category with the person who
sells it, if that is one from these states. The pair is emitted as soon as both are there, at the
later of their two times; so both sides are kept indefinitely.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {
    "auctions": ("id", "seller", "category"),
    "persons": ("id", "name", "city", "state"),
}

CATEGORY: Final = 10
STATES: Final = ("OR", "ID", "CA")
EVER: Final = 2**62
"""As far apart as times can be."""

SQL: Final = f"""
SELECT greatest(a.ts, p.ts) AS ts, p.name, p.city, p.state, a.id
FROM auctions a JOIN persons p ON a.seller = p.id
WHERE a.category = {CATEGORY} AND p.state IN {STATES}
"""


def query(events: Inputs) -> jt.Stream:
    """The auctions of the category, with their sellers.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q3")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> auctions = {"ts": [1], "id": [7], "seller": [3], "category": [10]}
    >>> persons = {"ts": [5], "id": [3], "name": ["Ada"], "city": ["Salem"], "state": ["OR"]}
    >>> flow.run({"auctions": auctions, "persons": persons})["result"].to_pylist()
    [{'ts': 5, 'name': 'Ada', 'city': 'Salem', 'state': 'OR', 'id': 7}]
    """
    things = events.auctions.filter(lambda batch: batch["category"] == CATEGORY)
    near = pa.array(STATES)
    sellers = events.persons.filter(lambda batch: pc.is_in(batch["state"], value_set=near))
    pairs = things.key_by("seller").interval_join(sellers.key_by("id"), -EVER, EVER)
    return pairs.select("name", "city", "state", "id")
