"""A PostgreSQL server of a test's own: from Debian's packages, in a folder, on a free port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

PASSWORD = "open-sesame"


def programs() -> Path | None:
    """The folder of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: p.parts[-3])
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


needs_postgres = pytest.mark.skipif(
    programs() is None, reason="no PostgreSQL server is installed: apt-get install postgresql"
)


@contextmanager
def postgres_server() -> Iterator[str]:
    """A server on loopback; yields the DSN of its database, with a password."""
    found = programs()
    assert found is not None
    initdb, control_program = (str(found / name) for name in ("initdb", "pg_ctl"))
    # Short, since a path to a socket may have 107 characters, and for the eyes of another user.
    folder = Path(mkdtemp(prefix="jeton-pg-", dir="/tmp"))
    secret = folder / "password"
    secret.write_text(PASSWORD)
    # The server refuses to run as root.
    alone = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    user = alone if os.getuid() == 0 else []
    if user:
        for path in (folder, secret):
            shutil.chown(path, "nobody", "nogroup")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    log = str(folder / "log")
    fast = "-c fsync=off -c full_page_writes=off -c shared_buffers=16MB"
    where = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
    control = [*user, control_program, "-D", str(data), "-w", "-l", log]
    try:
        subprocess.run(
            [
                *(*user, initdb, "-D", str(data), "-U", "tester", "-A", "scram-sha-256"),
                *("--pwfile", str(secret), "-E", "UTF8", "--no-locale", "-N"),
            ],
            check=True,
            capture_output=True,
            cwd="/",
        )
        subprocess.run(
            [*control, "-o", f"{fast} {where}", "start"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )
        yield f"postgresql://tester:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        if (data / "postmaster.pid").exists():
            subprocess.run(
                [*control, "-m", "immediate", "stop"], stdout=subprocess.DEVNULL, cwd="/"
            )
        shutil.rmtree(folder)
