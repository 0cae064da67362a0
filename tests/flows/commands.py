"""Flow commands run in this process up to the start of the flow; a new process takes 3 s of a core."""

import flows.dataprep
import flows.evaluate
import flows.finetune
import flows.pipeline
import flows.pretrain
from flows.command import app_of
from gpt2train.command_line import run_command

APPS = {
    "dataprep": app_of(flows.dataprep.dataprep),
    "evaluate": app_of(flows.evaluate.evaluate),
    "finetune": app_of(flows.finetune.finetune),
    "pipeline": app_of(flows.pipeline.pipeline),
    "pretrain": app_of(flows.pretrain.pretrain),
}


def run(flow: str, *arguments: str) -> int:
    """The exit code of a command whose arguments are refused, or that has nothing to start."""
    return run_command(APPS[flow], arguments)
