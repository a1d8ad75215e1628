"""Orders and their payments within five minutes; orders that stay unpaid come out with nulls."""

from datetime import datetime

import jeton as jt


def paid() -> jt.Flow:
    """Each order with its payment, if that comes within five minutes."""
    flow = jt.Flow("paid")
    orders = flow.input("orders", time="at", schema={"order": int, "item": str})
    payments = flow.input("payments", time="at", schema={"order": int, "amount": float})
    joined = orders.key_by("order").interval_join(
        payments.key_by("order"), 0, "5 minutes", how="left"
    )
    flow.output("paid", joined.filter(jt.col("amount").is_not_null()))
    flow.output("unpaid", joined.filter(jt.col("amount").is_null()).select("order", "item"))
    return flow


def at(minute: int, second: int = 0) -> datetime:
    """A time of the day in question."""
    return datetime(2024, 5, 6, 12, minute, second)


ORDERS = {"at": [at(0), at(1), at(2)], "order": [1, 2, 3], "item": ["cup", "pen", "ink"]}
PAYMENTS = {"at": [at(4, 30), at(6, 1)], "order": [1, 2], "amount": [8.5, 3.0]}

if __name__ == "__main__":
    result = paid().run({"orders": ORDERS, "payments": PAYMENTS}, workers=2)
    print("paid:", [(row["order"], row["amount"]) for row in result["paid"].to_pylist()])
    print("unpaid:", [row["order"] for row in result["unpaid"].to_pylist()])
