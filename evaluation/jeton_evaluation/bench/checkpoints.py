"""The cost of checkpoints of a running count by key: pause, duration and bytes.

A part of the keys changes between two checkpoints. Each is written in two ways, one after the
other, at the same state: by groups of bins, as containers are that do not know their changes, and
by what changed. Then a thread writes changes while the flow goes on, as in a long-lived query.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeVar

import numpy as np

import jeton as jt
from jeton.storage.checkpoints import Checkpoints, Part
from jeton_evaluation.bench.harness import Line, OptionError, Rounds, Say, command, numbers

BATCH = 1 << 16
SMALL = 1 << 12
"""Records in a batch, while a thread writes."""
WAYS = ("groups", "changes")

T = TypeVar("T")


def run(
    say: Say,
    keys: Annotated[str, "N,N,… keys"] = "1e4,1e5,1e6,1e7",
    changed: Annotated[str, "P,P,… of a thousand keys that change, between two checkpoints"] = (
        "1,10,100"
    ),
    rounds: Rounds = 3,
) -> list[Line]:
    """Measure checkpoints at all sizes."""
    thousandths = numbers(changed)
    if max(thousandths, default=0) > 1000:
        raise OptionError(f"of a thousand keys, {max(thousandths)} cannot change")
    return [Cost(count, say).measure(thousandths, rounds) for count in numbers(keys)]


main = command(run)


class Cost:
    """The cost of checkpoints of one running count."""

    def __init__(self, keys: int, say: Say) -> None:
        self.keys = keys
        self.say = say
        self.random = np.random.default_rng(0)
        self.version = 0
        self.parts: dict[str, Part | None] = dict.fromkeys(WAYS)

    def measure(self, thousandths: list[int], rounds: int) -> Line:
        """The cost of a complete checkpoint, of one without changes, and of some with."""
        flow = jt.Flow("state")
        flow.output("counts", flow.input("rows").key_by("k").running().count())
        lines: list[Line] = []
        with tempfile.TemporaryDirectory() as folder, flow.open() as run:
            self.flow, self.run, self.worker = flow, run, run.workers[0]
            self.output = self.worker.handles[flow.handle("output", "counts")]
            self.stores = {way: Checkpoints(Path(folder) / way) for way in WAYS}
            self._warm_up()
            self._feed(self.random.permutation(self.keys))
            lines += self._lines("complete", 1, lambda: None)
            lines += self._lines("the next one", 1, lambda: None)
            for part in thousandths:
                count = max(1, self.keys * part // 1000)
                keys = [self.random.choice(self.keys, count, replace=False) for _ in range(2)]
                # The first one of its kind also copies what was written before.
                self._feed(keys[0])
                self._take_both()
                what = f"{part / 10:g}% changed"
                lines += self._lines(what, rounds, partial(self._feed, keys[1]))
            for way, store in self.stores.items():
                seconds, share = _timed(partial(store.load(self.version).share, 0, 1))
                opening, again = _timed(partial(flow.open, restore=share))
                again.close()
                lines.append({"what": "restore", "way": way, "total_s": seconds + opening})
                self.say(
                    f"{self.keys:,} keys, restore, by {way}: {(seconds + opening) * 1e3:,.0f} ms"
                )
            lines += self._while_it_goes_on()
        return {"keys": self.keys, "checkpoints": lines}

    def _lines(self, what: str, rounds: int, change: Callable[[], None]) -> list[Line]:
        found: dict[str, list[Line]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            change()
            for way, line in self._take_both().items():
                found[way].append(line)
        lines = []
        for way, each in found.items():
            line = {name: median(one[name] for one in each) for name in each[0]}
            longest = max(one["total_s"] for one in each)
            lines.append({"what": what, "way": way, **line, "longest_s": longest})
            self.say(
                f"{self.keys:,} keys, {what}, by {way}: {line['total_s'] * 1e3:,.0f} ms, at most "
                f"{longest * 1e3:,.0f}; pause {line['pause_s'] * 1e3:,.2f} ms; "
                f"{line['bytes'] / 1e6:,.2f} MB, {line['bytes'] / self.keys:.2f} bytes a key"
            )
        return lines

    def _take_both(self) -> dict[str, Line]:
        self.version += 1
        return {way: self._take(way) for way in WAYS}

    def _take(self, way: str) -> Line:
        pause, state = _timed(lambda: self._state(way))
        writing, part = _timed(lambda: self._write(way, state))
        return {"pause_s": pause, "total_s": pause + writing, "bytes": part.written}

    def _state(self, way: str) -> Any:
        if way == "groups":
            return self.worker.snapshot()
        base = self.parts[way]
        return self.worker.cut({} if base is None else base.tokens)

    def _write(self, way: str, state: Any) -> Part:
        store = self.stores[way]
        part = store.write_part(self.version, 0, state, base=self.parts[way])
        self.parts[way] = part
        store.commit(self.version, [part], flow=self.flow.name)
        store.clean(2)
        return part

    def _while_it_goes_on(self) -> list[Line]:
        """The longest time that a small batch takes, while a thread writes and while none does."""
        lines = []
        self.parts["changes"] = None
        for what in ("nothing", "complete", "the next one", "1% changed"):
            if what == "1% changed":
                self._feed(self.random.choice(self.keys, max(1, self.keys // 100), replace=False))
            self.version += 1
            start = time.perf_counter()
            state = None if what == "nothing" else self._state("changes")
            pause = time.perf_counter() - start
            if state is None:
                writer = threading.Thread(target=time.sleep, args=(0.5,))
            else:
                writer = threading.Thread(target=self._write, args=("changes", state))
            taken: list[float] = []
            writer.start()
            try:
                while writer.is_alive() or len(taken) < 20:
                    keys = self.random.integers(0, self.keys, SMALL)
                    taken.append(_timed(partial(self._feed, keys))[0])
            finally:
                # It writes into a folder that is deleted, also when the user has had enough.
                writer.join()
            usual, most, longest = np.quantile(taken, [0.5, 0.99, 1.0]).tolist()
            lines.append(
                {
                    "what": what,
                    "way": "while the flow goes on",
                    "pause_s": pause,
                    "usual_batch_s": usual,
                    "p99_batch_s": most,
                    "longest_batch_s": longest,
                }
            )
            self.say(
                f"{self.keys:,} keys, a thread writes {what}: pause {pause * 1e3:,.2f} ms, then "
                f"batches of {SMALL:,} take {usual * 1e3:,.2f} ms, 99 of 100 at most "
                f"{most * 1e3:,.2f}, all at most {longest * 1e3:,.2f}"
            )
        return lines

    def _warm_up(self) -> None:
        """Compile what is compiled on first use."""
        with tempfile.TemporaryDirectory() as folder:
            store, part = Checkpoints(folder), None
            for version in range(2):
                self._feed(np.arange(3))
                cut = self.worker.cut({} if part is None else part.tokens)
                self._feed(np.arange(4))
                part = store.write_part(version, 0, cut, base=part)

    def _feed(self, keys: Any) -> None:
        for start in range(0, len(keys), BATCH):
            self.run.input("rows").send({"k": keys[start : start + BATCH] * 7}, times=None)
            self.run.run_to_rest()
            self.output.clear()


def _timed(act: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    made = act()
    return time.perf_counter() - start, made
