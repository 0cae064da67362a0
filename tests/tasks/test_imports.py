"""Packages of `tasks`: which may import which, at the top of a module or inside of a function."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import tasks

ROOT = Path(tasks.__file__).parent


def table(text: str) -> dict[str, set[str]]:
    """Read the table of the package's docstring: each package with those that it imports besides core."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            package, others = (cell.strip() for cell in line.strip("|").split("|"))
            names = {name.strip(" `") for name in others.split(",") if name.strip()}
            found.setdefault(package.strip("`"), set()).update(names)  # a package may have several rows
    return found


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tasks":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tasks."))


def test_packages_import_only_what_the_table_allows() -> None:
    allowed = table(tasks.__doc__ or "")
    packages = {file.parent.name for file in ROOT.glob("*/__init__.py")}
    assert packages == {*allowed, "core"}
    for file in ROOT.rglob("*.py"):
        package = file.relative_to(ROOT).parts[0]
        for name in imports(file):
            other = name.split(".")[1]
            assert other in {package, "core"} | allowed.get(package, set()), f"{file} imports {name}"


def test_the_table_has_no_cycle() -> None:
    found = table(tasks.__doc__ or "")
    order = list(graphlib.TopologicalSorter(found).static_order())  # raises CycleError, which names the cycle
    assert all(order.index(other) < order.index(package) for package, others in found.items() for other in others)
