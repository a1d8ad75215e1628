"""NEXMark on Spark: in one process with the other Spark tests, with the session that they use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jeton.spark.session import local_session

HERE = Path(__file__).parent


# First, because xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # The same one as in tests/spark, if that has started it: it is stopped there.
    running = SparkSession.getActiveSession()
    session = local_session(workers=4)
    yield session
    if running is None:
        session.stop()
