"""Loops: records go round until nothing is left to say, and every round's end is known.

Inside a loop a record's time is ``Product(outer, round)``. There is no barrier between rounds: the
frontier tells, on each worker, when no more records of a round can come. That is when `each_time`
tells its groups and a state machine sees the round's records. A loop ends when nothing goes round.
"""

import jeton as jt


def collatz(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
    """The steps that each number takes to 1; and how many numbers are on their way, by step."""

    def body(on_their_way):
        going, done = on_their_way.branch(lambda batch: batch["n"] == 1)

        def following(batch):
            odd = batch["n"] % 2 == 1
            n = odd * (3 * batch["n"] + 1) + ~odd * (batch["n"] // 2)
            return {"start": batch["start"], "n": n, "step": batch["step"] + 1}

        counted = on_their_way.key_by().each_time()
        counts.append(counted.aggregate(step=jt.agg.max("step"), numbers=jt.agg.count()).leave())
        return going.map(following), done

    counts: list[jt.Stream] = []
    start = numbers.map(lambda b: {"start": b["n"], "n": b["n"], "step": b["n"] * 0})
    return start.iterate(body, name="collatz").select("start", "step"), counts[0]


def components(edges: jt.Stream) -> jt.Stream:
    """The least node that each node is connected with: labels spread until none falls."""

    def fall(node, row):  # edges come first, in round 0: their label is the least
        if row["label"] < 0:
            return node | {"next": [*node["next"], row["to"]]}, []
        if row["label"] >= node["label"]:
            return node, []
        news = {"label": row["label"], "to": -1, "told": False}
        tell = [news | {"node": neighbour} for neighbour in node["next"]]
        return node | {"label": row["label"]}, [*tell, news | {"told": True}]

    def body(records):
        spread = records.key_by("node").stateful_map(fall, {"label": 2**62, "next": []})
        going, told = spread.branch(lambda batch: batch["told"])
        return going.select("node", "to", "label"), told

    there = edges.map(lambda b: {"node": b["node"], "to": b["to"], "label": b["to"] * 0 - 1})
    back = edges.map(lambda b: {"node": b["to"], "to": b["node"], "label": b["to"] * 0 - 1})
    own = there.concat(back).map(lambda b: {"node": b["node"], "to": b["to"], "label": b["node"]})
    told = there.concat(back, own).iterate(body, name="spread")
    # All labels that a node had leave the loop; the last one is known when the time is complete.
    return told.key_by("node").each_time().min("label", name="label")


def page_rank(edges: jt.Stream, rounds: int = 20, damping: float = 0.85) -> jt.Stream:
    """The rank of each node after some rounds, in each of which it gets shares of others'."""

    def pass_on(links, row):  # an edge has a negative share, so that edges come first
        if row["share"] < 0:
            return [*links, row["to"]], []
        rank = 1 - damping + damping * row["share"]
        if row["round"] == rounds:
            return links, [{"rank": rank, "share": 0.0, "round": rounds}]
        each = {"rank": 0.0, "round": row["round"] + 1}
        shares = [each | {"node": node, "share": rank / len(links)} for node in links]
        return links, [*shares, each | {"share": 0.0}]  # and to itself, so as to be heard of

    def body(shares):
        totals = shares.key_by("node").each_time()
        totals = totals.aggregate(share=jt.agg.sum("share"), round=jt.agg.max("round"))
        totals = totals.with_columns(to=lambda batch: batch["node"] * 0 - 1)
        links = edges.with_columns(
            share=lambda batch: batch["node"] * 0.0 - 1, round=lambda batch: batch["node"] * 0
        )
        links = links.select("node", "share", "round", "to")  # edges first, by this order
        told = totals.concat(links.enter(totals.scope)).key_by("node").stateful_map(pass_on, list)
        going, done = told.branch(lambda batch: batch["rank"] > 0)
        return going.select("node", "share", "round"), done

    nodes = edges.concat(edges.map(lambda b: {"node": b["to"], "to": b["to"]})).distinct("node")
    start = nodes.with_columns(share=lambda b: b["node"] * 0 + 1.0, round=lambda b: b["node"] * 0)
    return start.iterate(body, name="rank").select("node", "rank")


def loops() -> jt.Flow:
    """All three, on numbers and on a graph."""
    flow = jt.Flow("loops")
    steps, on_their_way = collatz(flow.input("numbers"))
    flow.output("steps", steps)
    flow.output("on their way", on_their_way)
    edges = flow.input("edges")
    flow.output("components", components(edges))
    flow.output("ranks", page_rank(edges))
    return flow


NUMBERS = {"time": [0] * 9, "n": list(range(1, 10))}
EDGES = {"time": [0] * 6, "node": [1, 2, 3, 3, 7, 8], "to": [2, 3, 1, 2, 8, 7]}

if __name__ == "__main__":
    result = loops().run({"numbers": NUMBERS, "edges": EDGES}, workers=2)
    for name in ("steps", "on their way", "components", "ranks"):
        rows = [tuple(row.values())[1:] for row in result[name].to_pylist()]
        print(f"{name}: {sorted(rows)[:6]}")
