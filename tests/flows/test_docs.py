"""The pages' examples: each Python block runs on a finished run, each option and setting that is shown exists."""

import ast
import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import prefect.settings
import pytest
from cyclopts import App
from pydantic import ValidationError

from flows.settings import PipelineSettings, deployment_names
from gpt2train.cli import app
from gpt2train.config import RunConfig, TrainSettings
from gpt2train.evaluate.tasks.description import Task
from tasks.finetune.settings import TaskSettings
from tests.flows.commands import APPS
from tests.flows.conftest import Finished
from tests.test_repository import required

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EVERYWHERE = {"--help", "--debug", "--version"}
COMMAND = re.compile(
    r"(?:python -m (?P<module>(?:flows|gpt2train|benchmarks)\.\w+)|(?<![\w/.-])gpt2train (?P<name>\w+))"
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def shell_lines(page: Path) -> list[str]:
    """Lines of code blocks, and code within the text, that call a command; a line cut by a backslash is joined."""
    text = page.read_text(encoding="utf-8")
    code = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, re.S | re.M)
    code += re.findall(r"^(?: {4}.*\n)+", text, re.M)
    lines = [line for block in code for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    lines += [
        " ".join(span.split())
        for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    ]
    return [line for line in lines if COMMAND.search(line)]


def flags_of(line: str) -> tuple[list[str], list[str]]:
    """The words of the last command in a line, after its name, and the options among them."""
    found = list(COMMAND.finditer(line))[-1]
    rest = re.split(r"(?:^|\s)#\s|[|;>]\s|&&|`", line[found.end() :])[0]
    try:
        words = shlex.split(rest)
    except ValueError:  # an apostrophe of the sentence around it
        words = rest.split()
    return words, [word.split("=")[0] for word in words if re.match(r"--\w", word)]


def options(program: App) -> frozenset[str]:
    if program.default_command is None:
        return frozenset()
    return frozenset(name for argument in program.assemble_argument_collection() for name in argument.names)


@cache
def flow_options(name: str) -> frozenset[str]:
    return options(APPS[name])


def is_known(flag: str, known: frozenset[str]) -> bool:
    """True if an option is one of the command, or sets a key of one that is a table (`--connect-to.HOST`)."""
    tables = {"--connect-to", "--evals", "--train.model.options"} & known
    return flag in known or any(flag.startswith(f"{name}.") for name in tables)


def unknown_options(line: str) -> Iterator[str]:
    found = list(COMMAND.finditer(line))[-1]
    words, flags = flags_of(line)
    module, name = found["module"], found["name"]
    if module is None or module == "gpt2train.evaluate":
        program = app if module is None else app["evaluate"]
        for word in [name, *words] if module is None else words:
            word = re.split(r"\\?\|", word)[0]  # lambada\|wikitext: one of both
            if word in program and not word.startswith("-"):
                program = program[word]
        if program is app:
            return  # a word of a sentence: "gpt2train is"
        known = options(program)
        if program.name == ("evaluate",):  # a task, or an evaluation of a plug-in, which has the options that all have
            known |= options(program["lambada"])
    elif module.startswith("flows."):
        known = flow_options(module.removeprefix("flows."))
    else:
        # The other modules use argparse: their options are in their source text.
        file = ROOT / f"{module.replace('.', '/')}.py"
        source = file.read_text() if file.exists() else (file.with_suffix("") / "__main__.py").read_text()
        if module == "gpt2train.launch":  # what follows -- is torchrun's
            flags = flags[: [word == "--" for word in words].index(True)] if "--" in words else flags
        named = re.findall(r"--[\w-]+", source)
        fields = re.findall(r"^\s+(\w+)\s*:", source, re.M)  # of a function that cyclopts makes a command of
        known = frozenset([*named, *(f"--{field.replace('_', '-')}" for field in fields)])
    yield from (flag for flag in flags if not is_known(flag, known | EVERYWHERE))


# Options of the plug-in that a page describes; tests/flows/test_data_step.py runs the command with it installed.
PLUGIN_OPTIONS = {"add-a-data-step.md": {"--drop-hosts.hosts"}}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_in_shell_examples_exist(page: Path) -> None:
    wrong = [(flag, line) for line in shell_lines(page) for flag in unknown_options(line)]
    assert {flag for flag, _ in wrong} <= PLUGIN_OPTIONS.get(page.name, set()), wrong


def test_a_wrong_option_would_be_found() -> None:
    assert list(unknown_options("python -m flows.pipeline --dedup.treshold 1 --output x")) == ["--dedup.treshold"]
    assert list(unknown_options("gpt2train evaluate lambada --model M --dta x")) == ["--dta"]
    assert list(unknown_options("gpt2train merge RUN --outptu MODEL  # --no-flag")) == ["--outptu"]
    assert sum(len(shell_lines(page)) for page in PAGES) > 60


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=name_of)
def test_settings_in_toml_blocks_exist(page: Path) -> None:
    """Each block is of a flow, a training, a task of fine-tuning or of evaluation, of which it may be a part."""
    for block in blocks(page, "toml"):
        if block.startswith("[project]"):  # of a plug-in
            continue
        values, refused = tomllib.loads(block), []
        for model in (PipelineSettings, TrainSettings, RunConfig, TaskSettings, Task):
            try:
                model.model_validate(values)
            except ValidationError as error:
                refused.append([wrong["loc"] for wrong in error.errors() if wrong["type"] != "missing"])
            else:
                refused.append([])
        assert [] in refused, block


def test_prefect_variables_exist() -> None:
    """Each environment variable of Prefect that a page or a deployment names is one of Prefect's settings."""
    files = [*PAGES, *(path for path in (ROOT / "deployments").rglob("*") if path.suffix in (".yaml", ".toml"))]
    named = {
        (name_of(file), name)
        for file in files
        for name in re.findall(r"\bPREFECT_[A-Z0-9_]*[A-Z0-9]\b", file.read_text())
    }
    assert len(named) > 20
    assert not [found for found in sorted(named) if not hasattr(prefect.settings, found[1])]


def test_the_page_names_all_deployments() -> None:
    server = (ROOT / "docs/operate/server.md").read_text()
    listed = server.partition("deployments are created:")[2].partition(". Run this line")[0]
    words = [word.replace(" ", "") for word in re.findall(r"`([^`]+)`", listed)]
    names = [
        f"{flow}/{one}" for flow, _, found in (w.partition("/") for w in words) for one in found.strip("{}").split(",")
    ]
    assert sorted(names) == deployment_names()


def test_python_blocks_import_only_dependencies() -> None:
    declared = {one.name.lower() for one in required("pipeline", "serve")}
    imports = importlib.metadata.packages_distributions()
    for page in PAGES:
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                for name in (str(name).split(".")[0] for name in names):
                    ours = name in ("gpt2train", "tasks", "flows") or name in sys.stdlib_module_names
                    assert ours or {each.lower() for each in imports.get(name, [])} & declared, (name_of(page), name)


def test_python_blocks_run(finished: Finished, tmp_path: Path) -> None:
    """On the output of the pipeline, with the paths of the pages: `out/`, `out/mine/`, a model folder `M`."""
    (tmp_path / "out").mkdir()
    for entry in finished.output.iterdir():
        (tmp_path / "out" / entry.name).symlink_to(entry)
    (tmp_path / "out/mine").symlink_to(finished.output)
    (tmp_path / "M").symlink_to(finished.run / "model")
    shown = [(name_of(page), block) for page in PAGES for block in blocks(page, "python")]
    assert len(shown) >= 4
    program = "\n".join(f"exec(compile({block!r}, {name!r}, 'exec'), {{}})\nprint('ran')" for name, block in shown)
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ran\n") == len(shown)


def test_counts_and_names_of_the_pages_are_those_of_the_code() -> None:
    texts = {name_of(page): page.read_text(encoding="utf-8") for page in PAGES}
    numbers = ("eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen")
    said = [(name, word) for name, text in texts.items() for word in re.findall(r"(\w+) deployments\b", text.lower())]
    assert not [one for one in said if one[1] in numbers and numbers.index(one[1]) + 8 != len(deployment_names())]
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "flows").rglob("*.py"))
    keys = [key for text in texts.values() for key in re.findall(r"artifact \*\*([\w-]+)\*\*", text)]
    assert len(keys) > 4 and [key for key in keys if f'"{key}"' not in source] == []
    layers = [file for layer in ("flows", "tasks", "gpt2train") for file in (ROOT / layer).rglob("*.py")]
    imports = "".join(file.read_text(encoding="utf-8") for file in layers)
    for package, use in re.findall(r"^\| ([\w-]+) \| (.*) \|$", texts["docs/develop/dependencies.md"], re.M):
        named = re.findall(rf"`({package.replace('-', '_')}(?:\.\w+)+)`", use)
        assert [name for name in named if name not in imports] == [], package
