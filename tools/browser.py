"""Have a Chromium for the tests of the live page: `make test` runs this first.

It looks on the PATH, and else asks Debian's packages for one, which takes root. Nothing here is an
error: without a browser those tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser")
LIMIT = 300.0
"""Seconds for each of the package manager's commands."""


def find() -> str | None:
    """The path of a Chromium, if there is one on the PATH."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def ensure() -> str:
    """Install a Chromium if there is none and it can be done; say what came of it.

    >>> ensure()  # doctest: +SKIP
    'the live page is tested with /usr/bin/chromium'
    """
    if not find():
        apt_get = shutil.which("apt-get")
        if apt_get is None or os.geteuid() != 0:
            return without("install chromium, or run this as root on Debian")
        print("browser: there is none: apt-get install chromium (some 100 MB)", flush=True)
        options = ["-qq", "-o", "DPkg::Lock::Timeout=60"]
        packages = ["--yes", "--no-install-recommends", "chromium"]
        try:
            run([apt_get, *options, "update"])
            run([apt_get, *options, "install", *packages])
        except subprocess.TimeoutExpired:
            return without(f"apt-get took more than {LIMIT:.0f} seconds")
        except subprocess.CalledProcessError as error:
            return without(f"apt-get failed: {error.output.strip()[-500:]}")
        if not find():
            return without(f"the package chromium brought none of {' and '.join(NAMES)}")
    return f"the live page is tested with {find()}"


def without(reason: str) -> str:
    """The message that there is none."""
    return f"the tests of the live page are skipped, for want of a Chromium: {reason}"


def run(command: list[str]) -> None:
    """Run a command that asks nothing; what it prints is for its failure only."""
    subprocess.run(
        command,
        check=True,
        timeout=LIMIT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )


if __name__ == "__main__":
    print(f"browser: {ensure()}", flush=True)
