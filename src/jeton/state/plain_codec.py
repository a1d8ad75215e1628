"""Plain Python values as bytes that are safe to read: they make values, and never run code.

A value is JSON text. What JSON has no form for is an object with one member, ``"$"``, that has the
name of the type and its parts. Each type comes back as itself: tuples as tuples, and keys of
dictionaries as whatever they were.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
import zoneinfo
from collections import Counter, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np

from jeton.core.errors import SnapshotError

_TAG: Final = "$"
_WORD: Final = 1 << 63
_AS_THEY_ARE: Final = frozenset({str, float, bool, type(None)})


def encode(value: Any) -> bytes:
    """The bytes of a plain value; `SnapshotError` for others.

    >>> decode(encode({"a": (1, 2.5), 7: {b"x"}, "at": dt.date(2024, 2, 29)}))
    {'a': (1, 2.5), 7: {b'x'}, 'at': datetime.date(2024, 2, 29)}
    >>> encode(object())
    Traceback (most recent call last):
    jeton.core.errors.SnapshotError: a value of type object cannot be stored, ...
    """
    try:
        return _dumps(_as_json(value)).encode()
    except RecursionError:
        raise SnapshotError(
            "a value cannot be stored, since it contains itself or is too deep"
        ) from None


def decode(data: bytes) -> Any:
    """The value of such bytes; `SnapshotError` if they are none."""
    try:
        return _loads(data.decode())
    except SnapshotError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"stored bytes are not a plain value: {error}") from error


_dumps: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _as_json(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if -_WORD <= value < _WORD else {_TAG: ["int", hex(value)]}
    if kind is list:
        return [_as_json(each) for each in value]
    if kind is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: _as_json(each) for key, each in value.items()}
        return {_TAG: ["dict", _pairs(value)]}
    write = _WRITERS.get(kind)
    if write is not None:
        return {_TAG: write(value)}
    if isinstance(value, np.generic):
        return {_TAG: ["numpy", *_array(np.asarray(value))]}
    if kind.__module__.startswith("pandas.") and kind.__name__ in _PANDAS:
        return {_TAG: _PANDAS[kind.__name__](value)}
    raise SnapshotError(
        f"a value of type {_name(kind)} cannot be stored, since it is not plain: use None, bool, "
        "int, float, str, bytes, list, tuple, dict, set, dates, times, Decimal, UUID and NumPy's "
        "own, or say with state_codec= how such values are stored (docs/security.md says what "
        'state_codec="pickle" means)'
    )


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _pairs(value: Any) -> list[Any]:
    return [[_as_json(key), _as_json(each)] for key, each in value.items()]


def _all(values: Any) -> list[Any]:
    return [_as_json(each) for each in values]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _array(value: np.ndarray[Any, Any]) -> list[Any]:
    if value.dtype.hasobject or value.dtype.names is not None:
        raise SnapshotError(
            f"an array of type {value.dtype} cannot be stored: it must be of numbers, booleans, "
            "times or text"
        )
    return [value.dtype.str, list(value.shape), _text(np.ascontiguousarray(value).tobytes())]


def _from_array(kind: str, shape: list[int], data: str) -> np.ndarray[Any, Any]:
    dtype = np.dtype(kind)
    if dtype.hasobject:
        raise ValueError(f"an array of type {dtype}")
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()


def _zone(zone: dt.tzinfo | None) -> Any:
    """The name of a zone, or the parts of one that has a fixed distance from UTC."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        return _all(zone.__getinitargs__())  # type: ignore[attr-defined]
    # Those of zoneinfo have a key, and those of pytz, which pandas may use, a zone.
    name = getattr(zone, "key" if isinstance(zone, zoneinfo.ZoneInfo) else "zone", None)
    if isinstance(name, str):
        return name
    raise SnapshotError(f"a time with a zone of type {_name(type(zone))} cannot be stored")


def _from_zone(zone: str | list[Any]) -> dt.tzinfo:
    return zoneinfo.ZoneInfo(zone) if isinstance(zone, str) else dt.timezone(*zone)


def _python_zone(zone: dt.tzinfo | None) -> Any:
    """The zone of a time of Python's, which would not come back as one of pytz."""
    if zone is None or type(zone) is dt.timezone or isinstance(zone, zoneinfo.ZoneInfo):
        return _zone(zone)
    raise SnapshotError(f"a time with a zone of type {_name(type(zone))} cannot be stored")


def _datetime(value: dt.datetime) -> list[Any]:
    local = value.replace(tzinfo=None).isoformat()
    return ["datetime", local, value.fold, _python_zone(value.tzinfo)]


def _from_datetime(text: str, fold: int, zone: Any) -> dt.datetime:
    value = dt.datetime.fromisoformat(text).replace(fold=fold)
    return value if zone is None else value.replace(tzinfo=_from_zone(zone))


def _time(value: dt.time) -> list[Any]:
    local = value.replace(tzinfo=None).isoformat()
    return ["time", local, value.fold, _python_zone(value.tzinfo)]


def _from_time(text: str, fold: int, zone: Any = None) -> dt.time:
    value = dt.time.fromisoformat(text).replace(fold=fold)
    return value if zone is None else value.replace(tzinfo=_from_zone(zone))


def _from_timestamp(number: int, unit: Any, zone: Any) -> Any:
    import pandas as pd  # type: ignore[import-untyped]

    value = pd.Timestamp(np.datetime64(number, unit))
    if zone is None:
        return value
    # pandas knows which library has its zones.
    return value.tz_localize("UTC").tz_convert(zone if isinstance(zone, str) else _from_zone(zone))


def _from_timedelta(number: int, unit: Any) -> Any:
    import pandas as pd

    return pd.Timedelta(np.timedelta64(number, unit))


def _nat() -> Any:
    import pandas as pd

    return pd.NaT


_WRITERS: Final[dict[type, Callable[[Any], list[Any]]]] = {
    bytes: lambda value: ["bytes", _text(value)],
    bytearray: lambda value: ["bytearray", _text(value)],
    tuple: lambda value: ["tuple", _all(value)],
    set: lambda value: ["set", _all(value)],
    frozenset: lambda value: ["frozenset", _all(value)],
    deque: lambda value: ["deque", _all(value), value.maxlen],
    Counter: lambda value: ["Counter", _pairs(value)],
    complex: lambda value: ["complex", value.real, value.imag],
    Decimal: lambda value: ["Decimal", str(value)],
    uuid.UUID: lambda value: ["UUID", value.hex],
    dt.datetime: _datetime,
    dt.date: lambda value: ["date", value.isoformat()],
    dt.time: _time,
    dt.timedelta: lambda value: ["timedelta", value.days, value.seconds, value.microseconds],
    np.ndarray: lambda value: ["array", *_array(value)],
}

_PANDAS: Final[dict[str, Callable[[Any], list[Any]]]] = {
    "Timestamp": lambda value: [
        "Timestamp",
        int(value.asm8.view("i8")),
        value.unit,
        _zone(value.tzinfo),
    ],
    "Timedelta": lambda value: ["Timedelta", int(value.asm8.view("i8")), value.unit],
    "NaTType": lambda _: ["NaT"],
}

_READERS: Final[dict[str, Callable[..., Any]]] = {
    "int": lambda text: int(text, 16),
    "dict": dict,
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "Counter": lambda pairs: Counter(dict(pairs)),
    "complex": complex,
    "Decimal": Decimal,
    "UUID": lambda text: uuid.UUID(hex=text),
    "datetime": _from_datetime,
    "date": dt.date.fromisoformat,
    "time": _from_time,
    "timedelta": dt.timedelta,
    "array": _from_array,
    "numpy": lambda *parts: _from_array(*parts)[()],
    "Timestamp": _from_timestamp,
    "Timedelta": _from_timedelta,
    "NaT": _nat,
}


def _from_object(found: dict[str, Any]) -> Any:
    tagged = found.get(_TAG)
    if tagged is None:
        return found
    kind, *parts = tagged
    return _READERS[kind](*parts)


_loads: Final = json.JSONDecoder(object_hook=_from_object).decode
