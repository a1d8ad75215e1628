"""Simulated runs search for tokens through the garbage collector, over and over.

That takes as long as there are objects in the process, and one that has run thousands of tests has
millions. Those from before are set aside meanwhile.
"""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
