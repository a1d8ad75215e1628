"""Joins in event time: bids find their auction, and how they stand to other bids.

An as-of join gives each bid what was known of its auction when it was made: the latest description
that is not later than the bid. An interval join finds the bids on the same auction that another
bidder answered within 10 time units, with a higher price.

Nothing here waits for more than it must. A bid is answered once the auctions are complete up to its
time. The two bids of a pair wait for each other without holding anything back: whichever comes last
brings the right to tell of both. What can find no partner any more is forgotten.
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
