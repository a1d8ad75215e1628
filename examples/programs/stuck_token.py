"""A result that does not come: an operator keeps tokens, and the error names the line."""

import jeton as jt
from jeton.errors import FlowStalled


def last_of_each(token, info):
    """Keeps the latest record of each key, with a token for it, and never gives one up."""
    token.drop()
    latest = {}

    def step(input, output):
        for ref, batch in input:
            for key in batch["key"]:
                if key not in latest:
                    latest[key] = ref.retain()

    return step


def stuck() -> jt.Flow:
    """A count that waits for times that the operator before it still holds."""
    flow = jt.Flow("stuck")
    kept = flow.input("rows", schema={"key": str}).unary_frontier(last_of_each, name="latest")
    flow.output("counts", kept.key_by().tumbling(10).count())
    return flow


if __name__ == "__main__":
    try:
        stuck().run({"rows": {"time": [3, 5], "key": ["a", "b"]}})
    except FlowStalled as error:
        print(error)
