"""Loops: records circulate until none is left, and the end of every round is known.

Inside a loop a record's time is ``Product(outer, round)``. Rounds need no barrier: on each worker,
the frontier shows when no more records of a round can arrive. Then `each_time` emits its groups and
`stateful_map` processes the round's records. A loop ends when no record circulates.
"""

import jeton as jt


def collatz(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
    """The steps that each number takes to 1, and how many numbers are left at each step."""

    def body(remaining):
        going, done = remaining.branch(lambda batch: batch["n"] == 1)

        def following(batch):
            odd = batch["n"] % 2 == 1
            n = odd * (3 * batch["n"] + 1) + ~odd * (batch["n"] // 2)
            return {"start": batch["start"], "n": n, "step": batch["step"] + 1}

        counted = remaining.key_by().each_time()
        counts.append(counted.aggregate(step=jt.agg.max("step"), numbers=jt.agg.count()).leave())
        return going.map(following), done

    counts: list[jt.Stream] = []
    start = numbers.map(lambda b: {"start": b["n"], "n": b["n"], "step": b["n"] * 0})
    return start.iterate(body, name="collatz").select("start", "step"), counts[0]


def components(edges: jt.Stream) -> jt.Stream:
    """The least node that each node is connected with: labels spread until none decreases."""

    def lower(node, row):  # edges come first, in round 0: their label is the least
        if row["label"] < 0:
            return node | {"next": [*node["next"], row["to"]]}, []
        if row["label"] >= node["label"]:
            return node, []
        update = {"label": row["label"], "to": -1, "leaves": False}
        spread = [update | {"node": neighbour} for neighbour in node["next"]]
        return node | {"label": row["label"]}, [*spread, update | {"leaves": True}]

    def body(records):
        updates = records.key_by("node").stateful_map(lower, {"label": 2**62, "next": []})
        going, leaving = updates.branch(lambda batch: batch["leaves"])
        return going.select("node", "to", "label"), leaving

    there = edges.map(lambda b: {"node": b["node"], "to": b["to"], "label": b["to"] * 0 - 1})
    back = edges.map(lambda b: {"node": b["to"], "to": b["node"], "label": b["to"] * 0 - 1})
    own = there.concat(back).map(lambda b: {"node": b["node"], "to": b["to"], "label": b["node"]})
    labels = there.concat(back, own).iterate(body, name="spread")
    # All labels of a node leave the loop; the least one is known when the time is complete.
    return labels.key_by("node").each_time().min("label", name="label")


def page_rank(edges: jt.Stream, rounds: int = 20, damping: float = 0.85) -> jt.Stream:
    """The rank of each node after some rounds; in each round it gets shares of its neighbours."""

    def pass_on(links, row):  # an edge has a negative share, so that edges come first
        if row["share"] < 0:
            return [*links, row["to"]], []
        rank = 1 - damping + damping * row["share"]
        if row["round"] == rounds:
            return links, [{"rank": rank, "share": 0.0, "round": rounds}]
        each = {"rank": 0.0, "round": row["round"] + 1}
        shares = [each | {"node": node, "share": rank / len(links)} for node in links]
        return links, [*shares, each | {"share": 0.0}]  # and one to itself, so that it has a record

    def body(shares):
        totals = shares.key_by("node").each_time()
        totals = totals.aggregate(share=jt.agg.sum("share"), round=jt.agg.max("round"))
        totals = totals.with_columns(to=lambda batch: batch["node"] * 0 - 1)
        links = edges.with_columns(
            share=lambda batch: batch["node"] * 0.0 - 1, round=lambda batch: batch["node"] * 0
        )
        links = links.select("node", "share", "round", "to")  # edges first, by this order
        both = totals.concat(links.enter(totals.scope)).key_by("node")
        going, done = both.stateful_map(pass_on, list).branch(lambda batch: batch["rank"] > 0)
        return going.select("node", "share", "round"), done

    nodes = edges.concat(edges.map(lambda b: {"node": b["to"], "to": b["to"]})).distinct("node")
    start = nodes.with_columns(share=lambda b: b["node"] * 0 + 1.0, round=lambda b: b["node"] * 0)
    return start.iterate(body, name="rank").select("node", "rank")


def loops() -> jt.Flow:
    """All three, on numbers and on a graph."""
    flow = jt.Flow("loops")
    steps, remaining = collatz(flow.input("numbers"))
    flow.output("steps", steps)
    flow.output("remaining", remaining)
    edges = flow.input("edges")
    flow.output("components", components(edges))
    flow.output("ranks", page_rank(edges))
    return flow


NUMBERS = {"time": [0] * 9, "n": list(range(1, 10))}
EDGES = {"time": [0] * 6, "node": [1, 2, 3, 3, 7, 8], "to": [2, 3, 1, 2, 8, 7]}

if __name__ == "__main__":
    result = loops().run({"numbers": NUMBERS, "edges": EDGES}, workers=2)
    for name in ("steps", "remaining", "components", "ranks"):
        rows = [tuple(row.values())[1:] for row in result[name].to_pylist()]
        print(f"{name}: {sorted(rows)[:6]}")
