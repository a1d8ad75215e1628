"""Joins in event time: bids with their auctions, and bids with the bids that answer them.

An as-of join adds to each bid the latest description of its auction that is not later than the bid.
An interval join finds the bids on the same auction that another bid answered within 10 time units,
with a higher price.

Neither join waits longer than necessary. A bid is emitted once the auctions are complete up to its
time. The two bids of a pair wait for each other without holding back the frontier: the one that
arrives last brings the token for both. Records that cannot match any more are dropped.
"""

import jeton as jt


def bidding() -> jt.Flow:
    """A flow from auctions and bids to bids with descriptions, and to bids that were answered."""
    flow = jt.Flow("bidding")
    auctions = flow.input("auctions", schema={"id": int, "item": str, "reserve": int})
    bids = flow.input("bids", schema={"auction": int, "bidder": str, "price": int})

    described = bids.key_by("auction").asof_join(auctions.key_by("id"))
    flow.output("described", described)

    first = bids.with_columns(since=lambda batch: batch["time"]).key_by("auction")
    answered = first.interval_join(bids.key_by("auction"), 1, 10, suffix="_next")
    flow.output("answered", answered.filter(lambda batch: batch["price_next"] > batch["price"]))
    return flow


AUCTIONS = {
    "time": [0, 20],
    "id": [7, 7],
    "item": ["lamp", "lamp, slightly bent"],
    "reserve": [50, 30],
}
BIDS = {
    "time": [5, 9, 25, 26],
    "auction": [7, 7, 7, 8],
    "bidder": ["Ann", "Bob", "Cleo", "Dan"],
    "price": [20, 25, 30, 99],
}

if __name__ == "__main__":
    results = bidding().run({"auctions": AUCTIONS, "bids": BIDS}, workers=2)
    for row in results["described"].to_pylist():
        item = row["item"] or "something unheard of"
        print(f"at {row['time']:>2} {row['bidder']} bids {row['price']} for {item}")
    for row in results["answered"].to_pylist():
        wait = row["time"] - row["since"]
        print(f"{row['bidder_next']} outbid {row['bidder']} after {wait}")
