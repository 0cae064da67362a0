"""A mistake on a command line, and help, cost no import of a large package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2train.cli import app

LARGE = ("torch", "sympy", "transformers", "scipy", "matplotlib")
COMMANDS = [(name,) for name in app if not name.startswith("-")]
COMMANDS += [("data", name) for name in app["data"] if not name.startswith("-")]
# Mistakes that a command finds itself. All commands are tried with an unknown option, and their help.
MISTAKES = [
    ("plan", "--preset", "none"),
    ("plan", "--config", "missing.toml"),
    ("simulate", "--config", "missing.toml"),
    ("config", "--preset", "none"),
    ("merge", "missing", "--output", "x"),
    ("convert", "missing", "x", "--to", "huggingface"),
    ("export", "missing", "--to", "x.gguf"),
    ("trace", "--data", "missing", "--text", "a b"),
    ("verify", "missing"),
    ("forget", "x", "--output", "missing"),
    ("passport", "missing"),
    ("publish", "missing", "--to", "x"),
    ("runs", "missing"),
    ("compare-data", "missing", "missing"),
    ("data", "tokenize", "missing", "--tokenizer", "missing", "--output", "x"),
    ("data", "convert", "missing", "x"),
    ("data", "export", "missing", "--output", "x"),
    ("data", "index", "missing"),
    ("data", "browse", "missing"),
    ("data", "train-quality", "missing", "--output", "x"),
]


def mistakes_about_models(folder: Path) -> list[tuple[str, ...]]:
    """Command lines of the commands that run models, which start no ranks either."""
    (data := folder / "set.jsonl").write_text('{"text": "a b"}\n')
    (model := folder / "model").mkdir()
    (model / "config.json").touch()
    nowhere, empty, scored = str(folder / "nowhere"), str(folder), ("--data", str(data))
    return [
        *(("serve", "--model", name, *more) for name in (nowhere, empty) for more in ((), ("--tp", "4"))),
        ("serve", "--model", str(model), "--host", "192.0.2.1"),
        ("serve", "--model", str(model), "--key-file", nowhere),
        ("serve", "--model", str(model), "--trace"),
        *(("generate", "--prompt", "a", "--model", nowhere, *more) for more in ((), ("--pp", "2"), ("--beams", "3"))),
        *(("evaluate", "lambada", "--model", name, *scored) for name in (nowhere, empty)),
        ("evaluate", "curve", nowhere, *scored),
        ("client", "nowhere"),
    ]


ALL_IN_ONE = """
import contextlib, io, json, sys
from gpt2train.cli import app
from gpt2train.io.command_line import run_command
found = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = run_command(app, words)
    found.append((words, code, [name for name in json.loads(sys.argv[2]) if name in sys.modules], out.getvalue()))
print(json.dumps(found))
"""
FLOWS = """
import contextlib, io, json, sys
from flows.ui.arguments import MODELS, check_arguments
from flows.ui.commands import FLOWS
large = json.loads(sys.argv[1])
for name in MODELS:
    for word, code in (("--no-such-option", 2), ("--help", 0)):
        with contextlib.redirect_stdout(io.StringIO()) as page:
            try:
                check_arguments(name, [word])
            except SystemExit as end:
                assert end.code == code, (name, word)
        assert code or FLOWS[name].split(".")[0] in " ".join(page.getvalue().split()), name
        assert not [module for module in (*large, "prefect") if module in sys.modules], (name, word)
from tests.flows.commands import run
assert run("pipeline", "--dry-run", "--output", sys.argv[2]) == 0
models = {name: getattr(sys.modules[f"flows.{name}"], name) for name in MODELS}
assert {name: flow.model for name, flow in models.items()} == MODELS
assert {name: " ".join(flow.__doc__.split()) for name, flow in models.items()} == FLOWS
print([module for module in large if module in sys.modules])
"""


def test_a_mistake_and_help_import_nothing_large(tmp_path: Path) -> None:
    """All in one process, which names the first command that imports something."""
    tried = [*MISTAKES, *mistakes_about_models(tmp_path)]
    tried += [*((*name, "--no-such-option") for name in COMMANDS), ("--help",), ("generate", "--help")]
    command = [sys.executable, "-c", ALL_IN_ONE, json.dumps(tried), json.dumps(LARGE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert [(words, large) for words, _, large, _ in found if large][:1] == []
    assert [(words, code, out) for words, code, _, out in found if code != (0 if "--help" in words else 2)] == []


def test_a_mistake_and_help_of_a_flow_import_no_prefect_and_a_dry_run_nothing_large(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FLOWS, json.dumps(LARGE), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    command = [sys.executable, "-X", "importtime", "-m", "flows.pretrain", "--config", "missing.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "error: cannot read the settings file missing.toml" in done.stderr
    assert "prefect" not in done.stderr


def test_every_command_has_a_line_on_the_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ([], ["data"]):
        app([*group, "--help"], result_action="return_value")
        lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines() if line.startswith("│ ")]
        names = [name for *path, name in COMMANDS if path == group]
        assert set(names) <= {line.split()[0] for line in lines if len(line.split()) > 1}, lines
