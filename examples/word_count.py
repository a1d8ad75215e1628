"""Word count: an update for each word, and the top words of each window.

Each line has a time. The first output follows the paper's word count: every word is emitted at once
with its count so far. The second output waits for windows to be complete and emits the three most
frequent words of each.
"""

import pyarrow.compute as pc

import jeton as jt


def words_in(lines: jt.Stream) -> jt.Stream:
    """A record for each word, at the time of its line."""

    def split(batch: jt.Batch):
        return pc.split_pattern_regex(pc.ascii_lower(batch["line"]), "[^a-z]+")

    words = lines.with_columns(line=split).explode("line", into="word")
    return words.filter(lambda batch: pc.not_equal(batch["word"], ""))


def word_count(window: int = 10) -> jt.Flow:
    """A flow from lines to counts so far, and to the top three words of each window."""
    flow = jt.Flow("word count")
    words = words_in(flow.input("lines", schema={"line": str}))

    # An update for each word: exchanged by word, with state in bins, and at most one token.
    flow.output("counts", words.key_by("word").running().count())

    # Counts of each window, emitted when the frontier has passed its end; then the greatest of
    # them, which all have the window's end as their time. Equal counts are ordered by word.
    in_window = words.key_by("word").tumbling(window).count()
    flow.output("top", in_window.key_by().each_time().top_k(3, by="count"))
    return flow


LINES = {
    "time": [1, 4, 8, 12, 17],
    "line": [
        "To be, or not to be: that is the question:",
        "Whether 'tis nobler in the mind to suffer",
        "The slings and arrows of outrageous fortune,",
        "Or to take arms against a sea of troubles,",
        "And by opposing end them. To die: to sleep;",
    ],
}


if __name__ == "__main__":
    result = word_count().run({"lines": LINES}, workers=2)
    final = {row["word"]: row["count"] for row in result["counts"].to_pylist()}
    print("total:", ", ".join(f"{word} {final[word]}" for word in ("to", "the", "be", "or")))
    for row in result["top"].to_pylist():
        print(f"until {row['time']}, place {row['rank']}: {row['word']} ({row['count']})")
