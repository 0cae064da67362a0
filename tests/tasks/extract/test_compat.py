"""Internals of libraries that the extraction uses: all in one module, in the range of versions that was tested."""

import ast
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tasks.extract.compat import REPLACED, TESTED, replaced

ROOT = Path(__file__).parents[3]
# What trafilatura documents for its users.
PUBLIC = {
    "trafilatura",
    "trafilatura.meta.reset_caches",
    "trafilatura.settings.Extractor",
    "trafilatura.utils.load_html",
}


def test_no_other_module_imports_internals() -> None:
    for file in (ROOT / "tasks").rglob("*.py"):
        if file.name == "compat.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            internals = {name for name in names if name.partition(".")[0] in ("trafilatura", "justext")} - PUBLIC
            assert not internals, file


@pytest.mark.parametrize("library", TESTED)
def test_the_tested_range_is_the_one_that_is_installed(library: str) -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert library + TESTED[library] in required
    assert version(library) in SpecifierSet(TESTED[library])


def test_every_replaced_name_is_there_and_is_put_back() -> None:
    plain = {name: getattr(module, name) for name, module in REPLACED.items()}
    with pytest.raises(ZeroDivisionError), replaced(dict.fromkeys(REPLACED)):
        assert {getattr(module, name) for name, module in REPLACED.items()} == {None}
        1 / 0  # noqa: B018
    assert {name: getattr(module, name) for name, module in REPLACED.items()} == plain
