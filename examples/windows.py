"""Windows by event time, over data that is out of order.

Rides of a few taxis are reported out of order, but none later than 30 after it ended. The input
allows for that: in a stream, each of its partitions stays 30 behind its greatest time, and windows
are emitted once the frontier of *all* partitions has passed them. So nothing within the bound is
ever late; later records are set aside and counted. A table, as here, is complete: nothing in it is
late.
"""

import random

import jeton as jt

LATENESS = 30


def taxis() -> jt.Flow:
    """Fares in fixed, sliding and session windows, and in windows whose ends are in the data."""
    flow = jt.Flow("taxis")
    rides = flow.input(
        "rides",
        time="ended",
        schema={"taxi": str, "fare": float, "paid": int},
        lateness=LATENESS,
    )
    by_taxi = rides.key_by("taxi")

    # [0, 60), [60, 120), …, emitted at 60, 120, …
    flow.output("hourly", by_taxi.tumbling(60).aggregate(rides=jt.agg.count(),
                                                         earned=jt.agg.sum("fare")))  # fmt: skip
    # The best fare of the last 120, every 60.
    flow.output("best", by_taxi.sliding(120, every=60).max("fare", name="fare"))
    # Shifts: 45 without the end of a ride is a break.
    flow.output("shifts", by_taxi.session_window(45).sum("fare", name="earned"))
    # Each ride has a time of payment: the income of all taxis at each of these times.
    flow.output("income", rides.key_by().until("paid").sum("fare", name="income"))
    # Records that were too late.
    flow.output("late", rides.late)
    return flow


def reports(count: int = 300, seed: int = 1) -> dict[str, list[object]]:
    """Rides in the order of their reports, each within `LATENESS` of its end."""
    rng = random.Random(seed)
    rides = [
        (ended, rng.choice("ABC"), rng.randint(5, 40) / 2, (ended // 100 + 2) * 100)
        for ended in sorted(rng.randrange(10 * count) for _ in range(count))
    ]
    rides.sort(key=lambda ride: ride[0] + rng.randint(0, LATENESS))
    names = ("ended", "taxi", "fare", "paid")
    return dict(zip(names, map(list, zip(*rides, strict=True)), strict=True))


if __name__ == "__main__":
    result = taxis().run({"rides": reports()}, workers=2)
    print(f"late: {result.late['rides']} of 300")
    for name in ("hourly", "best", "shifts", "income"):
        first, *_ = result[name].to_pylist()
        print(f"{name}: {result[name].num_rows} results, first {first}")
