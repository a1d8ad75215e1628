"""Flink's watermarks: sensors with readings out of order, one of which stops for a while.

On each worker, marks stay behind the readings by the allowed disorder, and travel with the data. A
window is emitted when the least mark of all workers has reached its end. A worker without records
for a while is idle, and other workers do not wait for it. Its next records may be late, and then go
to the late output, at their own time.
"""

import numpy as np

import jeton as jt
from jeton.idioms.watermark_sources import marks_from_times
from jeton.idioms.watermarks import unmarked, watermark_operator


class Averages:
    """The average of each room over windows of 10, once the watermark has reached their ends."""

    def __init__(self, info):
        self.readings = jt.state.RecordQueue(info.kind, ["room"])
        info.keep(self.readings)

    def on_data(self, port, ref, batch, output):
        self.readings.push(None, batch.at(window_ends(batch.times)))

    def on_mark(self, mark, token, output):
        complete = self.readings.take(mark, inclusive=True)
        if complete is not None:
            rooms = complete.to_arrow().group_by(["ts", "room"]).aggregate([("degrees", "mean")])
            rooms = rooms.rename_columns(["ts", "room", "mean"])
            output.session(token).give(jt.Batch.from_arrow(rooms, time="ts"))


def window_ends(times: np.ndarray) -> np.ndarray:
    return (times // 10 + 1) * 10


def averages(disorder: int = 3, idle_after: float | None = None) -> jt.Flow:
    """A flow from readings to their averages over windows of 10, and to late readings."""
    flow = jt.Flow("averages")
    readings = flow.input("readings", time="ts")
    marked = marks_from_times(readings, disorder, idle_after=idle_after)
    means = watermark_operator([marked], Averages, pacts=[jt.Exchange("room")], due=window_ends)
    flow.output("means", unmarked(means))
    if means.late is not None:
        flow.output("late", means.late)
    return flow


READINGS = {
    "ts": [1, 4, 2, 8, 13, 11, 26],
    "room": ["hall", "attic", "hall", "hall", "attic", "hall", "hall"],
    "degrees": [20.0, 24.0, 22.0, 21.0, 25.0, 19.0, 18.0],
}


if __name__ == "__main__":
    with averages(idle_after=60.0).open(workers=2) as run:
        run.run_to_rest()  # a minute passes, simulated: both workers are idle
        run.input("readings", 0).send(READINGS)
        while run.turn():
            pass
        emitted = run.results()["means"].num_rows
        print(f"with worker 1 idle, {emitted} averages are emitted")
        run.input("readings", 1).send({"ts": [9, 31], "room": ["attic"] * 2, "degrees": [30.0] * 2})
        result = run.finish()
    for row in result["means"].to_pylist():
        print(f"until {row['ts']}, {row['room']}: {row['mean']}")
    for row in result["late"].to_pylist():
        print(f"too late: {row['room']} at {row['ts']}")
