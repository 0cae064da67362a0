"""The command `gpt2train`: merge, evaluate and generate with a trained run; mistakes are one line."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cyclopts import App

from gpt2train.cli import app, run_command
from gpt2train.convert.detect import find_source
from gpt2train.convert.huggingface import read_model
from gpt2train.convert.merge import merge
from gpt2train.errors import RunError, UserError
from tests.gpt2train.jobs import load_weights
from tests.trained_run import VOCAB, TrainedRun


@pytest.fixture(scope="module")
def model(trained_run: TrainedRun) -> Path:
    folder, out, err = trained_run.root / "merged", io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run_command(app, ["merge", str(trained_run.run), "--output", str(folder)]) == 0
    assert out.getvalue().splitlines()[-1] == f"model: {folder}"
    assert "step-00000002" in out.getvalue() and err.getvalue() == ""
    return folder


def test_the_merged_model_equals_the_trained_one(trained_run: TrainedRun, tmp_path: Path, model: Path) -> None:
    weights = load_weights(trained_run.run / "checkpoints/step-00000002")
    merged = read_model(model)
    assert merged.shape.vocab == VOCAB
    for name, tensor in merged.state_dict().items():
        expected = weights[name][:VOCAB] if name == "wte.weight" else weights[name]
        assert torch.equal(tensor[: len(expected)], expected), name
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    tokens = torch.randint(0, VOCAB, (2, 64))
    with torch.no_grad():
        assert torch.allclose(theirs(tokens).logits, merged(tokens)[..., :VOCAB], atol=1e-5)
    # A checkpoint can be named.
    merge(trained_run.run / "checkpoints/step-00000002", tmp_path / "m", trained_run.tokenizer)
    assert (tmp_path / "m/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_text_is_generated(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(model), "--max-new-tokens", "5", "--prompt", "Licensed", "--prompt", "You may"]
    said = []
    for seed in ("1", "1", "2"):
        assert run_command(app, ["generate", *flags, "--seed", seed]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]
    assert said[0].startswith("Licensed")
    assert said[0].count("tokens, stopped: ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["genrate"], 'Did you mean "generate"'),
        (["evaluate", "lambda"], "did you mean 'lambada'"),
        (["generate", "--model", "m", "--promt", "x"], "unknown option --promt; did you mean --prompt?"),
        (["generate", "--prompt", "x"], "--model"),
        (["generate", "--model", "m", "--prompt", "x", "--top-p", "2"], "--top-p: input should be less than or equal"),
        (["generate", "--model", "m", "--prompt", "x", "--device", "tpu"], "tpu"),
        (["generate", "--model", "nowhere", "--prompt", "x"], "there is no folder nowhere"),
        (["generate", "--model=~/nowhere", "--prompt", "x"], f"there is no folder {Path.home()}{os.sep}nowhere"),
        (["plan", "--config=~/none.toml"], f"cannot read the settings file {Path.home()}{os.sep}none.toml"),
        (["plan", "--gpus", "99999999999"], "--gpus: input should be less than or equal to 1000000"),
        (["plan", "--config", "deep.toml"], "deep.toml: its values are nested too deeply"),
        (["merge", "nowhere", "--output", "m"], "no folder nowhere"),
        (["merge", ".", "--output", "m"], "config.toml"),
        (["evaluate", "lambada", "--model", "m", "--data", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    arguments: list[str], message: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.toml").write_text(f"values = {'[' * 5000}{']' * 5000}\n")
    assert run_command(app, arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_the_exit_code_reaches_the_shell(tmp_path: Path) -> None:
    arguments = ["evaluate", "lambada", "--model", "m", "--data", str(tmp_path / "nowhere"), "--debug"]
    command = [sys.executable, "-m", "gpt2train", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps a folder that a process works in")
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT of one process")
@pytest.mark.parametrize("module", ["gpt2train", "gpt2train.train", "flows.pretrain"])
def test_ctrl_c_during_the_imports_is_one_line(tmp_path: Path, module: str) -> None:
    lost = "import os\ntry:\n    os.kill(os.getpid(), 2)\n    import time\nexcept KeyboardInterrupt:\n    pass\n"
    for library in ("cyclopts", "torch"):  # libraries drop the exception, or convert it
        (tmp_path / f"{library}.py").write_text(lost)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [
        sys.executable,
        "-c",
        f"import os, signal; signal.signal(2, signal.default_int_handler)\n"
        f"os.execv({sys.executable!r}, ['python', '-m', {module!r}])",
    ]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_a_working_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    script = 'mkdir "$1"; cd "$1"; rmdir "$1"; exec "$2" -m gpt2train plan --preset tiny --gpus 1'
    command = ["sh", "-c", script, "sh", str(tmp_path / "gone"), sys.executable]
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=paths, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: the working folder was removed; ")


def test_a_damaged_checkpoint_exits_1(
    trained_run: TrainedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_run.run, tmp_path / "run")
    victim = next((tmp_path / "run/checkpoints/step-00000002").glob("*.distcp"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    flags = ["--output", str(tmp_path / "m"), "--tokenizer", str(trained_run.tokenizer)]
    assert run_command(app, ["merge", str(tmp_path / "run"), *flags]) == 1
    error = capsys.readouterr().err
    assert "damaged" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_a_wrong_tokenizer_and_a_run_without_a_checkpoint_are_refused(
    trained_run: TrainedRun, tmp_path: Path, open_data: Path
) -> None:
    with pytest.raises(UserError, match="not the one"):
        merge(trained_run.run, tmp_path / "m", open_data / "bpe")
    (tmp_path / "config.toml").write_bytes((trained_run.run / "config.toml").read_bytes())
    with pytest.raises(UserError, match="no checkpoint"):
        find_source(tmp_path)


OUTPUT = "a file or standard output"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("a b\nc"), 2, "error: a b c\n"),
        (RunError("full"), 1, "error: full\n"),
        (OSError(28, "no"), 1, f"error: no space left while writing {OUTPUT}; free some and run again\n"),
        (PermissionError(13, "no", "a"), 2, "error: no permission for a; change its mode, or run as its owner\n"),
        (KeyError("k"), 1, "error: KeyError: 'k' (--debug shows the traceback)\n"),
        (MemoryError(), 1, "error: not enough memory; end other programs or raise its limit, and run again\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_every_error_is_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = App(suppress_keyboard_interrupt=False)

    @failing.default
    def command() -> None:
        raise error

    assert run_command(failing, []) == code
    assert capsys.readouterr().err == line
    assert run_command(failing, ["--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_has_ended_is_no_error(trained_run: TrainedRun) -> None:
    """As `head`, with more and with less output than is buffered."""
    for arguments in (["config"], ["runs", str(trained_run.run)], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "gpt2train", *arguments]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, ""), arguments
