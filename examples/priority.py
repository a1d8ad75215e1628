"""Priority: tickets for parked cars, each at a time that only the data knows.

A driver pays until some time, and may pay again before that. An operator puts each payment on its
agenda twice: for the time it was made, and for the time it expires. It takes both out in order of
time, once the frontier has passed them, and emits the cars whose time is up. For any number of
cars, each with its own time, it holds one token: at the least of these times.
"""

import jeton as jt
from jeton.idioms.priority import Agenda, schedule


def overdue(token, info):
    """The cars whose payment has expired, at the time of expiry."""
    agenda = Agenda(info.kind, ["plate"])
    paid: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    info.keep(agenda, token, name="agenda")  # so that snapshots include both
    info.keep(paid, name="paid")
    token.drop()

    def step(input, output):
        for ref, batch in input:
            agenda.push(ref, batch.with_columns({"check": [False] * len(batch)}))
            # The reference of a payment is valid for any later time too.
            agenda.push(ref, batch.with_columns({"check": [True] * len(batch)}), batch["until"])
        for held, batch in agenda.pop_before(input.frontier):
            # A payment at the last moment counts.
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
    """A flow from payments to tickets, and to the payments in order of expiry."""
    flow = jt.Flow("parking")
    payments = flow.input("payments", schema={"plate": str, "until": int})
    tickets = payments.unary_frontier(overdue, pact=jt.Exchange("plate"), schema={"plate": str})
    flow.output("tickets", tickets)
    # If only the order matters, one call is enough.
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
