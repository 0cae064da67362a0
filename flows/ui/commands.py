"""Commands `gpt2train flow …`: those of `python -m flows.…`, which do not import from the user's folder."""

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

import flows

FLOWS = {
    "dataprep": "Prepare token shards from lists of URLs, web archives or texts. Returns the folder of the tokens.",
    "evaluate": "Merge the selected checkpoint of a run and score the model. Returns the folder of the scores.",
    "finetune": "Fine-tune a model on a task: classification, answers to prompts, or texts. Returns the folder of the "
    "model.",
    "pipeline": "Prepare data, train, merge, score and report. Returns the path of the report.",
    "pretrain": "Train on token shards and write checkpoints. Returns the run folder.",
}

flow = App(name="flow", help="Run a flow of the data steps and the training, as `python -m flows.…` does.")


def command_of(name: str) -> Callable[..., None]:
    """Return the command of a flow, which hands all its arguments on."""

    def command(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
        if sys.path[:1] not in ([""], [str(Path.cwd())]):
            os.environ["PYTHONSAFEPATH"] = "1"  # the processes of the run do not import from the user's folder either
        if "--debug" in sys.argv:  # which `gpt2train` has taken
            words = ("--debug", *words)
        flows.program = "gpt2train flow "
        flows.start_command(name, words)
        sys.argv = [f"flows.{name}", *words]
        runpy.run_module(f"flows.{name}", run_name="__main__", alter_sys=True)

    return command


for _name, _about in FLOWS.items():
    flow.command(command_of(_name), name=_name, help=_about, help_flags=[], version_flags=[])
