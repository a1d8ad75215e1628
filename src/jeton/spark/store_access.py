"""Access to stores: the settings of a session for them, at the driver and on its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jeton.spark.hadoop_store import HadoopStore
from jeton.storage import stores
from jeton.storage.store_settings import StoreSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def adopt(spark: SparkSession) -> StoreSettings:
    """Reach stores as a session does, from now on; returns the settings, for its workers.

    >>> adopt(spark)
    <StoreSettings: ...>
    """
    # Workers do without it: it imports all of PySpark's SQL.
    from jeton.spark.internals import hadoop_settings

    settings = StoreSettings(hadoop_settings(spark))
    use(settings)
    return settings


def adopt_active() -> None:
    """Reach stores as the active session does, if there is one in this process."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    use(StoreSettings()) if spark is None else adopt(spark)


def use(settings: StoreSettings) -> None:
    """Reach stores with the settings of a session, in any process."""
    stores.use(settings, HadoopStore)
