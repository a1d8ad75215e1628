"""Asynchronous calls: each order is looked up in a service, without blocking the flow.

The service is a coroutine here. It is slow, it fails for some users at the first attempt, and it
does not know others at all. Each worker has up to 16 calls pending, and holds tokens for them. So
the hourly totals are emitted when all answers for an hour have arrived, and not before, while the
count next to them continues.
"""

import asyncio

import jeton as jt
from jeton.idioms.map_async import try_map_async

COUNTRIES = {1: "CH", 2: "FR", 3: "CH", 4: "JP", 5: "FR"}


class Service:
    """Stand-in for a connection pool: opened once on each worker, in its event loop."""

    async def __aenter__(self):
        self.asked: set[int] = set()
        return self

    async def __aexit__(self, *_):
        self.asked.clear()

    async def country(self, user: int) -> str:
        await asyncio.sleep(0.002)
        if user % 2 == 0 and user not in self.asked:
            self.asked.add(user)
            raise ConnectionError("try again")
        return COUNTRIES[user]


async def with_country(order, service: Service):
    """An order with its user's country, as the service knows it."""
    return {**order, "country": await service.country(order["user"])}


def lookup() -> jt.Flow:
    """A flow from orders to hourly totals by country, and to the orders that failed."""
    flow = jt.Flow("lookup")
    orders = flow.input("orders", schema={"user": int, "price": float})
    placed, rejected = try_map_async(
        orders, with_country, client=Service, concurrency=16, retries=2, backoff=0.001
    )
    flow.output("totals", placed.key_by("country").tumbling(60).sum("price", name="total"))
    flow.output("rejected", rejected)
    flow.output("orders", orders.key_by().tumbling(60).count())
    return flow


ORDERS = {
    "time": [5, 10, 20, 40, 62, 70, 90, 130],
    "user": [1, 2, 3, 9, 4, 5, 1, 2],
    "price": [10.0, 20.0, 5.0, 8.0, 30.0, 2.5, 4.0, 1.0],
}

if __name__ == "__main__":
    result = lookup().run({"orders": ORDERS}, workers=2)
    for row in result["totals"].to_pylist():
        print(f"until {row['time']}, {row['country']}: {row['total']}")
    for row in result["rejected"].to_pylist():
        print(f"user {row['user']}: {row['error']} after {row['attempts']} attempts")
