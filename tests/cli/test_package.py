"""`jeton package`: which packages an archive has, and that it runs wherever it is unpacked."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from jeton.cli import main
from jeton.cli.archive import NotPackable, files_of, needed, pack

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def install(folder: Path, name: str, *requires: str, files: bool = True) -> None:
    """A package with one module, as pip would install it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = [f"Requires-Dist: {each}" for each in requires]
    (info / "METADATA").write_text("\n".join([f"Name: {name}", "Version: 1.0", *lines]))
    (folder / f"{name}.py").write_text(f"NAME = {name!r}\n")
    if files:
        (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n../../bin/{name},,\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def unpacked(archive: Path) -> Path:
    folder = archive.parent / "elsewhere"
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


def test_packages_come_with_what_they_need(installed: Path) -> None:
    install(installed, "model", "numbers_lib[fast]>=1", "pyspark>=4", 'absent ; sys_platform=="x"')
    install(installed, "numbers_lib", 'quick; extra == "fast"', 'plots ; extra=="draw"')
    for name in ("quick", "plots", "unused"):
        install(installed, name)
    found, left_out = needed(["model"])
    assert list(found) == ["model", "numbers-lib", "quick"]
    assert left_out == ["pyspark"]


def test_an_archive_runs_where_it_is_unpacked(installed: Path, tmp_path: Path) -> None:
    install(installed, "model", "numbers_lib")
    install(installed, "numbers_lib")
    packed = pack(str(tmp_path / "env.tar.gz"), ["model"])
    assert packed.packages == {"model": "1.0", "numbers-lib": "1.0"}
    assert packed.python == VERSION
    folder = unpacked(tmp_path / "env.tar.gz")
    assert not list(folder.rglob("bin/model"))
    program = "import model, numbers_lib, other; print(model.__file__, other.NAME)"
    install(tmp_path / "shipped", "other")
    done = subprocess.run(
        ["./elsewhere/bin/python", "-c", program],
        cwd=tmp_path,
        env={"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin", "PYTHONPATH": "shipped"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(folder / "lib" / "model.py"), "other"], done.stderr


def test_a_machine_without_the_python_is_told(installed: Path, tmp_path: Path) -> None:
    install(installed, "model")
    pack(str(tmp_path / "env.tar.gz"), ["model"])
    folder = unpacked(tmp_path / "env.tar.gz")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "dirname").symlink_to("/usr/bin/dirname")
    done = subprocess.run(
        [folder / "bin" / "python", "--version"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 127
    assert f"has no python{VERSION}: install it, or use jeton package --python" in done.stderr


@pytest.mark.long
def test_an_archive_with_its_python(installed: Path, tmp_path: Path) -> None:
    install(installed, "model")
    assert pack(str(tmp_path / "env.tar.gz"), ["model"], with_python=True).includes_python
    folder = unpacked(tmp_path / "env.tar.gz")
    program = "import json, sys, model; print(json.dumps([sys.prefix, sys.executable, sys.path]))"
    done = subprocess.run(
        [folder / "bin" / "python", "-c", program],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    prefix, executable, path = json.loads(done.stdout)
    assert prefix == str(folder / "python")
    assert executable.startswith(prefix)
    assert all(not each or each.startswith(str(folder)) for each in path)


def test_an_editable_package_is_packed_from_its_source(installed: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "model").mkdir(parents=True)
    (source / "model" / "__init__.py").touch()
    (source / "model" / "weights.bin").touch()
    (source / "notes").mkdir()
    install(installed, "model")
    info = installed / "model-1.0.dist-info"
    (installed / "model.pth").write_text(f"{source}\n")
    (info / "RECORD").write_text(f"model.pth,,\n{info.name}/METADATA,,\n")
    (info / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    assert {at for _, at in files_of(distribution("model"))} == {
        "model-1.0.dist-info/METADATA",
        "model/__init__.py",
        "model/weights.bin",
    }
    (installed / "model.pth").write_text("import model_finder\n")
    with pytest.raises(NotPackable, match="editable install that does not say where"):
        list(files_of(distribution("model")))


def test_a_package_without_a_list_of_files(installed: Path) -> None:
    install(installed, "model", files=False)
    with pytest.raises(NotPackable, match="package model has no list of its files"):
        list(files_of(distribution("model")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "env.zip"], "env.zip must end in .tar.gz or .tgz"),
        (["nunpy"], "no package 'nunpy' is installed in .*: did you mean 'numpy'?"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["package", *arguments]) == 2
    assert message.split(".*")[0] in capsys.readouterr().err
