"""A real local session: what `local_session` promises."""

import os
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jeton.spark.session import local_session


def test_counts(spark: SparkSession) -> None:
    assert spark.range(1_000).count() == 1_000


def test_python_tasks_run_in_a_barrier_stage_with_our_python(spark: SparkSession) -> None:
    def executables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    frame = spark.range(10).repartition(2).mapInArrow(executables, "python string", barrier=True)
    assert [row.python for row in frame.collect()] == [sys.executable] * 2


def test_is_quiet_and_local(spark: SparkSession) -> None:
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="reads Linux's socket table")
def test_listens_to_this_machine_only(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert listening_addresses(jvm.java.lang.ProcessHandle.current().pid()) == {"127.0.0.1"}


def listening_addresses(pid: int) -> set[str]:
    """The addresses on which a process waits for TCP connections."""
    files = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in files:
                found.add(address(local.split(":")[0]))
    return found


def address(hexadecimal: str) -> str:
    """Read an address of Linux's table, which has it as 32-bit words of the machine's order."""
    words = [hexadecimal[at : at + 8] for at in range(0, len(hexadecimal), 8)]
    raw = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    found = ip_address(raw)
    return str(getattr(found, "ipv4_mapped", None) or found)


def test_is_handed_out_again(spark: SparkSession) -> None:
    assert local_session(4).sparkContext is spark.sparkContext


def test_refuses_another_number_of_workers_while_one_runs(spark: SparkSession) -> None:
    with pytest.raises(RuntimeError, match=r"local\[4\] runs in this process.*stop\(\)"):
        local_session(3)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "4"


def test_settings_reach_spark(spark: SparkSession) -> None:
    again = local_session(4, **{"spark.sql.caseSensitive": True})
    try:
        assert again.conf.get("spark.sql.caseSensitive") == "true"
    finally:
        again.conf.unset("spark.sql.caseSensitive")
