"""An alert when a visitor has left without paying: timers of a state.

Each click sets a timer for half an hour later, in place of the one before. If it fires, the visitor
has left. Visitors who pay are forgotten, and their timers with them. All of this is in event time:
clicks that are out of order change nothing, and a year of clicks is replayed in seconds.
"""

import random
from datetime import datetime, timedelta
from typing import Any

import jeton as jt

Row = dict[str, Any]
Answer = tuple[Row | None, list[Row]]
TIMEOUT = timedelta(minutes=30)


def click(last: Row | None, row: Row, timers: Any) -> Answer:
    """Remember the last page, and wait for the next one."""
    if row["page"] == "paid":
        return None, []
    timers.cancel()
    timers.after(TIMEOUT)
    return {"page": row["page"], "since": row["at"]}, []


def timed_out(last: Row, key: Row, timers: Any) -> Answer:
    """Half an hour has passed."""
    return None, [last]


def shop() -> jt.Flow:
    """One row for each visit that ended without payment, at the time at which that is known."""
    flow = jt.Flow("shop")
    schema = {"at": datetime, "who": str, "page": str}
    clicks = flow.input("clicks", time="at", schema=schema, lateness="5m")
    left = {"page": str, "since": datetime}
    visits = clicks.key_by("who")
    flow.output("left", visits.stateful_map(click, None, on_timer=timed_out, schema=left))
    return flow


def clicks(count: int = 300, seed: int = 1) -> dict[str, list[Any]]:
    """Clicks of a few visitors in no order."""
    rng = random.Random(seed)
    noon = datetime(2024, 5, 1, 12)
    return {
        "at": [noon + timedelta(minutes=rng.randrange(5 * count)) for _ in range(count)],
        "who": [rng.choice(["Ann", "Bob", "Cleo", "Dan"]) for _ in range(count)],
        "page": [rng.choice(["cart", "home", "news", "paid"]) for _ in range(count)],
    }


if __name__ == "__main__":
    for row in shop().run({"clicks": clicks(40)}, workers=2)["left"].to_pylist()[:5]:
        print(f"{row['at']:%H:%M} {row['who']} left at {row['page']}, {row['since']:%H:%M}")
