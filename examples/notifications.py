"""Naiad's notifications: request a callback for when a time is complete, and answer then.

The operator finds the longest word of each time. It has two callbacks, as a vertex in Naiad, and
never sees a frontier. In strict mode each invocation delivers one notification, as in Naiad; in
relaxed mode all that are complete. The results are the same.
"""

import jeton as jt
from jeton.idioms.notifications import Mode, Notificator, unary_notify


class LongestWord:
    """The longest word of each time, emitted when that time is complete."""

    def __init__(self, notificator: Notificator, info: jt.OperatorInfo) -> None:
        self.notificator = notificator
        self.longest: dict[int, str] = {}

    def on_receive(self, ref, batch, output) -> None:
        for time, part in batch.by_time():
            words = part["word"].to_pylist()
            self.notificator.notify_at(ref, time)  # requested twice, delivered once
            # Of words of the same length, the one that comes first in the dictionary.
            self.longest[time] = min(
                [*words, self.longest.get(time, "")], key=lambda word: (-len(word), word)
            )

    def on_notify(self, token, output) -> None:
        output.session(token).give(longest=self.longest.pop(token.time))


def longest_words(mode: Mode = "strict") -> jt.Flow:
    """A flow from words to the longest one of each time."""
    flow = jt.Flow("longest words")
    words = flow.input("words", schema={"word": str})
    flow.output("longest", unary_notify(words, LongestWord, pact=jt.Gather(), mode=mode))
    return flow


WORDS = {
    "time": [3, 1, 2, 1, 3, 2],
    "word": ["call", "wake", "me", "up", "when", "september"],
}


if __name__ == "__main__":
    for mode in ("strict", "relaxed"):
        result = longest_words(mode).run({"words": WORDS}, workers=2)
        found = [f"{row['time']}: {row['longest']}" for row in result["longest"].to_pylist()]
        print(f"{mode:>7}:", ", ".join(found))
