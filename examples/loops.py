"""Loops: records go round until there is nothing new, and every round's end is known.

Inside a loop a record's time is ``Product(outer, round)``. There is no barrier between rounds: the
frontier tells, round by round and worker by worker, when no more records of a round can come, and
that is when `each_time` tells its groups. A loop ends when nothing goes round any more.
"""

import numpy as np

import jeton as jt


def along(records: jt.Stream, edges: jt.Stream) -> jt.Stream:
    """Each record once for every edge that leaves its ``node``, which becomes the edge's end.

    A hand-written operator: records wait until the edges are complete at their time, those of the
    whole loop if need be, and hold the least tokens for that.
    """

    def build(token, info):
        waiting, known = jt.RecordQueue(info.kind), []
        token.drop()

        def step(records, edges, output):
            known.extend(batch for _, batch in edges)
            for ref, batch in records:
                waiting.push(ref, batch)
            for time, batch in waiting.pop(edges.frontier):
                graph = jt.concat(known) if known else batch.slice(0, 0)
                start, end = graph["node"][:], graph["to"] if known else graph["node"]
                order = np.argsort(start, kind="stable")
                first, last = (
                    np.searchsorted(start[order], batch["node"], side=side)
                    for side in ("left", "right")
                )
                each = np.repeat(np.arange(len(batch)), last - first)
                places = np.arange(len(each)) - np.repeat(np.cumsum(last - first) - last, last - first)
                moved = batch.take(each).with_columns({"node": end[order][places]})
                output.session(waiting.right_for(time)).give(moved)
            waiting.settle()

        return step

    pact = jt.Exchange("node")
    return records.binary_frontier(edges, build, pact=pact, name="along")


def reachable(flow: jt.Flow, edges: jt.Stream) -> jt.Stream:
    """All nodes that can be reached from the input ``roots``: follow edges from what is new."""

    def body(nodes):
        new = nodes.distinct("node")
        return along(new, edges.enter(new.scope)), new

    return flow.input("roots").iterate(body, name="reach")


def components(edges: jt.Stream) -> jt.Stream:
    """For each node, the least node that it is connected with: labels spread until none falls."""
    both = edges.concat(edges.map(lambda batch: {"node": batch["to"], "to": batch["node"]}))
    start = both.distinct("node").with_columns(label=lambda batch: batch["node"])

    def body(labels):
        # The least label that reaches a node in a round, told when the round is complete …
        least = labels.key_by("node").each_time().min("label", name="label")
        # … goes on if it is the least so far, and new.
        so_far = least.key_by("node").rolling(ordered=True).min("label", name="best")
        fallen = so_far.filter(lambda batch: batch["label"] == batch["best"])
        new = fallen.distinct("node", "label")
        return along(new, both.enter(new.scope)), new

    return start.iterate(body, name="spread").key_by("node").each_time().min("label", name="label")


def page_rank(edges: jt.Stream, rounds: int = 20, damping: float = 0.85) -> jt.Stream:
    """Ranks of nodes after some rounds: each round sums up what comes along the edges."""
    out = edges.with_columns(links=lambda batch: batch["node"] * 0 + 1)
    into = edges.map(lambda batch: {"node": batch["to"], "links": batch["to"] * 0})
    nodes = out.select("node", "links").concat(into).key_by("node").each_time().sum("links", name="links")
    start = nodes.with_columns(share=lambda b: b["links"] * 0.0 + 1 / damping - (1 - damping) / damping,
                               round=lambda b: b["links"] * 0)  # fmt: skip

    def body(shares):
        totals = shares.key_by("node").each_time().aggregate(
            share=jt.agg.sum("share"), links=jt.agg.max("links"), round=jt.agg.max("round")
        )  # fmt: skip
        ranks = totals.with_columns(rank=lambda b: 1 - damping + damping * b["share"])
        going, done = ranks.branch(lambda batch: batch["round"] == rounds)
        going = going.with_columns(round=lambda batch: batch["round"] + 1)
        sent = going.with_columns(share=lambda b: b["rank"] / np.maximum(b["links"], 1), links=lambda b: b["links"] * 0)
        kept = going.with_columns(share=lambda b: b["rank"] * 0)
        names = ("node", "links", "share", "round")
        return along(sent.select(*names), edges.enter(sent.scope)).concat(kept.select(*names)), done

    return start.iterate(body, name="rank").select("node", "rank")
