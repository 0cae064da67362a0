"""Commands of a page of the documentation, run in their order as a reader types them, at a small size.

Flows run their recipe in this process without Prefect, and commands of `gpt2train` too: a process takes seconds to
import what it needs. Trainings have ranks of their own.
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cyclopts import App

from flows.command import app_of
from flows.settings import resolve
from flows.ui.flags import dump
from gpt2train.cli import app, run_command
from tests.tasks.corpus import Inline

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.S | re.M)
FLOW = re.compile(r"python -m flows\.(\w+)")
COMMAND_SECONDS = 300.0
SERVER_SECONDS = 120.0

# Options by which a training becomes small; they take the place of those that a page has.
TRAIN = (
    "--train.steps 2 --train.precision fp32 --train.model.layers 2 --train.model.heads 2 --train.model.hidden 16 "
    "--train.model.context 32 --train.batch.micro-batch 1 --train.batch.global-batch 4 "
    "--train.batch.gradient-accumulation-steps 0 --train.validation.samples 4 --train.validation.interval 2 "
    "--train.schedule.warmup 1 --train.schedule.warmup-fraction 0 --train.scaler.initial 1024 "
    "--train.logging.interval 1 --train.logging.no-tensorboard"
)

SCORES = "--evaluate.max-documents 2 --evaluate.max-characters 400 --evaluate.sampling.max-new-tokens 4"


def commands_of(page: Path) -> list[str]:
    """The lines of a page's `sh` blocks without comments; lines that a backslash or a quote continues are joined."""
    lines: list[str] = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            if lines and lines[-1].count("'") % 2:
                lines[-1] += f" {line.strip()}"
            elif line.strip() and not line.startswith("#"):
                lines.append(re.sub(r"\s+# .*", "", line).strip())
    return lines


def tasks_of(page: str) -> list[tuple[str, str]]:
    """The TOML files that a page shows: content and name."""
    found = re.findall(r'^```toml title="([^"]+)"\n(.*?)^```', (DOCS / page).read_text(encoding="utf-8"), re.S | re.M)
    return [(content, name) for name, content in found]


def small_line(line: str, options: str) -> str:
    for flag in re.findall(r"--[\w.-]+", options):
        line = re.sub(rf"\s{re.escape(flag)}(?:[= ](?!--)(?:\"[^\"]*\"|\S+))?(?=\s|$)", "", line)
    return f"{line} {options}".strip()


def follow(
    page: str,
    folder: Path,
    small: Mapping[str, str],
    stand_ins: Mapping[str, Callable[[], object]] | None = None,
    replaced: Mapping[str, str] | None = None,
    afterwards: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, str]:
    """Run every command of a page in a folder.

    Args:
        page: path below `docs/`.
        folder: the reader's work folder, with the inputs that the page names.
        small: start of a command -> options that make it small; the longest start counts.
        stand_ins: start of a command that needs another host -> function that has the same effect.
        replaced: texts that are replaced in each command.
        afterwards: start of a command -> function that makes small what it wrote.

    Returns:
        What each command printed, by its line on the page.
    """
    stand_ins, replaced, afterwards = stand_ins or {}, replaced or {}, afterwards or {}
    outputs: dict[str, str] = {}
    unused = {*small, *stand_ins, *replaced, *afterwards}
    with contextlib.ExitStack() as stack, contextlib.chdir(folder):
        for shown in commands_of(DOCS / page):
            if stand_in := next((name for name in stand_ins if shown.startswith(name)), None):
                stand_ins[stand_in]()
                unused.discard(stand_in)
                continue
            line = shown
            for old, new in replaced.items():
                if old in line:
                    line = line.replace(old, new)
                    unused.discard(old)
            if name := max((name for name in small if shown.startswith(name)), key=len, default=None):
                line = small_line(line, small[name])
                unused.discard(name)
            if line.startswith("gpt2train serve"):
                stack.enter_context(served(line))
            else:
                outputs[shown] = run_line(line)
            for name in [name for name in afterwards if shown.startswith(name)]:
                afterwards[name]()
                unused.discard(name)
    assert not unused, f"{page} has no command for {sorted(unused)}"
    return outputs


def run_line(line: str) -> str:
    """Run one command in the current folder, to its end. Returns what it printed."""
    line, _, target = line.partition(" > ")
    words = _words(line)
    if flow := FLOW.match(line):
        printed = _run_flow(flow[1], words[3:])
    elif words[0] == "gpt2train":
        printed = _printed_by(app, words[1:])
    else:
        assert words[0] in ("curl", "torchrun", "python", "lm_eval"), f"{line!r} is run by no test"
        paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", line], env=os.environ | paths, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout
    if target:
        Path(target.strip()).write_text(printed)
    return printed


def _words(line: str) -> list[str]:
    """The words of a command, with the files that an unquoted one with a `*` stands for."""
    words = []
    for word in shlex.split(line):
        found = sorted(map(str, Path().glob(word))) if "*" in word and f"'{word}'" not in line else []
        words += found or [word]
    return words


def _printed_by(program: App, words: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run_command(program, words)
    assert code == 0, f"{words}\n{out.getvalue()}{errors.getvalue()}"
    return out.getvalue()


def _run_flow(name: str, words: list[str]) -> str:
    """Parse the words as the command of a flow does, and run its recipe; the plan, if the words ask for that."""
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    program = app_of(flow)
    if "--dry-run" in words:
        return _printed_by(program, words)
    _, bound, _ = program.parse_args(words, exit_on_error=False, print_error=False)
    given = bound.arguments.get("settings")
    flags = {} if given is None else dump(given, "python", given=True)
    run = flow.planned(resolve(flow.model, bound.arguments.get("config"), flags))
    run.check()
    with Inline(workers=1) as runner:
        run.recipe(runner)
    return ""


@contextlib.contextmanager
def served(line: str) -> Iterator[None]:
    log = Path("server.log").absolute()
    with log.open("w") as output:
        command = [sys.executable, "-m", *_words(line)]
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + SERVER_SECONDS
        while "serving" not in log.read_text():
            assert server.poll() is None and time.monotonic() < deadline, f"{line}\n{log.read_text()}"
            time.sleep(0.2)
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(SERVER_SECONDS)


def copy_to(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
