"""A mistake on a command line, and help, cost no import of a large package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpt2train.checkpoint.manifest import FORMAT, CheckpointManifest
from gpt2train.cli import app
from gpt2train.config import RunConfig, to_toml
from gpt2train.settings import build
from gpt2train.training.train_state import TrainState

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


MODEL = {"model_type": "gpt2", "vocab_size": 300, "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 16}


def mistakes_about_models(folder: Path) -> list[tuple[str, ...]]:
    """Command lines with a mistake in a model, run, tokenizer or documents, which start no ranks either."""
    (data := folder / "set.jsonl").write_text('{"text": "a b"}\n')
    configs = {"model": json.dumps(MODEL), "bert": '{"model_type": "bert"}', "broken": "{"}
    for name, content in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(content)
    (folder / "run").mkdir()
    settings = {"vocab": 300, "output": str(folder / "run"), "data": {"train": str(folder / "tokens")}}
    config = build(RunConfig, settings)
    (folder / "run/config.toml").write_text(to_toml(config))
    (folder / "words").mkdir()
    (folder / "words/tokenizer.json").write_text("{")
    (folder / "saved").mkdir()
    position = TrainState(step=1, samples=1, updates=1, skipped=0)
    manifest = CheckpointManifest(
        format=FORMAT, position=position, config=config.model_dump(), tokenizer_hash=None, torch="2", files={}
    )
    (folder / "saved/manifest.json").write_text(manifest.model_dump_json())
    model, bert, broken, run, words, saved, nowhere = (
        str(folder / name) for name in ("model", "bert", "broken", "run", "words", "saved", "nowhere")
    )
    (taken := folder / "taken.gguf").touch()
    (folder / "model/model.safetensors").touch()  # no mistake below is found by its content
    (folder / "bare").mkdir()
    (folder / "bare/config.json").write_text(json.dumps(MODEL))
    empty, scored = str(folder), ("--data", str(data))
    readers = [
        ("serve", "--model"),
        ("generate", "--prompt", "a", "--model"),
        *(("evaluate", name, *scored, "--model") for name in ("lambada", "wikitext")),
    ]
    made, exported = ("--to", "huggingface"), ("--to", f"{folder}/x.gguf")
    return [
        *(
            (*reader, name)
            for reader in readers
            for name in (nowhere, empty, bert, broken, str(folder / "bare"), model)
        ),
        *(("convert", model, words, "--to", to) for to in ("huggingface", "megatron", "gpt2train")),
        ("convert", model, f"{folder}/x", "--to", "megatron", "--tp", "3"),
        ("export", model, "--to", str(taken)),
        *((*reader, model, *more) for reader in readers for more in (("--tp", "3"), ("--pp", "3"), ("--tp", "0"))),
        ("serve", "--model", model, "--host", "192.0.2.1"),
        ("serve", "--model", model, "--key-file", nowhere),
        ("serve", "--model", model, "--trace"),
        ("generate", "--prompt", "a", "--model", nowhere, "--beams", "3"),
        *(("evaluate", "lambada", *scored, "--model", name) for name in (run, words)),
        ("evaluate", "lambada", *scored, "--model", model, "--tokenizer", words),
        ("evaluate", "lambada", *scored, "--model", run, "--tp", "2"),
        ("evaluate", "lambada", "--data", nowhere, "--model", model),
        ("evaluate", "documents", *scored, "--model", bert),
        ("evaluate", "lambada", *scored, "--model", saved),
        ("evaluate", "lambada", *scored, "--model", saved, "--tokenizer", words),
        ("evaluate", "nothing", *scored, "--model", model),
        *(("evaluate", "curve", name, *scored) for name in (nowhere, run)),
        *(("merge", name, "--output", f"{folder}/x") for name in (model, run, nowhere)),
        ("merge", saved, "--output", words),
        *(("merge", saved, "--output", f"{folder}/x", "--tokenizer", name) for name in (nowhere, words)),
        *(("convert", name, f"{folder}/x", *made) for name in (bert, broken, run, words)),
        *(("export", name, *exported) for name in (bert, broken, run, words)),
        *(("convert", model, f"{folder}/x", *made, "--tokenizer", name) for name in (nowhere, words, model)),
        *(("export", model, *exported, "--tokenizer", name) for name in (nowhere, words, model)),
        ("data", "tokenize", str(data), "--output", f"{folder}/x", "--tokenizer", words),
        ("data", "tokenize", str(data), "--output", f"{folder}/x", "--json-key", "body"),
        ("data", "tokenize", nowhere, "--output", f"{folder}/x"),
        ("data", "index", run),
        ("data", "explain", nowhere),
        ("data", "label", nowhere),
        ("data", "contamination", str(data), "--data", nowhere),
        ("data", "contamination", nowhere, "--run", run),
        ("trace", "--sample", "0", "--run", run, "--documents", nowhere),
        ("trace", "--text", "a b", "--run", run),
        ("compare-data", str(data), nowhere, "--output", f"{folder}/x"),
        ("simulate", "--preset", "tiny", "--tp", "3"),
        ("runs", run, "--sort", "none"),
        ("client", "nowhere"),
    ]


ALL_IN_ONE = """
import contextlib, io, json, sys
from gpt2train.checkpoint.manifest import FORMAT, CheckpointManifest
from gpt2train.cli import app
from gpt2train.command_line import run_command
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
import flows.pipeline
assert "aiohttp" not in sys.modules  # of the download
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
