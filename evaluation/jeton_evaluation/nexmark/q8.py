"""Query 8: who has registered and put something up for sale in the same window.

For each tumbling window, those who registered in it and are the seller of some auction of it: once,
at the window's end, for any number of auctions. Windows are `WINDOW` long: at the default rate
of 10,000 events a second, the half second in which 100 persons register (elsewhere it is ten
seconds, or twelve hours).
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"auctions": ("seller",), "persons": ("id", "name")}

WINDOW: Final = 500_000

SQL: Final = f"""
SELECT p.ts, p.id, p.name
FROM (SELECT DISTINCT (ts DIV {WINDOW} + 1) * {WINDOW} AS ts, id, name FROM persons) p
JOIN (SELECT DISTINCT (ts DIV {WINDOW} + 1) * {WINDOW} AS ts, seller FROM auctions) a
ON p.ts = a.ts AND p.id = a.seller
"""


def query(events: Inputs) -> jt.Stream:
    """The new persons of each window that sell something in it.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q8")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> persons = {"ts": [5, 6], "id": [3, 4], "name": ["Ada", "Tony"]}
    >>> auctions = {"ts": [1, 7, 600_000], "seller": [3, 3, 4]}
    >>> flow.run({"auctions": auctions, "persons": persons})["result"].to_pylist()
    [{'ts': 500000, 'id': 3, 'name': 'Ada'}]
    """
    persons = events.persons.key_by("id", "name").tumbling(WINDOW).distinct()
    sellers = events.auctions.key_by("seller").tumbling(WINDOW).distinct()
    return persons.key_by("id").join(sellers.key_by("seller"))
