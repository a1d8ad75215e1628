"""The generator's inner loops: everything about an event is a hash of its number.

An event's values are drawn by mixing its number with a key for each column, so any event can be
made without those before it, anywhere, and is the same. What does not change from one event to the
next one of a round is kept, which saves nearly all divisions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import jeton as jt

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_S1, _S8, _S11, _S27, _S30, _S31, _S32, _S54 = (
    np.uint64(n) for n in (1, 8, 11, 27, 30, 31, 32, 54)
)
_POWERS = np.array([100.0 * 10 ** (6 * step / 1024) for step in range(1024)])
_REST = np.uint64((1 << 43) - 1)
_REST_SCALE = math.log(1e6) / (1 << 53)


class Shape(NamedTuple):
    """A configuration as compiled loops want it."""

    round: int
    persons: int
    auctions: int
    base_time: int
    above: int
    below: int
    hot_auction_ratio: int
    hot_bidder_ratio: int
    hot_seller_ratio: int
    hot_every: int
    in_flight: int
    active: int
    lead: int
    first_person: int
    first_auction: int
    first_category: int
    categories: int


class Share(NamedTuple):
    """Which positions are made here, and how events are moved about within groups of them."""

    part: int
    parts: int
    block: int
    group: int
    stride: int


@jt.njit(cache=True, inline="always")
def mix(key: Any, number: Any) -> Any:
    """64 random bits for a number: splitmix64 at that place of the sequence that the key starts."""
    bits = key + np.uint64(number) * GOLDEN
    bits = (bits ^ (bits >> _S30)) * _FIRST
    bits = (bits ^ (bits >> _S27)) * _SECOND
    return bits ^ (bits >> _S31)


@jt.njit(cache=True, inline="always")
def _high(bits: Any, limit: Any) -> Any:
    """A number below the limit, from the upper half of the bits."""
    return np.int64(((bits >> _S32) * np.uint64(limit)) >> _S32)


@jt.njit(cache=True, inline="always")
def _low(bits: Any, limit: Any) -> Any:
    """A number below the limit, from the lower half of the bits."""
    return np.int64(((bits & _LOW) * np.uint64(limit)) >> _S32)


@jt.njit(cache=True, inline="always")
def _price(bits: Any) -> Any:
    """From 100 to 100 million, every power of ten as likely as the next.

    That is ``100 * 10 ** (6 * u)``, rounded: a table has it for the first ten bits of *u*, and four
    terms of a series do for the rest, in half the time of the power itself.
    """
    rest = np.float64((bits >> _S11) & _REST) * _REST_SCALE
    series = 1.0 + rest * (1.0 + rest * (0.5 + rest * (1 / 6 + rest * (1 / 24))))
    return np.int64(_POWERS[np.int64(bits >> _S54)] * series + 0.5)


@jt.njit(cache=True, inline="always")
def _offset(shape: Any, number: Any) -> Any:
    """The time of an event since the first one; this way round, no product gets too large."""
    whole = number // shape.below
    return whole * shape.above + (number - whole * shape.below) * shape.above // shape.below


@jt.njit(cache=True)
def numbers_of(
    first: int, last: int, share: Any, size: int, low: int, high: int, out: Integers
) -> int:
    """Write the numbers of a share's events whose place in the round is in a range; count them."""
    count = 0
    here = first
    while here < last:
        turn = here // share.block
        end = min((turn + 1) * share.block, last)
        start = (turn * share.parts + share.part) * share.block + here - turn * share.block
        stop = start + end - here
        here = end
        if share.group == 1:
            base = start // size * size
            while base < stop:
                for number in range(max(base + low, start), min(base + high, stop)):
                    out[count] = number
                    count += 1
                base += size
        else:
            for position in range(start, stop):
                base = position // share.group * share.group
                number = base + (position - base + 1) * share.stride % share.group
                place = number % size
                if low <= place < high:
                    out[count] = number
                    count += 1
    return count


@jt.njit(cache=True)
def times_of(numbers: Integers, shape: Any, out: Integers) -> None:
    """Write the times of events."""
    for i in range(len(numbers)):
        out[i] = shape.base_time + _offset(shape, numbers[i])


@jt.njit(cache=True)
def persons(numbers: Integers, shape: Any, ids: Integers) -> None:
    """Write the ids of persons, if there is room for them."""
    for i in range(len(ids)):
        turn = numbers[i] // shape.round
        ids[i] = shape.first_person + turn * shape.persons + numbers[i] - turn * shape.round


@jt.njit(cache=True)
def auctions(
    numbers: Integers,
    shape: Any,
    keys: Keys,
    ids: Integers,
    sellers: Integers,
    categories: Integers,
    initial_bids: Integers,
    reserves: Integers,
    expires: Integers,
) -> None:
    """Write those number columns of auctions that have room."""
    ahead = shape.in_flight * shape.round // shape.auctions
    for i in range(len(numbers)):
        number = numbers[i]
        turn = number // shape.round
        place = number - turn * shape.round - shape.persons
        if len(ids):
            ids[i] = shape.first_auction + turn * shape.auctions + place
        if len(sellers):
            bits = mix(keys[0], number)
            people = (turn + 1) * shape.persons
            if _high(bits, shape.hot_seller_ratio) > 0:
                seller = (people - 1) // shape.hot_every * shape.hot_every
            else:
                active = min(people, shape.active)
                seller = people - active + _low(bits, active + shape.lead)
            sellers[i] = shape.first_person + seller
        if len(categories):
            bits = mix(keys[1], number)
            categories[i] = shape.first_category + _high(bits, shape.categories)
        if len(initial_bids):
            initial_bids[i] = _price(mix(keys[2], number))
        if len(reserves):
            reserves[i] = _price(mix(keys[2], number)) + _price(mix(keys[3], number))
        if len(expires):
            now = _offset(shape, number)
            horizon = _offset(shape, number + ahead) - now
            bits = mix(keys[4], number)
            length = 1 + np.int64(bits >> _S1) % max(2 * horizon, 1)
            expires[i] = shape.base_time + now + length


@jt.njit(cache=True)
def bids(
    numbers: Integers,
    shape: Any,
    keys: Keys,
    times: Integers,
    on_auctions: Integers,
    bidders: Integers,
    prices: Integers,
) -> None:
    """Write those number columns of bids that have room; times always have.

    Bids whose numbers follow each other are of one round, since every round begins with persons.
    """
    step = shape.above // shape.below
    step_rest = shape.above - step * shape.below
    following = np.int64(-1)
    time = np.int64(0)
    rest = np.int64(0)
    hot_auction = np.int64(0)
    least_auction = np.int64(0)
    some_auctions = np.int64(0)
    hot_bidder = np.int64(0)
    least_bidder = np.int64(0)
    some_bidders = np.int64(0)
    for i in range(len(numbers)):
        number = numbers[i]
        if number == following:
            time += step
            rest += step_rest
            if rest >= shape.below:
                rest -= shape.below
                time += 1
        else:
            turn = number // shape.round
            time = shape.base_time + _offset(shape, number)
            rest = (number % shape.below) * shape.above % shape.below
            last = (turn + 1) * shape.auctions - 1
            least = max(last - shape.in_flight, 0)
            hot_auction = shape.first_auction + last // shape.hot_every * shape.hot_every
            least_auction = shape.first_auction + least
            some_auctions = last - least + 1 + shape.lead
            people = (turn + 1) * shape.persons
            active = min(people, shape.active)
            # The second of a hundred people, so that no person is a hot seller too.
            hot = (people - 1) // shape.hot_every * shape.hot_every + 1
            hot_bidder = shape.first_person + min(hot, people - 1 + shape.lead)
            least_bidder = shape.first_person + people - active
            some_bidders = active + shape.lead
        following = number + 1
        times[i] = time
        if len(on_auctions):
            bits = mix(keys[0], number)
            cold = least_auction + _low(bits, some_auctions)
            on_auctions[i] = hot_auction if _high(bits, shape.hot_auction_ratio) > 0 else cold
        if len(bidders):
            bits = mix(keys[1], number)
            cold = least_bidder + _low(bits, some_bidders)
            bidders[i] = hot_bidder if _high(bits, shape.hot_bidder_ratio) > 0 else cold
        if len(prices):
            prices[i] = _price(mix(keys[2], number))


@jt.njit(cache=True)
def draw(numbers: Integers, key: Any, limit: int, out: npt.NDArray[np.int32]) -> None:
    """Write a number below a limit for each event."""
    for i in range(len(numbers)):
        out[i] = _high(mix(key, numbers[i]), limit)


@jt.njit(cache=True)
def spell(
    numbers: Integers, key: Any, alphabet: Bytes, offsets: npt.NDArray[np.int32], out: Bytes
) -> None:
    """Write random text of given lengths: the alphabet has a letter for each of 256 bytes."""
    for i in range(len(numbers)):
        start = mix(key, numbers[i])
        at = offsets[i]
        chunk = np.uint64(0)
        while at < offsets[i + 1]:
            bits = mix(start, chunk)
            chunk += np.uint64(1)
            for _ in range(min(8, offsets[i + 1] - at)):
                out[at] = alphabet[bits & np.uint64(255)]
                bits >>= _S8
                at += 1
