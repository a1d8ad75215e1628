"""Compile the modules on the path of a batch, with mypyc: the same answers at a lower fixed cost.

    .venv/bin/python -m tools.compiled          a copy of the package in build/compiled
    JETON_COMPILE=1 pip wheel --no-deps .       a wheel for this machine's kind and Python

Each module that is named here stays what it is, a typed Python module, and works uncompiled. The
copy is for measuring and for tests: `PYTHONPATH=build/compiled`. A module may be compiled if it
neither has Numba's loops nor needs what mypyc leaves out: weak references to its objects, classes
that code elsewhere derives from, the caller's frame.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).resolve().parents[1]
MODULES: Final = (
    *("core/antichain", "core/bookkeeping", "core/changes"),
    *("progress/protocol", "progress/segments", "progress/tracker"),
    *("dataflow/activator", "dataflow/ports"),
    *("mesh/link", "mesh/mesh", "mesh/ring", "mesh/shared_link", "mesh/tls_link", "mesh/wire"),
    *("runtime/agent", "runtime/channels", "runtime/operator", "runtime/schedule"),
    *("runtime/timers", "runtime/worker"),
    "state/record_queue",
)
"""Modules of the package: those in which a batch and a change of progress spend their time."""
NEEDS: Final = ("mypy==2.4.1", "setuptools>=75")
WANTED: Final = "JETON_COMPILE"
_SETTINGS: Final = """
[mypy]
explicit_package_bases = True
ignore_missing_imports = True
follow_imports = silent

[mypy-numba.*,numpy.*,pandas.*,pyarrow.*]
follow_imports = skip
follow_imports_for_stubs = True
"""


class CompiledWheel(BuildHookInterface[Any]):
    """Has the wheel contain compiled modules, if `JETON_COMPILE` is set."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """The packages that compiling needs, besides a C compiler."""
        return list(NEEDS) if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together; an editable install stays as it is."""
        if version == "standard" and _is_wanted():
            folder = ROOT / "build/extensions"
            shutil.rmtree(folder, ignore_errors=True)
            compile_into(folder)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            for file in folder.rglob("*.so"):
                build_data["force_include"][str(file)] = str(file.relative_to(folder))


def compile_into(folder: Path, *, optimised: bool = True) -> None:
    """Compile the modules; the extensions are in a folder then, as in the package.

    Without optimisation by the C compiler they do the same, and are there in half of the time.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name, _working_in(Path(name)):
        # From here, so that tracebacks have the same names of files on any machine.
        shutil.copytree(ROOT / "src/jeton", "jeton", ignore=shutil.ignore_patterns("__pycache__"))
        Path("mypy.ini").write_text(_SETTINGS)
        files = [f"jeton/{module}.py" for module in MODULES]
        extensions = mypycify(
            ["--config-file", "mypy.ini", *files],
            opt_level="3" if optimised else "0",
            debug_level="0",
            group_name="jeton",
        )
        command: Any = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(folder), "temporary"
        command.ensure_finalized()
        command.run()


def main() -> int:
    """Make a copy of the package with compiled modules."""
    folder = ROOT / "build/compiled"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    compile_into(folder)
    print(f"compiled: PYTHONPATH={folder.relative_to(ROOT)} uses it")
    return 0


def _is_wanted() -> bool:
    return os.environ.get(WANTED, "0") not in ("", "0")


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    sys.exit(main())
