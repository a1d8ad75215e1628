"""Asynchronous enrichment: each user is looked up in a service, without blocking the flow."""

import asyncio

import jeton as jt
from jeton.idioms.map_async import try_map_async

CITIES = {"ann": "Basel", "bob": "Lyon"}


async def city_of(row):
    """A row with the city of its user, as a service knows it."""
    await asyncio.sleep(0.001)
    return {**row, "city": CITIES[row["user"]]}


def enriched() -> jt.Flow:
    """Clicks by city and hour, and those whose user the service does not know."""
    flow = jt.Flow("enriched")
    clicks = flow.input("clicks", schema={"user": str})
    known, unknown = try_map_async(clicks, city_of, concurrency=16)
    flow.output("counts", known.key_by("city").tumbling(3600).count())
    flow.output("unknown", unknown)
    return flow


CLICKS = {"time": [10, 20, 30, 4000], "user": ["ann", "bob", "eve", "ann"]}

if __name__ == "__main__":
    result = enriched().run({"clicks": CLICKS}, workers=2)
    for row in result["counts"].to_pylist():
        print(f"until {row['time']}, {row['city']}: {row['count']}")
    print("unknown:", result["unknown"]["user"].to_pylist())
