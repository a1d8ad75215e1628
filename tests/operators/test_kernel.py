"""Kernels do to columns what their Python function does to each row."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.columns.kernel import Kernel
from jeton.errors import BatchError, GraphError, MissingColumn, SlowKernel


@jt.kernel
def mixed(a: int, b: float) -> float:
    return a * b if a > 0 else math.floor(b) - a


@jt.kernel
def divide(a: int, b: int) -> int:
    return a // b


@jt.kernel
def safely(a: int, b: int) -> float | None:
    if b == 0:
        return None
    return a / b


@jt.kernel
def both(a: bool, b: bool) -> bool:
    return a and not b


@jt.kernel
def shout(word: str, times: int) -> str:
    return word.upper() * times


def with_nulls(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


INTS = with_nulls(st.integers(-(2**31), 2**31))
SMALL = with_nulls(st.integers(0, 3))
FLOATS = with_nulls(st.floats(-1e9, 1e9))
BOOLS = with_nulls(st.booleans())


@pytest.mark.filterwarnings("ignore::jeton.errors.SlowKernel")
@settings(max_examples=100)
@given(
    st.sampled_from(
        [
            (mixed, INTS, FLOATS, pa.int64(), pa.float64()),
            (mixed, SMALL, FLOATS, pa.int32(), pa.float32()),
            (safely, INTS, SMALL, pa.int64(), pa.int8()),
            (both, BOOLS, BOOLS, pa.bool_(), pa.bool_()),
            (shout, with_nulls(st.text(max_size=3)), SMALL, pa.string(), pa.int64()),
        ]
    ).flatmap(
        lambda case: st.tuples(
            st.just((case[0], case[3], case[4])),
            st.lists(st.tuples(case[1], case[2]), max_size=8),
        )
    )
)
def test_like_python(drawn: tuple[tuple[Any, Any, Any], list[tuple[Any, Any]]]) -> None:
    (kernel, left, right), rows = drawn
    one = pa.array([row[0] for row in rows], left)
    other = pa.array([row[1] for row in rows], right)
    found = kernel(one, other)
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    expected = [None if a is None or b is None else kernel.python(a, b) for a, b in pairs]
    assert pa.array(found).to_pylist() == pytest.approx(expected)


def test_a_null_is_never_given_to_the_function() -> None:
    found = divide(pa.array([6, None, 8]), pa.array([2, 0, None]))
    assert found.to_pylist() == [3, None, None]
    assert divide(pa.array([None, None], pa.int64()), np.array([0, 0])).null_count == 2
    with pytest.raises(ZeroDivisionError):
        divide(np.array([1]), np.array([0]))


def test_batches_columns_and_plain_values() -> None:
    batch = jt.Batch({"b": [0.5], "a": [3], "c": ["x"]}, times=[0])
    assert mixed(batch).tolist() == [1.5]
    assert mixed([3], [0.5]).tolist() == [1.5]
    assert mixed(3, 0.5) == 1.5
    assert mixed(batch["a"][::2], np.array([0.5, 9.0])[::2]).tolist() == [1.5]
    with pytest.raises(BatchError, match=r"takes a batch or 2 columns \(a, b\), not 1"):
        mixed([3])
    with pytest.raises(BatchError, match="unequal lengths"):
        mixed([3], [0.5, 1.0])
    with pytest.raises(MissingColumn, match="no column 'b'"):
        mixed(batch.select("a"))


def test_the_time_column_is_one_too() -> None:
    flow = jt.Flow("age")
    age = jt.kernel(lambda time, born: time - born)
    flow.output("out", flow.input("in").with_columns(age=age))
    found = flow.run({"in": {"time": [10], "born": [3]}})["out"]
    assert found["age"].to_pylist() == [7]


def test_types_do_not_depend_on_what_came_before() -> None:
    twice = jt.kernel(lambda x: x + x)
    assert twice(np.array([0.5])).dtype == np.float64
    assert twice(np.array([1])).dtype == np.int64
    assert twice(np.array([1], dtype=np.float32)).dtype == np.float32
    assert twice(np.array([], dtype=np.int64)).dtype == np.int64


def test_text_runs_as_python_and_says_so_once() -> None:
    slow = jt.kernel(lambda word: word + "!")
    with pytest.warns(SlowKernel, match=r"test_kernel.py:\d+\) runs as plain Python.*string"):
        assert slow(pa.array(["a", None])).to_pylist() == ["a!", None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert slow(pa.array(["b"])).to_pylist() == ["b!"]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: str(x), "results are of type unicode"),
        (lambda x: (x, x), "results are of type UniTuple"),
        (lambda x: x.bit_count(), "Numba cannot compile it"),
    ],
)
def test_what_numba_cannot_compile_runs_as_python(function: Callable[[Any], Any], why: str) -> None:
    kernel = jt.kernel(function)
    with pytest.warns(SlowKernel, match=why):
        found = kernel(np.array([1, 2]))
    plain = [function(1), function(2)]
    assert found.tolist() == pa.array(plain).to_pylist()


def test_the_warning_comes_with_data_not_when_the_graph_is_built() -> None:
    slow = jt.kernel(lambda word: len(word))
    flow = jt.Flow("slow")
    flow.output("out", flow.input("in", schema={"word": str}).with_columns(n=slow))
    with pytest.warns(SlowKernel):
        flow.run({"in": {"time": [0], "word": ["abc"]}})


def test_parameters_must_be_columns() -> None:
    for function in (lambda: 1, lambda *a: 1, lambda a, b=2: 1, lambda a, *, b: 1):
        with pytest.raises(GraphError, match="plain parameters"):
            jt.kernel(function)


def test_compiled_and_python_are_at_hand() -> None:
    scalar = divide.compiled

    @nb.njit
    def total(a: Any, b: Any) -> int:
        found = 0
        for i in range(len(a)):
            found += scalar(a[i], b[i])
        return found

    assert total(np.array([4, 9]), np.array([2, 3])) == 5
    assert divide.python(9, 2) == 4
    assert divide.__name__ == "divide"
    assert repr(divide) == "<kernel divide(a, b)>"


def test_closures_are_not_mixed_up() -> None:
    def times(factor: int) -> Kernel:
        @jt.kernel
        def scaled(x: int) -> int:
            return x * factor

        return scaled

    assert times(2)(np.arange(3)).tolist() == [0, 2, 4]
    assert times(3)(np.arange(3)).tolist() == [0, 3, 6]


MODULE = """
import os
import numpy as np
import jeton as jt
from jeton.columns.kernel import Kernel

RATE = float(os.environ["RATE"])

@jt.kernel
def fixed(x):
    return x * 2.0

@jt.kernel
def from_outside(x):
    return x * RATE

if __name__ == "__main__":
    print(fixed(np.array([1.0]))[0], from_outside(np.array([1.0]))[0])
    print(sum(fixed.compiled.stats.cache_hits.values()))
"""


def test_the_cache_on_disk_never_lies(tmp_path: Path) -> None:
    """Compiled code is cached on disk, unless it has values from elsewhere."""
    module = tmp_path / "kernels.py"
    module.write_text(MODULE)
    found = []
    for rate in ("3", "5"):
        ran = subprocess.run(
            [sys.executable, module], env={"RATE": rate}, capture_output=True, text=True, check=True
        )
        found.append(ran.stdout.split())
    assert found == [["2.0", "3.0", "0"], ["2.0", "5.0", "1"]]


def test_pickling() -> None:
    import pyspark.cloudpickle

    cloudpickle: Any = pyspark.cloudpickle
    local = jt.kernel(lambda x: x + 1)
    assert cloudpickle.loads(cloudpickle.dumps(local))(np.array([1])).tolist() == [2]
    assert pickle.loads(cloudpickle.dumps(divide))(np.array([4]), np.array([2])).tolist() == [2]
