"""A compiled function, for the tests of where it is kept."""

from typing import Any

from jeton.columns import compiled


@compiled.njit(cache=True)
def twice(n: Any) -> Any:
    return 2 * n
