"""How a training job is started: where its processes run, and how long they are waited for."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gpt2train.settings import Settings


class LaunchSettings(Settings):
    """How the training job is started. Nothing here changes what is learned."""

    launcher: Literal["torchrun"] = "torchrun"
    """Who starts the processes: torchrun on this machine."""

    processes: PositiveInt = 2
    """Processes of the torchrun job on each machine: its GPUs, or CPU cores where there is none."""
    nodes: PositiveInt = 1
    """Machines; the others are told the command to run, and see the same run folder on a shared disk."""
    endpoint: str | None = Field(None, pattern=r"^[^\s:]+:\d+$")
    """HOST:PORT of the machine where they meet, with more than one."""
    restarts: NonNegativeInt = 0
    """How often all processes start again from the last checkpoint when one was lost."""
    timeout: float = Field(300.0, gt=0)
    """Seconds until a process that says nothing counts as lost."""
    threads: PositiveInt = 1
    """OMP threads of each process; on a CPU, processes x threads should not exceed the cores."""
    grace: float = Field(60.0, gt=0)
    """Seconds that a cancelled job has to save a checkpoint before it is killed."""

    @property
    def world(self) -> int:
        """Processes on all machines."""
        return self.processes * self.nodes

    @model_validator(mode="after")
    def _meet_somewhere(self) -> "LaunchSettings":
        if self.nodes > 1 and self.endpoint is None:
            raise ValueError(f"{self.nodes} nodes need launch.endpoint, the HOST:PORT where they meet")
        return self
