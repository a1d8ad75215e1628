"""Migration: baskets of a shop move to another worker at a chosen time, while customers buy.

A control stream says from which time on a bin of keys belongs to which worker. An operator routes
each purchase by the configuration at its own time, another one has the baskets. At time 10 all bins
go to worker 1: with the baskets, and with the right to report each of them when it is checked out,
which is pending work at that moment. The answers are those of baskets that stay where they are.
"""

import jeton as jt
from jeton.idioms.migration import movable_map


def basket(total, row, timer):
    """The value of a customer's basket; it is reported 8 after each purchase."""
    if row is None:
        return total, [{"total": total}]
    timer(8)
    return total + row["price"], []


def shop() -> jt.Flow:
    """A flow from purchases and reconfigurations to the values of baskets."""
    flow = jt.Flow("shop", bins=256)
    purchases = flow.input("purchases", schema={"customer": str, "price": int})
    moves = flow.input("moves", schema={"bin": int, "worker": int})
    baskets = movable_map(
        purchases, "customer", basket, 0, moves=moves, schema={"customer": str, "total": int}
    )
    flow.output("baskets", baskets)
    return flow


PURCHASES = {
    "time": [1, 3, 6, 11, 14],
    "customer": ["Ann", "Bob", "Ann", "Bob", "Ann"],
    "price": [10, 7, 5, 20, 1],
}
STAY: dict[str, list[int]] = {"time": [], "bin": [], "worker": []}
MOVE = {"time": [10] * 256, "bin": list(range(256)), "worker": [1] * 256}

if __name__ == "__main__":
    moved = shop().run({"purchases": PURCHASES, "moves": MOVE}, workers=2)["baskets"]
    for row in moved.sort_by("time").to_pylist():
        print(f"at {row['time']}, the basket of {row['customer']} is worth {row['total']}")
    stayed = shop().run({"purchases": PURCHASES, "moves": STAY}, workers=2)["baskets"]
    assert moved.sort_by("time") == stayed.sort_by("time")
