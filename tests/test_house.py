"""The house: which floor may know which, and which rooms are pure."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "jeton"

FLOORS = ["core", "progress", "dataflow", "worker", "spark"]
"""From the ground up: a floor imports from itself and from those below."""

UPWARD = {
    # A flow offers to run itself: on the worker's floor, and on Spark's.
    ("dataflow/flow.py", "worker"),
    ("dataflow/flow.py", "spark"),
}
IMPURE = {"asyncio", "multiprocessing", "os", "random", "select", "socket", "threading", "time"}
PUBLIC = ("jeton", "jeton.spark", "jeton.idioms", "jeton.nexmark", "jeton.bench")
BEHIND_THE_API = {
    # It measures the wire itself.
    "bench/mesh.py",
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module or ""


def files(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((SOURCE / room).rglob("*.py"))]


@pytest.mark.parametrize("floor", FLOORS)
def test_no_floor_knows_a_higher_one(floor: str) -> None:
    above = [*FLOORS[FLOORS.index(floor) + 1 :], "idioms", "nexmark", "bench", "inspector", "cli"]
    for path in files(floor):
        name = str(path.relative_to(SOURCE))
        for module in imports(path):
            for higher in above:
                if module == f"jeton.{higher}" or module.startswith(f"jeton.{higher}."):
                    assert (name, higher) in UPWARD, f"{name} imports {module}"


def test_core_and_progress_are_pure() -> None:
    for path in files("core", "progress"):
        found = {module.split(".")[0] for module in imports(path)} & IMPURE
        assert not found, f"{path.relative_to(SOURCE)} imports {found}"


@pytest.mark.parametrize("room", ["bench", "idioms", "nexmark"])
def test_rooms_on_top_use_the_public_api_only(room: str) -> None:
    for path in files(room):
        name = str(path.relative_to(SOURCE))
        for module in imports(path):
            if module.startswith("jeton") and name not in BEHIND_THE_API:
                allowed = module in PUBLIC or any(
                    module.startswith(f"{public}.") for public in PUBLIC[1:]
                )
                assert allowed, f"{name} imports {module}"
