"""The paper's example: a tumbling average that holds one token for each open window.

Each window holds a token at its end. Once the input's frontier has passed the end, no more records
can arrive for the window, and its average is sent with that token. One invocation retires all
windows that the frontier has passed.
"""

import jeton as jt


class Window:
    """The sum and count of one window, and the token to emit its average."""

    def __init__(self, token: jt.TimestampToken) -> None:
        self.token = token
        self.sum = 0.0
        self.count = 0

    def add(self, values) -> None:
        self.sum += float(values.sum())
        self.count += len(values)


def tumbling_average(size: int):
    """The average of ``value`` over each window of ``size``, sent at the window's end."""

    def build(token, info):  # once for each worker, with the initial token
        token.drop()
        windows: jt.state.TimeMap[Window] = jt.state.TimeMap()  # by end, in order

        def step(input, output):  # whenever there is input, or the frontier has moved
            for ref, batch in input:
                for end, part in batch.split_by(lambda times: (times // size + 1) * size):
                    window = windows.get_or(end, lambda: Window(ref.retain(end)))
                    window.add(part["value"])
            for _, window in windows.pop_before(input.frontier):
                with window.token as token, output.session(token) as session:
                    session.give(average=window.sum / window.count)

        return step

    return build


def averages() -> jt.Flow:
    """A flow from readings to their averages over windows of 10."""
    flow = jt.Flow("averages")
    readings = flow.input("readings", time="ts")
    flow.output("averages", readings.unary_frontier(tumbling_average(10), name="tumbling average"))
    return flow


if __name__ == "__main__":
    readings = {"ts": [3, 7, 12, 35], "value": [1.0, 2.0, 4.0, 8.0]}
    for row in averages().run({"readings": readings})["averages"].to_pylist():
        print(f"window ending at {row['ts']:>2}: {row['average']}")
