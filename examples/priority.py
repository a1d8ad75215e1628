"""Priority: tickets for parked cars, each at a time that only the data knows.

A driver pays until some time, and may pay again before that. An operator puts each payment on its
agenda twice: for when it was made, and for when it runs out. It takes both out in order of time,
once the frontier has passed them, and tells the cars whose time is up. However many cars there
are, and each with a time of its own, it holds one token: at the least of these times.
"""

import jeton as jt
from jeton.idioms.priority import Agenda, schedule


def overdue(token, info):
    """The cars for which nobody has paid any more, at the time when that is so."""
    agenda = Agenda(info.kind, ["plate"])
    paid: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    info.keep(agenda, token, name="agenda")  # so that snapshots have both
    info.keep(paid, name="paid")
    token.drop()

    def step(input, output):
        for ref, batch in input:
            agenda.push(ref, batch.with_columns({"check": [False] * len(batch)}))
            # The right that came with a payment is as good for any later time.
            agenda.push(ref, batch.with_columns({"check": [True] * len(batch)}), batch["until"])
        for held, batch in agenda.pop_before(input.frontier):
            # Who pays at the last moment has paid.
            rows = sorted(batch.rows(), key=lambda row: (row["time"], row["check"]))
            for row in rows:
                plate, time = row["plate"], row["time"]
                if not row["check"]:
                    paid[plate] = max(row["until"], paid.get(plate, 0))
                elif paid.get(plate, 0) == time:
                    output.session(held, time).give(plate=plate)
                    del paid[plate]

    return step


def parking() -> jt.Flow:
    """A flow from payments to tickets, and to the payments in the order in which they run out."""
    flow = jt.Flow("parking")
    payments = flow.input("payments", schema={"plate": str, "until": int})
    tickets = payments.unary_frontier(overdue, pact=jt.Exchange("plate"), schema={"plate": str})
    flow.output("tickets", tickets)
    # If all that matters is the order, one call does it.
    flow.output("ends", schedule(payments, at="until", key=["plate"]))
    return flow


PAYMENTS = {
    "time": [0, 1, 3, 8, 12, 14, 25],
    "plate": ["ZH 7", "BE 1", "GR 5", "ZH 7", "BE 1", "GR 5", "ZH 7"],
    "until": [10, 9, 30, 20, 15, 18, 40],
}

if __name__ == "__main__":
    result = parking().run({"payments": PAYMENTS}, workers=2)
    for row in result["tickets"].to_pylist():
        print(f"{row['plate']} is overdue from {row['time']} on")
    print("payments end at", result["ends"]["time"].to_pylist())
