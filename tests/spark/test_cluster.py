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

from jeton.cli import main
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
def daemon(
    *arguments: str, ready: str, folder: Path, environment: dict[str, str]
) -> Iterator[None]:
    """A master or a worker of a standalone cluster, once it says that it is ready."""
    process = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env={**environment, "SPARK_LOG_DIR": str(folder), "SPARK_WORKER_DIR": str(folder)},
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
        assert process.stdout is not None
        process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def standalone(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A standalone cluster of two workers with a core each; gives the address of its master."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    spark = "org.apache.spark.deploy"
    at = ("--host", "127.0.0.1")
    with ExitStack() as stack:
        stack.enter_context(
            daemon(
                *(f"{spark}.master.Master", *at, "--port", str(port), "--webui-port", "0"),
                ready="I have been elected leader",
                folder=folder,
                environment=environment,
            )
        )
        for _ in range(2):
            stack.enter_context(
                daemon(
                    *(f"{spark}.worker.Worker", *at, "--cores", "1", "--memory", "1g"),
                    *("--webui-port", "0", master),
                    ready="Successfully registered with master",
                    folder=folder,
                    environment=environment,
                )
            )
        yield master


@pytest.mark.long
def test_a_standalone_cluster(tmp_path: Path) -> None:
    with standalone(tmp_path, surroundings()) as master:
        began = time.monotonic()
        run_on(master)
        print(f"{time.monotonic() - began:.0f} s on {master}")


@pytest.mark.long
@pytest.mark.parametrize("with_python", [False, True])
def test_a_packed_environment(tmp_path: Path, with_python: bool) -> None:
    """`jeton package` and `spark-submit --archives`, on machines without Jeton."""
    archive = tmp_path / "env.tar.gz"
    assert main(["package", "-o", str(archive), *(["--python"] if with_python else [])]) == 0
    bare = {name: value for name, value in surroundings().items() if name != "PYTHONPATH"}
    python = Path(sys.base_prefix, "bin")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "bash", "dirname", "gzip", "tar", "chmod", "ls", "readlink", "uname", "env"):
        found = shutil.which(tool)
        assert found is not None, tool
        (tools / tool).symlink_to(found)
    # Machines that have no Python at all, and such that have one without packages.
    path = str(tools) if with_python else f"{python}:{tools}"
    java = Path(os.path.realpath(shutil.which("java") or "")).parents[1]
    there = {**bare, "PATH": path, "PYSPARK_PYTHON": "unset"}
    there.setdefault("JAVA_HOME", str(java))
    with standalone(tmp_path, there) as master:
        submitted = subprocess.run(
            [
                *(HOME / "bin" / "spark-submit", "--master", master),
                *("--archives", f"{archive}#env", PROGRAM, master),
            ],
            env={
                **bare,
                "PYSPARK_PYTHON": "./env/bin/python",
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert f"all is well on {master}" in submitted.stdout, submitted.stderr[-5000:]
    [found] = re.findall("executors import (.*)", submitted.stdout)
    assert all("/env/lib/jeton/" in each for each in found.split()), found
