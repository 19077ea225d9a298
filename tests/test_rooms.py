"""The rooms of the package: imports point one way, kernels stand alone, and a name means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "cbmm_spark"

# From the lowest to the highest: a room imports from itself and from those before it. Rooms of one line are level
# with each other and import nothing from each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "faultpoints"),
    ("config", "locations", "kernels"),
    ("spark", "console"),
    ("tables",),
    ("readers",),
    ("responses",),
    ("ingest", "packing"),
    ("runs",),
    ("fit",),
    ("results",),
    ("linking",),
    ("rescoring", "history"),
    ("night", "upkeep", "simulation"),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
OUTSIDE_KERNELS = {"pyspark", "pyarrow", "delta", "py4j", "pandas"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Dotted names that a module imports, wherever the line stands, relative ones made absolute."""
    package = ("cbmm_spark", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*above, *filter(None, [node.module])))
            yield node.lineno, source
            yield from ((node.lineno, f"{source}.{each.name}") for each in node.names)


def faults(path: Path, text: str) -> list[str]:
    """Every import of a module that its room may not have."""
    room, found = room_of(path), []
    for line, name in imported(path, ast.parse(text)):
        top, *rest = name.split(".")
        if room == "kernels" and top in OUTSIDE_KERNELS:
            found.append(f"{path.name}:{line} kernels import {top}")
        if top != "cbmm_spark" or not rest or rest[0] not in LEVEL or rest[0] == room or room == "__init__":
            continue
        if room == "kernels" or LEVEL[rest[0]] >= LEVEL[room]:
            found.append(f"{path.name}:{line} {room} imports {rest[0]}")
    return sorted(set(found))


def test_every_room_has_a_level() -> None:
    assert {room_of(path) for path in modules()} - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_is_below(room: str) -> None:
    files = [path for path in modules() if room_of(path) == room]
    assert [fault for path in files for fault in faults(path, path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("tables/warehouse.py", "from cbmm_spark.readers.base import canonical"),
        ("tables/warehouse.py", "from cbmm_spark import readers"),
        ("tables/warehouse.py", "from ..fit import scales"),
        ("kernels/model.py", "from cbmm_spark.errors import ConfigError"),
        ("kernels/model.py", "import pyarrow.compute as pc"),
        ("kernels/model.py", "def f():\n    from pyspark.sql import functions"),
        ("packing/job.py", "import cbmm_spark.ingest.job"),
        ("upkeep/status.py", "from cbmm_spark.night import night"),
    ],
)
def test_an_import_against_the_arrows_is_found(module: str, line: str) -> None:
    assert faults(PACKAGE / module, line)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for(room: str) -> None:
    said = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert all(part in said for part in ("In: ", "Out: ", "May import: ")), room


def test_a_public_class_has_a_name_of_its_own() -> None:
    where = defaultdict(set)
    for path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(str(path.relative_to(PACKAGE)))
    twice = {name: sorted(files) for name, files in where.items() if len(files) > 1}
    assert twice == {}
