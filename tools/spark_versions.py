"""Test what Spark does not promise on other versions of PySpark: `make spark-versions`.

    .venv/bin/python tools/spark_versions.py [VERSION ...] [-- PYTEST ARGUMENT ...]

Each version gets an environment of its own, `.venv-spark-VERSION`, with the packages of
requirements.lock except PySpark. The locked PySpark is what all other tests run on.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ["4.0"]
"""The oldest version that pyproject.toml allows."""
TESTS = [
    "tests/spark/test_internals.py",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/spark/test_batch*.py")),
    "tests/spark/test_streaming.py",
    "tests/spark/test_rollback.py",
    "tests/spark/test_long_lived.py",
]
LENIENT = [
    "-W",
    "default::ResourceWarning",
    "-W",
    "default::pytest.PytestUnraisableExceptionWarning",
]
"""PySpark 4.0 leaves the sockets of collect() to the garbage collector."""


def main() -> None:
    """Run the tests on each version."""
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    versions, options = arguments[:cut] or VERSIONS, arguments[cut + 1 :]
    failed = [version for version in versions if not passes(version, options or TESTS)]
    if failed:
        sys.exit(f"spark-versions: failed on PySpark {', '.join(failed)}")


def passes(version: str, tests: list[str]) -> bool:
    """Run tests on a version of PySpark."""
    python = environment(version)
    probe = "import pyspark; print(pyspark.__version__)"
    found = subprocess.check_output([python, "-c", probe], text=True).strip()
    print(f"spark-versions: PySpark {found}", flush=True)
    return subprocess.call([python, "-m", "pytest", "-q", *LENIENT, *tests], cwd=ROOT) == 0


def environment(version: str) -> str:
    """Make the environment of a version, unless it is there; returns its Python."""
    folder = (ROOT / f".venv-spark-{version}").resolve()
    python, ready = str(folder / "bin" / "python"), folder / ".ready"
    if not ready.exists():
        print(f"spark-versions: making {folder.name} (600 MB and some minutes)", flush=True)
        subprocess.check_call([sys.executable, "-m", "venv", folder])
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.check_call([*pip, "--use-pep517", *locked(), f"pyspark=={version}.*"], cwd=ROOT)
        subprocess.check_call(
            [*pip, "--no-deps", "--no-build-isolation", "-e", ".", "-e", "evaluation"], cwd=ROOT
        )
        ready.touch()
    return python


def locked() -> list[str]:
    """The locked requirements without hashes, except PySpark and its own version of Py4J."""
    text = (ROOT / "requirements.lock").read_text()
    lines = re.findall(r"^(\S+==[^\\\n]*?) *\\$", text, flags=re.MULTILINE)
    return [line for line in lines if not line.startswith(("pyspark==", "py4j=="))]


if __name__ == "__main__":
    main()
