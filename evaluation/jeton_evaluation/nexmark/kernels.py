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
from jeton_evaluation.nexmark.config import (
    CATEGORIES,
    FIRST_AUCTION_ID,
    FIRST_CATEGORY,
    FIRST_PERSON_ID,
    HOT_EVERY,
)

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
    """Settings of a `Config`, by its names, as compiled loops want them."""

    round: int
    person_proportion: int
    auction_proportion: int
    base_time: int
    time_step: tuple[int, int]
    hot_auction_ratio: int
    hot_bidder_ratio: int
    hot_seller_ratio: int
    in_flight_auctions: int
    active_people: int
    id_lead: int


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
    above, below = shape.time_step
    whole = number // below
    return whole * above + (number - whole * below) * above // below


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
        ids[i] = FIRST_PERSON_ID + turn * shape.person_proportion + numbers[i] - turn * shape.round


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
    ahead = shape.in_flight_auctions * shape.round // shape.auction_proportion
    for i in range(len(numbers)):
        number = numbers[i]
        turn = number // shape.round
        place = number - turn * shape.round - shape.person_proportion
        if len(ids):
            ids[i] = FIRST_AUCTION_ID + turn * shape.auction_proportion + place
        if len(sellers):
            bits = mix(keys[0], number)
            people = (turn + 1) * shape.person_proportion
            if _high(bits, shape.hot_seller_ratio) > 0:
                seller = (people - 1) // HOT_EVERY * HOT_EVERY
            else:
                active = min(people, shape.active_people)
                seller = people - active + _low(bits, active + shape.id_lead)
            sellers[i] = FIRST_PERSON_ID + seller
        if len(categories):
            bits = mix(keys[1], number)
            categories[i] = FIRST_CATEGORY + _high(bits, CATEGORIES)
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
    above, below = shape.time_step
    step = above // below
    step_rest = above - step * below
    following = np.int64(-1)
    time = rest = hot_auction = least_auction = some_auctions = np.int64(0)
    hot_bidder = least_bidder = some_bidders = np.int64(0)
    for i in range(len(numbers)):
        number = numbers[i]
        if number == following:
            time += step
            rest += step_rest
            if rest >= below:
                rest -= below
                time += 1
        else:
            turn = number // shape.round
            time = shape.base_time + _offset(shape, number)
            rest = (number % below) * above % below
            last = (turn + 1) * shape.auction_proportion - 1
            least = max(last - shape.in_flight_auctions, 0)
            hot_auction = FIRST_AUCTION_ID + last // HOT_EVERY * HOT_EVERY
            least_auction = FIRST_AUCTION_ID + least
            some_auctions = last - least + 1 + shape.id_lead
            people = (turn + 1) * shape.person_proportion
            active = min(people, shape.active_people)
            # The second of a hundred people, so that no person is a hot seller too.
            hot = (people - 1) // HOT_EVERY * HOT_EVERY + 1
            hot_bidder = FIRST_PERSON_ID + min(hot, people - 1 + shape.id_lead)
            least_bidder = FIRST_PERSON_ID + people - active
            some_bidders = active + shape.id_lead
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
