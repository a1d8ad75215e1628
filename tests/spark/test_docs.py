"""The Spark code in README and docs runs, block after block, as a reader would run it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.test_docs import PAGES, ROOT, examples, run_page

WITH_SPARK = [page for page in PAGES if any(each.needs_spark for each in examples(page))]


@pytest.mark.spark
@pytest.mark.parametrize("page", WITH_SPARK, ids=lambda page: str(page.relative_to(ROOT)))
def test_spark_code_of_a_page_runs(
    page: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page makes its own session; that of the tests is the same one, and ends with them."""
    run_page(page, capsys, spark=True)
