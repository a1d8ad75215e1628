"""The generator's text columns: drawn from small vocabularies, or spelled letter by letter."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from string import ascii_lowercase, digits
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton_evaluation.nexmark import kernels
from jeton_evaluation.nexmark.kernels import Bytes, Integers

Key = Callable[[str], np.uint64]
"""A key of its own for each thing that is drawn."""

STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = (
    *("Phoenix", "Tucson", "Los Angeles", "San Diego", "Boise"),
    *("Portland", "Salem", "Seattle", "Spokane", "Cheyenne"),
)
FIRST_NAMES: Final = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Leslie", "Tony")
LAST_NAMES: Final = ("Baker", "Carter", "Fisher", "Hunter", "Mason", "Porter", "Turner", "Weaver")
HOT_CHANNELS: Final = ("Apple", "Baidu", "Facebook", "Google")
CHANNELS: Final = 10_000
"""Channels that are not hot: they share one half of the bids."""

NAME_LENGTHS: Final = (3, 20)
DESCRIPTION_LENGTHS: Final = (3, 100)


def _alphabet(letters: str) -> Bytes:
    """A letter for each byte, each as often as 256 allows."""
    spread = np.arange(256) * len(letters) // 256
    return np.frombuffer(letters.encode(), dtype=np.uint8)[spread]


LETTERS: Final = _alphabet(ascii_lowercase)
WORDS: Final = _alphabet(ascii_lowercase + "  ")
DIGITS: Final = _alphabet(digits)


def text_column(kind: str, name: str, numbers: Integers, key: Key, extra: int) -> pa.Array:
    """A text column of events of a kind, given their numbers."""
    column = f"{kind}.{name}"
    if name == "extra":
        return _spelled(numbers, column, key, (extra - extra // 5, extra + extra // 5))
    if name in ("channel", "url"):
        channels, urls = _channels()
        return (channels if name == "channel" else urls).take(_chosen_channels(numbers, key))
    return _MAKERS[name](numbers, column, key)


def _spelled(
    numbers: Integers, column: str, key: Key, lengths: tuple[int, int], alphabet: Bytes = WORDS
) -> pa.Array:
    shortest, longest = lengths
    offsets = np.empty(len(numbers) + 1, dtype=np.int32)
    offsets[0] = 0
    if shortest == longest:
        offsets[1:] = shortest
    else:
        limit = longest - shortest + 1
        kernels.draw(numbers, key(f"{column}.length"), limit, offsets[1:])
        offsets[1:] += shortest
    ends = np.cumsum(offsets, dtype=np.int64)
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"{column} of {len(numbers)} events is {ends[-1]} bytes of text, more than one array "
            "of Arrow's holds: ask for fewer events at a time"
        )
    offsets[:] = ends
    letters = np.empty(int(ends[-1]), dtype=np.uint8)
    kernels.spell(numbers, key(column), alphabet, offsets, letters)
    return _strings(offsets, letters)


def _strings(offsets: npt.NDArray[np.int32], letters: Bytes) -> pa.Array:
    return pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(letters)
    )


def _formatted(numbers: Integers, column: str, key: Key, pattern: str, alphabet: Bytes) -> pa.Array:
    """Text like a pattern, with a random letter for each underscore."""
    form = np.frombuffer(pattern.encode(), dtype=np.uint8)
    fixed = form != ord("_")
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * len(form)
    letters = np.empty(len(numbers) * len(form), dtype=np.uint8)
    kernels.spell(numbers, key(column), alphabet, offsets, letters)
    letters.reshape(-1, len(form))[:, fixed] = form[fixed]
    return _strings(offsets, letters)


def _drawn(numbers: Integers, column: str, key: Key, vocabulary: pa.Array) -> pa.Array:
    chosen = np.empty(len(numbers), dtype=np.int32)
    kernels.draw(numbers, key(column), len(vocabulary), chosen)
    return vocabulary.take(pa.array(chosen))


_FULL_NAMES: Final = pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
_MAKERS: Final[dict[str, Callable[[Integers, str, Key], pa.Array]]] = {
    "name": lambda n, column, key: _drawn(n, column, key, _FULL_NAMES),
    "email": lambda n, column, key: _formatted(n, column, key, "_______@_____.com", LETTERS),
    "credit_card": lambda n, column, key: _formatted(n, column, key, "____ ____ ____ ____", DIGITS),
    "city": lambda n, column, key: _drawn(n, column, key, pa.array(CITIES)),
    "state": lambda n, column, key: _drawn(n, column, key, pa.array(STATES)),
    "item_name": lambda n, column, key: _spelled(n, column, key, NAME_LENGTHS),
    "description": lambda n, column, key: _spelled(n, column, key, DESCRIPTION_LENGTHS),
}


def _chosen_channels(numbers: Integers, key: Key) -> pa.Array:
    """One of the few hot channels for half of the bids, any other one for the rest."""
    hot = np.empty(len(numbers), dtype=np.int32)
    kernels.draw(numbers, key("bids.channel.hot"), 2 * len(HOT_CHANNELS), hot)
    cold = np.empty(len(numbers), dtype=np.int32)
    kernels.draw(numbers, key("bids.channel"), CHANNELS, cold)
    return pa.array(np.where(hot < len(HOT_CHANNELS), hot, cold + len(HOT_CHANNELS)))


@lru_cache(maxsize=1)
def _channels() -> tuple[pa.Array, pa.Array]:
    """The channels and, for each, the one page that its bids come from.

    Nine in ten of those that are not hot say their number there too.
    """
    count = len(HOT_CHANNELS) + CHANNELS
    every = np.arange(count, dtype=np.int64)
    parts = _formatted(every, "", lambda _: np.uint64(0), "_____/_____/_____", LETTERS).to_pylist()
    names, urls = list(HOT_CHANNELS), []
    names += [f"channel-{n}" for n in range(CHANNELS)]
    for place, path in enumerate(parts):
        number = place - len(HOT_CHANNELS)
        suffix = f"&channel_id={number}" if number >= 0 and number % 10 else ""
        urls.append(f"https://www.nexmark.com/{path}/item.htm?query=1{suffix}")
    return pa.array(names), pa.array(urls)
