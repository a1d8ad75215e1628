"""The examples in the doc strings of `jeton.spark`, with a session at hand."""

import doctest
import importlib
import pkgutil

import pytest
from pyspark.sql import SparkSession

import jeton.spark

MODULES = [each.name for each in pkgutil.walk_packages(jeton.spark.__path__, "jeton.spark.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, spark: SparkSession) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(
        module,
        extraglobs={"spark": spark},
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.attempted > 0, f"no public name of {name} has an example"
    assert result.failed == 0, "see what was captured"
