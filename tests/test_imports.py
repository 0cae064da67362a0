"""Imports go downwards: between layers, between the packages of a layer, and in no circle of files.

The packages of `tasks/` have a table instead of an order (tests/tasks/test_imports.py).
"""

import ast
import functools
import pkgutil
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENTRY = "__main__"

LAYERS = ("gpt2train", "tasks", "flows")
MAX_TEST_EDGES = 1_865  # imports of a module of the package by a file of tests; lower it when they get fewer


def modules(layer: str) -> dict[str, Path]:
    files = sorted((ROOT / layer).rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


@functools.cache
def parsed(source: str) -> tuple[ast.AST, ...]:
    """Imports and strings of a source, which several tests read."""
    kept = (ast.Import, ast.ImportFrom, ast.Constant)
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, kept))


def imported(source: str, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and module of each import in a source, those inside functions too."""
    for node in parsed(source):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "imports are absolute"
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [member if member in known else node.module for member in members]
        else:
            continue
        yield from ((node.lineno, name) for name in dict.fromkeys(names) if name in known)


def part_of(module: str) -> str:
    """Part of its layer that a module belongs to."""
    parts = module.split(".")
    return ENTRY if parts[-1] == ENTRY else parts[1] if len(parts) > 1 else "__init__"


def order_of(layer: str) -> list[str]:
    """The parts of a layer, lowest first: subpackages and single modules, as docs/architecture.md lists them.

    A part imports only from parts before it. An entry of `python -m` may import from all, and nothing imports an entry.
    """
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = text.partition(f"<!-- order of {layer} -->")[2].partition("<!-- end -->")[0]
    return ["__init__", *(name.rstrip("/").removesuffix(".py") for name in re.findall(r"^\d+\. `(.+?)`", listed, re.M))]


def upward(layer: str, order: list[str]) -> list[str]:
    """Imports against the order, as `file:line imports module`."""
    known, ranks = modules(layer), {part: rank for rank, part in enumerate([*order, ENTRY])}
    return [
        f"{path.relative_to(ROOT)}:{line} imports {other}"
        for module, path in known.items()
        for line, other in imported(path.read_text(encoding="utf-8"), known)
        if ranks[part_of(other)] > ranks[part_of(module)] or part_of(other) == ENTRY
    ]


@pytest.mark.parametrize("layer", ["gpt2train", "flows"])
def test_every_part_has_its_place_in_the_order_and_no_import_goes_upwards(layer: str) -> None:
    assert sorted({part_of(module) for module in modules(layer)} - {ENTRY}) == sorted(order_of(layer))
    assert upward(layer, order_of(layer)) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    known = {name: path for layer in LAYERS for name, path in modules(layer).items()}
    graph = {
        module: {other for _, other in imported(path.read_text(encoding="utf-8"), known)} - {module}
        for module, path in known.items()
    }
    assert sum(map(len, graph.values())) > 1000
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(("layer", "above"), [("gpt2train", ("tasks", "flows")), ("tasks", ("flows",))])
def test_no_layer_imports_one_above(layer: str, above: tuple[str, ...]) -> None:
    known = {name: path for one in above for name, path in modules(one).items()}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {other}"
        for path in modules(layer).values()
        for line, other in imported(path.read_text(encoding="utf-8"), known)
    ]
    assert found == []


def test_no_string_names_a_module_of_a_layer_above() -> None:
    """Commands of the layers above are entry points of the distribution, and flows are started as commands."""
    name = re.compile(r"(tasks|flows)(\.\w+)+(:\w+)?")
    found = {
        (str(path.relative_to(ROOT)), node.value)
        for path in modules("gpt2train").values()
        for node in parsed(path.read_text(encoding="utf-8"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name.fullmatch(node.value)
    }
    assert found == {("gpt2train/plan/best_command.py", "flows.pretrain")}  # of a command that is printed


def test_tests_import_what_a_package_exports() -> None:
    """A module that moves is to touch few tests: `step.py` exports a step's settings, `cli` what runs a command."""
    known = {name: path for layer in LAYERS for name, path in modules(layer).items()}
    found = {
        (file, name)
        for file in (ROOT / "tests").rglob("*.py")
        for _, name in imported(file.read_text(encoding="utf-8"), known)
    }
    assert len(found) <= MAX_TEST_EDGES, f"{len(found)} imports: take names from modules that the test imports already"
    assert len(found) > MAX_TEST_EDGES - 100, f"set MAX_TEST_EDGES to {len(found)}"


def test_an_import_upwards_and_one_of_an_entry_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_imports.ROOT", tmp_path)
    sources = {
        "low/a.py": "def f():\n    from layer.high import b\n",
        "high/__init__.py": "",
        "high/b.py": "from layer.low.a import f\n",
        "low/__main__.py": "import layer.high.b\n",
        "top.py": "import layer.low.__main__\n",
    }
    for name, source in sources.items():
        path = tmp_path / "layer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert upward("layer", ["low", "high", "top"]) == [
        "layer/low/a.py:2 imports layer.high.b",
        "layer/top.py:1 imports layer.low.__main__",
    ]


def test_the_calls_from_a_command_to_its_work_are_few_and_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    calls = re.findall(r"^\d+\. `(.+?)`", text.partition("<!-- calls -->")[2].partition("<!-- end -->")[0], flags=re.M)
    assert 0 < len(calls) <= 12 and all(callable(pkgutil.resolve_name(name)) for name in calls)
