"""Modules of the packages that use a model import each other in one direction, inside functions too."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("compat", "evaluate", "inference", "serve")


def imports_of(file: Path) -> set[str]:
    """Modules that a file imports at run time, wherever the import stands."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(file.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        nodes += ast.iter_child_nodes(node)
    return found


def test_no_import_cycle() -> None:
    files = [file for package in PACKAGES for file in (ROOT / "gpt2train" / package).rglob("*.py")]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}
    graph = {name: imports_of(file) & names.keys() for name, file in names.items()}
    assert sum(map(len, graph.values())) > 50
    list(TopologicalSorter(graph).static_order())  # raises CycleError
