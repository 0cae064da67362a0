"""The commands of the flows up to where one would start: in this process, as a new one takes 3 s of a core."""

import flows.dataprep
import flows.pipeline
import flows.pretrain
from flows.command import app_of
from gpt2train.command import run_command

APPS = {
    "dataprep": app_of(flows.dataprep.dataprep, "tokens"),
    "pipeline": app_of(flows.pipeline.pipeline, "report"),
    "pretrain": app_of(flows.pretrain.pretrain, "run"),
}


def run(flow: str, *arguments: str) -> int:
    """The exit code of a command whose arguments are refused, or that has nothing to start."""
    return run_command(APPS[flow], arguments)
