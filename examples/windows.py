"""Windows by event time, over data that comes out of order.

Rides of a few taxis are reported late and mixed up, but none later than 30 after it ended. The
input allows for that: as a stream, each of its partitions stays 30 behind what it has sent, and
windows are emitted once the frontier of *all* partitions has passed them. So nothing within the
bound is ever late; records that are later still go aside and are counted. A whole table, as here,
is complete: nothing in it is late.
"""

import random

import jeton as jt

LATENESS = 30


def taxis() -> jt.Flow:
    """Fares in fixed, sliding and session windows, and in windows that end as the data says."""
    flow = jt.Flow("taxis")
    rides = flow.input(
        "rides",
        time="ended",
        schema={"taxi": str, "fare": float, "paid": int},
        lateness=LATENESS,
    )
    by_taxi = rides.key_by("taxi")

    # [0, 60), [60, 120), …, told at 60, 120, …
    flow.output("hourly", by_taxi.tumbling(60).aggregate(rides=jt.agg.count(),
                                                         earned=jt.agg.sum("fare")))  # fmt: skip
    # The best fare of the last 120, every 60.
    flow.output("best", by_taxi.sliding(120, every=60).max("fare", name="fare"))
    # Shifts: a taxi that ends no ride for 45 is taken to have a break.
    flow.output("shifts", by_taxi.session_window(45).sum("fare", name="earned"))
    # Each ride says until when it is paid: what comes in at each of those times, of all taxis.
    flow.output("income", rides.key_by().until("paid").sum("fare", name="income"))
    # And what came too late for all of that.
    flow.output("late", rides.late)
    return flow


def reports(count: int = 300, seed: int = 1) -> dict[str, list[object]]:
    """Rides in the order in which they are reported: each within `LATENESS` of its end."""
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
