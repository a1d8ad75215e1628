"""`jeton demo` from the outside: what it prints, and how little else."""

import subprocess
import sys


def test_demo_tells_what_it_ran_on() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jeton", "demo"], capture_output=True, text=True, check=True
    )
    assert "window ending at 10: 1.5" in done.stdout
    assert "rows are those of Spark SQL" in done.stdout
    assert f"Python {sys.version.split()[0]}" in done.stdout
    # The JVM itself writes such lines about Spark's options, before anybody can tell it not to.
    noise = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert noise == []
