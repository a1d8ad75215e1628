"""The Python that Spark runs tasks with: whether it can run flows, before a job fails of it.

A session that was made by hand runs tasks with `python3` unless ``PYSPARK_PYTHON`` says otherwise.
If that is another version, or lacks Jeton or what it needs, the tasks fail with a trace of Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from jeton.core.errors import GraphError

if TYPE_CHECKING:
    from pyspark import SparkContext

_NEEDED: Final = ("jeton", "numpy", "numba", "pyarrow")
_QUESTION: Final = (
    "import sys, importlib.util as u; "
    f"print('%d.%d' % sys.version_info[:2], *(n for n in {_NEEDED!r} if u.find_spec(n) is None))"
)
_REMEDY: Final = (
    "set PYSPARK_PYTHON={python} before the session starts, or use jeton.spark.local_session(), "
    "which does that"
)


def require_same_python(context: SparkContext) -> None:
    """Refuse a session of this machine whose tasks run with a Python that cannot run flows.

    On a cluster the Python of the executors cannot be asked from here.

    >>> require_same_python(spark.sparkContext)
    """
    master = context.master or ""
    if not re.fullmatch(r"local(\[.*\])?", master):
        return
    problem = problem_with(context.pythonExec, context.getConf().get("spark.submit.pyFiles") or "")
    if problem is not None:
        raise GraphError(f"{problem}: {_REMEDY.format(python=sys.executable)}")


def problem_with(executable: str, shipped: str = "") -> str | None:
    """The reason why flows cannot run with a Python, if they cannot.

    Jeton itself need not be installed there if files are ``shipped`` to tasks.

    >>> problem_with(sys.executable)
    >>> problem_with("no-such-python")
    "Spark runs Python tasks with 'no-such-python', which does not exist"
    """
    found = shutil.which(executable)
    runs = f"Spark runs Python tasks with {executable!r}"
    if found is None:
        return f"{runs}, which does not exist"
    if os.path.abspath(found) == sys.executable:
        return None
    asked = subprocess.run([found, "-c", _QUESTION], capture_output=True, text=True, check=False)
    if asked.returncode != 0 or not asked.stdout.strip():
        return f"{runs}, which does not start ({asked.stderr.strip() or 'it says nothing'})"
    version, *missing = asked.stdout.split()
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != own:
        return f"{runs}, which is Python {version}, while this program runs with Python {own}"
    lacks = [name for name in missing if name != "jeton" or not shipped]
    return f"{runs}, which has no package {lacks[0]}" if lacks else None
