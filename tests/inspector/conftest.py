"""The server of pages ends with the tests that used it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jeton.inspector.server import PageServer


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    PageServer.close_all()
