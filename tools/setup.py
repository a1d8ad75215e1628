"""Make `.venv`: everything that Jeton needs to run and to be worked on, from pip alone.

    python3 tools/setup.py [--python PYTHON]    make or refresh .venv (what `make setup` runs)
    python3 tools/setup.py lock [OPTION ...]    resolve the lock files anew (`make lock`)

It needs no root, no compiler and no Java. It installs with uv where that is on the PATH, which is
faster, and with pip otherwise. It copes with what a bare machine may lack:

* `python3` may be too old: the newest suitable Python of the PATH is used, whoever started this.
* `ensurepip` may be missing (Debian ships it apart, in python3-venv): then the pip of that Python,
  if it has one, installs into the environment from outside.
* Java may be missing: then a Java runtime is installed into the environment, as a Python package.

Standard library only. Old syntax on purpose: any Python 3.6 can start it and be told what to do.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from typing import List, NamedTuple, NoReturn, Optional, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
LOCK = "requirements.lock"
JAVA_LOCK = "requirements-java.lock"
LOG = os.path.join(".venv", "setup.log")

OLDEST = (3, 11)
# The newest Python that every locked package has a ready-made wheel for.
NEWEST = (3, 14)
# The first pip that can install into another Python's environment (`pip --python`).
OLDEST_PIP = (22, 3)

# Asked of each Python. The real path leads out of a virtual environment that may be active.
PROBE = """
import json, os, sys
from importlib.util import find_spec
try:
    from pip import __version__ as pip
except ImportError:
    pip = "0"
print(json.dumps([
    os.path.realpath(sys.executable),
    sys.version_info[:2],
    bool(find_spec("ensurepip") and find_spec("venv")),
    [int(part) for part in pip.split(".")[:2] if part.isdigit()],
]))
"""


class Python(NamedTuple):
    """What a Python says of itself: where it is, its version, whether it has ensurepip, its pip."""

    path: str
    version: Tuple[int, ...]
    ensurepip: bool
    pip: Tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path} ({dotted(self.version)})"

    @property
    def is_supported(self) -> bool:
        """Whether the lock is for it."""
        return OLDEST <= self.version <= NEWEST

    @property
    def has_pip(self) -> bool:
        """Whether it can fill an environment."""
        return self.pip >= OLDEST_PIP


def main() -> None:
    parser = argparse.ArgumentParser(description="Make .venv with all that Jeton needs.")
    parser.add_argument("--python", help="make it anew with this Python, not the PATH's newest")
    parser.add_argument("action", nargs="?", choices=["venv", "lock"], default="venv")
    options, rest = parser.parse_known_args()
    if rest and options.action != "lock":
        parser.error("unrecognized arguments: " + " ".join(rest))
    pip = make_venv(options.python)
    if options.action == "lock":
        lock(pip, rest)
    else:
        install(pip)


def make_venv(asked: Optional[str]) -> List[str]:
    """Make the environment, unless a good one is there, and return the pip command to fill it."""
    pip = find_pip()
    if asked or not pip:
        python = choose_python(asked)
        say(f"making .venv with {python}")
        flags = [] if python.ensurepip else ["--without-pip"]
        run([python.path, "-m", "venv", "--clear"] + flags + [VENV])
        pip = find_pip()
    return pip or stop(f"{VENV} came out without a working pip: remove it and try again")


def find_pip() -> Optional[List[str]]:
    """Return the command that installs into .venv: its own pip, or that of the Python behind it."""
    inside = probe(VENV_PYTHON)
    if not inside or not inside.is_supported:
        return None
    if inside.has_pip:
        return [VENV_PYTHON, "-m", "pip"]
    outside = probe(inside.path)
    if outside and outside.has_pip:
        return [outside.path, "-m", "pip", "--python", VENV_PYTHON]
    return None


def choose_python(asked: Optional[str]) -> Python:
    """Return the newest Python that can make an environment, or the one asked for if it can."""
    names = ["python3"] + [f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    commands = [asked] if asked else [sys.executable] + [shutil.which(name) for name in names]
    found = [python for python in map(probe, commands) if python]
    supported = [python for python in found if python.is_supported]
    capable = [python for python in supported if python.ensurepip or python.has_pip]
    if capable:
        return max(capable, key=lambda python: python.version)
    if supported:
        stop(
            f"{supported[0]} can make no virtual environment: it has neither ensurepip nor pip "
            f"{dotted(OLDEST_PIP)} or newer.\n"
            f"On Debian or Ubuntu: sudo apt install python{dotted(supported[0].version)}-venv"
        )
    stop(
        f"Jeton needs Python {dotted(OLDEST)} to {dotted(NEWEST)}; "
        f"found: {', '.join(sorted(set(map(str, found)))) or 'none'}.\n"
        "Install one, or name one that is not on the PATH: make setup PYTHON=/path/to/python3"
    )


def probe(command: Optional[str]) -> Optional[Python]:
    """Ask a Python what it is and can do; None if it does not run, as a version manager's stub."""
    if not command:
        return None
    try:
        answer = subprocess.check_output([command, "-c", PROBE], stderr=subprocess.DEVNULL)
        path, version, ensurepip, pip = json.loads(answer.decode())
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None
    return Python(path, tuple(version), ensurepip, tuple(pip))


def install(pip: List[str]) -> None:
    """Install what the lock names, this repository in place, and a Java if there is none."""
    uv = shutil.which("uv")
    if uv:
        pip_install = [uv, "pip", "install", "--quiet", "--python", VENV_PYTHON]
    else:
        # PySpark comes as source: an old pip would run its setup.py in the environment itself.
        pip_install = pip + ["install", "--disable-pip-version-check", "--use-pep517"]
    packages = count_packages(LOCK)
    say(f"installing {packages} packages of {LOCK} (600 MB and some minutes, the first time)")
    follow(pip_install + ["--require-hashes", "-r", LOCK], packages)
    follow(pip_install + ["--no-deps", "--no-build-isolation", "-e", ".", "-e", "evaluation"])
    finder = os.path.join(ROOT, "src", "jeton", "spark", "java.py")
    if subprocess.call([VENV_PYTHON, "-I", finder], stdout=subprocess.DEVNULL) != 0:
        say("this machine has no Java 17 or newer: installing one into .venv")
        follow(pip_install + ["--require-hashes", "-r", JAVA_LOCK])
    say("ready: .venv/bin/jeton")


def count_packages(lock: str) -> int:
    """Return how many packages a lock file names."""
    with open(os.path.join(ROOT, lock)) as file:
        return sum(bool(re.match(r"[A-Za-z0-9][\w.-]*==", line)) for line in file)


def follow(command: List[str], packages: int = 0, log: str = LOG) -> None:
    """Run an installer, and show how many of its packages it has dealt with; stop if it fails.

    Its own lines go to the file `log`: behind a mirror, pip warns once for each package.
    """
    bar = sys.stdout.isatty()
    seen = shown = 0
    lines = []
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    with process, open(os.path.join(ROOT, log), "a") as file:
        for line in process.stdout or ():
            lines.append(line)
            file.write(line)
            # A package that the lock has for other machines is ignored.
            seen += line.startswith(("Collecting ", "Ignoring "))
            if packages and seen - shown >= (1 if bar else 50):
                shown = seen
                text = f"setup: {seen} of {packages}"
                print("\r" + text if bar else text, end="" if bar else "\n", flush=True)
            elif packages and line.startswith("Installing collected packages"):
                print("\r" if bar else "", end="")
                say("all packages are here, unpacking them")
    if process.returncode != 0:
        told = [line for line in lines if not line.endswith("nor a directory.\n")]
        stop("failed: " + " ".join(command) + f"\n{''.join(told[-30:])}All its lines are in {log}")


def lock(pip: List[str], options: List[str]) -> None:
    """Write the lock files: exact versions with hashes, for every supported Python at once."""
    import tomllib  # not at the top: the Python that starts this file may be too old to have it

    run(pip + ["install", "--quiet", "--disable-pip-version-check", "uv"])
    resolve = [VENV_PYTHON, "-m", "uv", "pip", "compile", "--quiet", "--no-emit-index-url"]
    resolve += ["--universal", "--python-version", dotted(OLDEST), "--generate-hashes"]
    resolve += ["--custom-compile-command", "make lock"] + options
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    java = extras.pop("java")
    # The tests run all of it.
    chosen = [word for extra in sorted(extras) for word in ("--extra", extra)]
    run(resolve + chosen + ["--group", "dev", "-o", LOCK, "pyproject.toml"])
    # The extra alone: it needs nothing of the rest, and is installed apart from it.
    run(resolve + ["--no-annotate", "-o", JAVA_LOCK, "-"], text="\n".join(java))


def run(command: List[str], text: str = "") -> None:
    """Run a command at the root of the repository, with `text` as its input; stop if it fails."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    process.communicate(text.encode())
    if process.returncode != 0:
        stop("failed: " + " ".join(command))


def dotted(version: Tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def say(what: str) -> None:
    print("setup: " + what, flush=True)


def stop(why: str) -> NoReturn:
    sys.exit("setup: " + why)


if __name__ == "__main__":
    main()
