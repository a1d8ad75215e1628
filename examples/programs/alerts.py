"""At most one alert for each machine in 10 seconds; the state survives a restart."""

from datetime import datetime, timedelta
from typing import Any

import jeton as jt


def alerts() -> jt.Flow:
    """Machines above 90 degrees."""
    flow = jt.Flow("alerts")
    readings = flow.input(
        "readings", time="at", schema={"at": datetime, "machine": str, "celsius": float}, lateness=0
    )
    hot = readings.filter(jt.col("celsius") > 90)
    flow.output("alerts", hot.key_by("machine").deduplicate(within="10s"))
    return flow


def rows(*seconds: int) -> dict[str, Any]:
    """Readings of one hot machine, at the given seconds after noon."""
    noon = datetime(2024, 5, 6, 12)
    times = [noon + timedelta(seconds=second) for second in seconds]
    return {"at": times, "machine": ["A"] * len(seconds), "celsius": [95.0] * len(seconds)}


if __name__ == "__main__":
    with alerts().open() as run:
        run.input("readings").send(rows(0, 3, 8, 14))
        run.run_to_rest()
        before, snapshot = run.results()["alerts"], run.snapshot()
    with alerts().open(workers=3, restore=snapshot) as run:
        run.input("readings").send(rows(20, 29))
        after = run.finish()["alerts"]
    for table in (before, after):
        print([f"{row['machine']} at {row['at']:%H:%M:%S}" for row in table.to_pylist()])
