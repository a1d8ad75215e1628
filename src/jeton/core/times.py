"""Times: elements of a partially ordered set.

A time is an ``int``, a `Product` of times inside loops, or any object that follows the
`Timestamp` protocol. Everything above compares times with ``<=`` only, and *sorts* them with
`sort_key`, which must agree with ``<=`` but orders every pair.

>>> 3 <= 5, Product(1, 5) <= Product(2, 3), Product(2, 3) <= Product(1, 5)
(True, False, False)
>>> sorted([Product(2, 3), Product(1, 5)], key=sort_key)
[Product(1, 5), Product(2, 3)]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Protocol, Self, TypeAlias, runtime_checkable

from jeton.core.errors import TimeError

START_OF_TIME: Final = -(2**63)
"""The first integer time: where inputs and initial tokens are before they advance."""
END_OF_TIME: Final = 2**63 - 1
"""The last integer time. A summary that would run past it gives ``None``."""


@runtime_checkable
class Timestamp(Protocol):
    """The interface of user-defined times: a hashable value with a partial order.

    ``sort_key()`` returns something sortable such that ``a <= b`` implies
    ``a.sort_key() <= b.sort_key()`` (a linear extension of the partial order).
    """

    @classmethod
    def minimum(cls) -> Self:
        """The least time: every other time is ``>=`` it."""
        ...

    def __le__(self, other: Any, /) -> bool:
        """The partial order."""
        ...

    def sort_key(self) -> Any:
        """A key whose order extends the partial order."""
        ...

    def __hash__(self) -> int:
        """Times are counted in dictionaries."""
        ...


Time: TypeAlias = Any
"""An ``int``, a `Product`, or a `Timestamp`. Checked at the edges by `TimeKind.check`."""


class Product(tuple[Any, ...]):
    """A time inside a loop: the time outside, and the round of the loop.

    One product is ``<=`` another if each coordinate is. Nested loops append coordinates:
    ``Product(Product(1, 2), 3)`` is ``Product(1, 2, 3)``.

    >>> Product(1, 2) <= Product(1, 3)
    True
    >>> Product(Product(1, 2), 3) == Product(1, 2, 3)
    True
    >>> Product(1, 2, 3).outer, Product(1, 2, 3).inner
    (Product(1, 2), 3)
    """

    __slots__ = ()

    def __new__(cls, outer: Time, *inner: int) -> Product:
        """A product of an outer time with one or more loop counters."""
        if not inner:
            raise TimeError("a Product needs an outer time and at least one inner coordinate")
        head = tuple(outer) if isinstance(outer, Product) else (outer,)
        return tuple.__new__(cls, head + inner)

    @classmethod
    def of(cls, coordinates: tuple[Any, ...]) -> Product:
        """A product from all its coordinates, outermost first.

        >>> Product.of((1, 2, 3))
        Product(1, 2, 3)
        """
        return tuple.__new__(cls, coordinates)

    @property
    def outer(self) -> Time:
        """The time outside the innermost loop."""
        return Product.of(self[:-1]) if len(self) > 2 else self[0]

    @property
    def inner(self) -> int:
        """The round of the innermost loop."""
        inner: int = self[-1]
        return inner

    def sort_key(self) -> tuple[Any, ...]:
        """Coordinates, outermost first: the lexicographic order extends the product order."""
        return (sort_key(self[0]), *self[1:])

    def __le__(self, other: object) -> bool:
        if not isinstance(other, Product):
            return NotImplemented
        if len(self) == 2 == len(other):  # most loops are not nested, and this is asked often
            return bool(self[0] <= other[0] and self[1] <= other[1])
        return len(self) == len(other) and all(
            mine <= theirs for mine, theirs in zip(self, other, strict=True)
        )

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Product):
            return NotImplemented
        return self <= other and self != other

    def __ge__(self, other: object) -> bool:
        if not isinstance(other, Product):
            return NotImplemented
        return other <= self

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, Product):
            return NotImplemented
        return other < self

    def __reduce__(self) -> Any:
        return (Product.of, (tuple(self),))

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self))})"


def sort_key(time: Time) -> Any:
    """A key that sorts times so that no time comes after a greater one.

    >>> sort_key(7), sort_key(Product(1, 2))
    (7, (1, 2))
    """
    return time if type(time) is int else time.sort_key()


def nested_key(time: Time) -> Any:
    """A sort key that also compares times of a scope with those of loops inside it.

    Coordinates that both have are compared, outermost first.

    >>> sorted([Product(1, 2), 1, Product(0, 5)], key=nested_key)
    [Product(0, 5), 1, Product(1, 2)]
    """
    return time.sort_key() if isinstance(time, Product) else (sort_key(time),)


class TimeKind(ABC):
    """The kind of time that a scope uses: its minimum, and which values are its times."""

    total: bool
    """Whether any two times are comparable."""
    depth: int
    """How many loops are around: the number of coordinates less one."""
    integers = False
    """Whether times are plain Python integers."""

    @property
    @abstractmethod
    def minimum(self) -> Time:
        """The least time."""

    @property
    def origin(self) -> Time:
        """The time of records that are sent without one before their input has advanced."""
        return self.minimum

    @abstractmethod
    def check(self, time: Any) -> Time:
        """``time`` as a time of this kind, or a `TimeError`."""

    def looped(self) -> TimeKind:
        """The kind of time inside a loop of a scope that uses this kind."""
        return ProductTimes(self)


class IntegerTimes(TimeKind):
    """Integer times, as nanoseconds or epochs: totally ordered.

    All 64-bit integers are times, so that times before 1970 are like any others. With a
    ``minimum``, earlier times are refused, and initial tokens and frontiers start there.

    >>> IntegerTimes().minimum == -(2**63), IntegerTimes(minimum=-100).minimum
    (True, -100)
    >>> IntegerTimes().origin, IntegerTimes(minimum=5).origin
    (0, 5)
    """

    total = True
    depth = 0
    integers = True

    def __init__(self, minimum: int = START_OF_TIME) -> None:
        if not START_OF_TIME <= minimum < END_OF_TIME:
            raise TimeError(f"minimum {minimum} is not a 64-bit time")
        self._minimum = minimum

    @property
    def minimum(self) -> int:
        """The least time."""
        return self._minimum

    @property
    def origin(self) -> int:
        """Zero, or the least time if that is later."""
        return max(0, self._minimum)

    def check(self, time: Any) -> int:
        """An integer within the 64 bits of a time column."""
        try:
            value = time.__index__()
        except (AttributeError, TypeError):
            raise TimeError(f"{time!r} is not an integer time") from None
        if not self._minimum <= value <= END_OF_TIME:
            raise TimeError(f"time {value} is outside {self._minimum} … {END_OF_TIME}")
        return int(value)

    def __repr__(self) -> str:
        bound = "" if self._minimum == START_OF_TIME else f"minimum={self._minimum}"
        return f"IntegerTimes({bound})"


class ProductTimes(TimeKind):
    """Times inside a loop: an outer time and a round.

    >>> ProductTimes(IntegerTimes(minimum=7)).minimum
    Product(7, 0)
    """

    total = False

    def __init__(self, outer: TimeKind) -> None:
        self.outer = outer
        self.depth = outer.depth + 1

    @property
    def minimum(self) -> Product:
        """Round 0 of the least outer time."""
        return Product(self.outer.minimum, 0)

    @property
    def origin(self) -> Product:
        """Round 0 of the outer time's origin."""
        return Product(self.outer.origin, 0)

    def check(self, time: Any) -> Product:
        """A product with the right number of coordinates."""
        if not isinstance(time, tuple) or len(time) != self.depth + 1:
            raise TimeError(f"{time!r} is not a Product of {self.depth + 1} coordinates")
        product = Product.of(tuple(time))
        outer = self.outer.check(product.outer)
        inner = product.inner
        if not hasattr(inner, "__index__") or inner < 0:
            raise TimeError(f"{inner!r} is not a round of a loop (an integer from 0)")
        return Product(outer, int(inner))

    def __repr__(self) -> str:
        return f"ProductTimes({self.outer!r})"


class UserTimes(TimeKind):
    """Times of a class of the user's that follows the `Timestamp` protocol."""

    total = False
    depth = 0

    def __init__(self, cls: type[Timestamp]) -> None:
        missing = [m for m in ("minimum", "sort_key", "__le__") if not hasattr(cls, m)]
        if missing or cls.__hash__ is None:
            raise TimeError(
                f"{cls.__name__} cannot be a time: it lacks {', '.join(missing) or '__hash__'}"
            )
        self.cls = cls

    @property
    def minimum(self) -> Timestamp:
        """The least time of the class."""
        return self.cls.minimum()

    def check(self, time: Any) -> Timestamp:
        """An instance of the class."""
        if not isinstance(time, self.cls):
            raise TimeError(f"{time!r} is not a {self.cls.__name__}")
        return time

    def __repr__(self) -> str:
        return f"UserTimes({self.cls.__name__})"


def time_kind(spec: type | TimeKind) -> TimeKind:
    """The kind of time for ``int``, a `TimeKind`, or a class of the user's.

    >>> time_kind(int)
    IntegerTimes()
    """
    if isinstance(spec, TimeKind):
        return spec
    if spec is int:
        return IntegerTimes()
    return UserTimes(spec)
