"""Clusters whose executors are processes of their own, on this machine."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from jeton.spark.java import ensure_java

PROGRAM = Path(__file__).with_name("on_cluster.py")
HOME = Path(pyspark.__file__).parent


def surroundings() -> dict[str, str]:
    """Spark as pip has installed it, with this Python, on this machine only."""
    ensure_java()
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }


def run_on(master: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), master],
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert f"all is well on {master}" in done.stdout, done.stderr[-5000:]


def test_two_executors_in_processes_of_their_own() -> None:
    # Spark leaves the executors' logs there, and has no setting for another place.
    work = HOME / "work"
    was_there = work.exists()
    try:
        run_on("local-cluster[2,1,1024]")
    finally:
        if not was_there:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def daemon(*arguments: str, ready: str, folder: Path) -> Iterator[None]:
    """A master or a worker of a standalone cluster, once it says that it is ready."""
    process = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env={**surroundings(), "SPARK_LOG_DIR": str(folder), "SPARK_WORKER_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: list[str] = []
    is_ready = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if re.search(ready, line):
                is_ready.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        assert is_ready.wait(300.0), "".join(said[-30:])
        yield
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10.0)
        listener.join(10.0)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.long
def test_a_standalone_cluster(tmp_path: Path) -> None:
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    spark = "org.apache.spark.deploy"
    at = ("--host", "127.0.0.1")
    with ExitStack() as stack:
        stack.enter_context(
            daemon(
                *(f"{spark}.master.Master", *at, "--port", str(port), "--webui-port", "0"),
                ready="I have been elected leader",
                folder=tmp_path,
            )
        )
        for _ in range(2):
            stack.enter_context(
                daemon(
                    *(f"{spark}.worker.Worker", *at, "--cores", "1", "--memory", "1g"),
                    *("--webui-port", "0", master),
                    ready="Successfully registered with master",
                    folder=tmp_path,
                )
            )
        began = time.monotonic()
        run_on(master)
        print(f"{time.monotonic() - began:.0f} s on {master}")
