"""All that can be done with a token."""

from __future__ import annotations

from collections.abc import Callable

import jeton as jt

TokenAct = Callable[[jt.TimestampToken], object]

USES: dict[str, TokenAct] = {
    "clone": lambda token: token.clone(),
    "downgrade": lambda token: token.downgrade(99),
    "drop": lambda token: token.drop(),
    "activating": lambda token: token.activating(),
}
