"""The Spark code in README and docs runs, block after block, as a reader would run it."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.test_docs import PAGES, blocks

WITH_SPARK = [page for page in PAGES if "# spark" in page.read_text()]


@pytest.mark.spark
@pytest.mark.parametrize("page", WITH_SPARK, ids=lambda page: page.name)
def test_spark_code_of_a_page_runs(page: Any, spark: SparkSession) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    for block in blocks(page, spark=True):
        exec(compile(block, f"<{page.name}>", "exec"), names)
