"""Fixtures of all tests: Hypothesis profiles, and Spark sessions.

The profile `ci` is for every run, `long` for soaks (HYPOTHESIS_PROFILE=long). Starting a session
takes longer than most tests do, so that all which want one share it, in one process or two.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from jeton.spark.session import local_session

SPARK = Path(__file__).parent / "spark"

SESSIONS = 2
"""Processes with a session, at most. As the largest groups, they are the first that xdist starts;
what needs no session fills the time that they leave."""

# For every JVM that a test starts. Most of what runs there runs once: a JVM that optimised it would
# not get its time back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Queries of tests have pages only where a test asks for one.
os.environ.setdefault("JETON_INSPECT", "0")

settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("ci"), max_examples=5000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# First, because xdist reads the groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    modules: dict[Path, int] = {}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            number = modules.setdefault(item.path, len(modules))
            group = f"spark{number % SESSIONS}"
        elif item.path.is_relative_to(SPARK):
            # They run programs of their own, which tests of one module may share.
            group = item.path.stem
        else:
            continue
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # A folder of its own, so that a test can take files away without affecting another session.
    folder = tmp_path_factory.mktemp("spark")
    session = local_session(workers=4, **{"spark.local.dir": str(folder)})
    yield session
    # All tests are over: a JVM that has ended before it was asked to is not a failure of one.
    with suppress(Py4JError, OSError):
        session.stop()


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Processes and threads that a test starts must have ended with it."""
    before = set(threading.enumerate())
    yield
    assert {t for t in threading.enumerate() if t.is_alive()} <= before
