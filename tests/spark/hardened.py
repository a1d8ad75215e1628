"""A program for a Spark that authenticates and encrypts: started by a test, prints how it went.

Its folder for temporary files has a name that is too long for Unix sockets.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton.connectors.sources import Rate
from jeton.mesh.binding import port_range
from jeton.mesh.link import Link
from jeton.mesh.tls_link import TlsLink
from jeton.spark import local_session


def links(batch: jt.Batch) -> npt.NDArray[np.int64]:
    """Three digits: ends of links in the range of ports, links, and links under TLS."""
    found = [each for each in gc.get_objects() if isinstance(each, Link)]
    ends = [end for link in found for end in (link.sock.getsockname(), link.sock.getpeername())]
    first, last = port_range(os.environ["PORTS"], "PORTS")
    # Unix sockets have paths instead.
    inside = sum(isinstance(end, tuple) and first <= end[1] <= last for end in ends)
    tls = sum(isinstance(each, TlsLink) for each in found)
    return np.full(len(batch), 100 * inside + 10 * len(found) + tls)


def main(ports: str) -> None:
    os.environ["PORTS"] = ports
    spark = local_session(
        workers=2,
        **{
            "spark.authenticate": "true",
            "spark.authenticate.secret": "s" * 32,
            "spark.network.crypto.enabled": "true",
            "spark.jeton.port.range": ports,
            "spark.jeton.driver.port.range": ports,
            "spark.executorEnv.PORTS": ports,
        },
    )
    # Two links to the one peer, both under TLS, and each has its listening end in the range.
    right = 222

    flow = jt.Flow("batch")
    numbers = flow.input("n", time="id", schema={"k": int})
    flow.output("n", numbers.exchange("k").with_columns(links=links))
    frame = spark.range(0, 1000, 1, 2).selectExpr("id", "id % 10 as k")
    schema = pa.schema([(name, pa.int64()) for name in ("id", "k", "links")])
    rows = flow.on_spark({"n": frame}, workers=2, schemas={"n": schema})["n"].collect()
    assert sorted(row.id for row in rows) == list(range(1000))
    assert {row.links for row in rows} == {right}, {row.links for row in rows}

    flow = jt.Flow("live")
    flow.output("n", flow.input("n").exchange("k").with_columns(links=links))
    query = flow.start(
        spark,
        sources={"n": Rate(10_000, lambda positions: {"k": positions}, limit=1000)},
        sinks={"n": Memory()},
        checkpoint=tempfile.mkdtemp(),
    )
    assert query.await_termination(120)
    found = query.table("n").collect()
    assert sorted(row.k for row in found) == list(range(1000))
    assert {row.links for row in found} == {right}

    flow = jt.Flow("stream")
    numbers = flow.input("n", time="value", schema={})
    flow.output("counts", numbers.key_by().running().count())
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    counts = flow.on_spark({"n": stream.select("value")}, workers=2)["counts"]
    started = counts.writeStream.format("memory").queryName("counted").start()
    while started.lastProgress is None or started.lastProgress.batchId < 2:
        assert started.exception() is None, started.exception()
    started.stop()
    [row] = spark.table("counted").where("value < 10").agg({"count": "max"}).collect()
    assert row[0] == 10, row
    print("all is well")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
