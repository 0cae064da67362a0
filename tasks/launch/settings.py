"""How a training job is started: where its processes run, and how long they are waited for."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gpt2train.settings import Settings
from tasks.launch.slurm.settings import SlurmSettings
from tasks.launch.ssh_settings import SshSettings

PORT = 29500  # where torchrun's machines meet


class LaunchSettings(Settings):
    """How the training job is started. Nothing here changes what is learned."""

    launcher: Literal["torchrun", "ssh", "slurm"] = "torchrun"
    """Who starts the processes: torchrun on this machine, ssh on each of `hosts`, Slurm where it has room."""
    hosts: tuple[str, ...] = ()
    """Machines that ssh starts the job on, by the names that ssh takes; the first is where they meet."""
    ssh: SshSettings = SshSettings()
    """How ssh reaches them."""
    slurm: SlurmSettings = SlurmSettings()
    """What Slurm is asked for."""

    processes: PositiveInt = 2
    """Processes of the torchrun job on each machine: its GPUs, or CPU cores where there is none."""
    nodes: PositiveInt = 1
    """Machines, which see the same run folder on a shared disk; with torchrun the command for the others is told."""
    endpoint: str | None = Field(None, pattern=r"^[^\s:]+:\d+$")
    """HOST:PORT of the machine where they meet, with more than one. None, with `hosts`: the first, port 29500."""
    restarts: NonNegativeInt = 0
    """How often all processes start again from the last checkpoint when one was lost."""
    retries: NonNegativeInt = 2
    """How often a job that was lost for good, its restarts used up, is started once more, from the last checkpoint. A
    user's mistake, a bug and a lost loss are not tried again."""
    retry_delay: float = Field(10.0, ge=0)
    """Seconds before the first of them; twice as long before each further one."""
    timeout: float = Field(300.0, gt=0)
    """Seconds until a process that says nothing counts as lost."""
    threads: PositiveInt = 1
    """OMP threads of each process; on a CPU, processes x threads should not exceed the cores."""
    share: PositiveInt = 1
    """Trainings that may run on one GPU at a time, or on the cores of a machine without one; others wait for their
    turn. Each run goes by its own number (docs/budget.md)."""
    anyway: bool = False
    """Start although this machine lacks GPUs, memory, time or disk space for the run by the plan (--dry-run)."""
    grace: float = Field(60.0, gt=0)
    """Seconds that a cancelled job has to save a checkpoint before it is killed."""

    @property
    def machines(self) -> int:
        """How many there are."""
        return len(self.hosts) or self.nodes

    @property
    def world(self) -> int:
        """Processes on all machines."""
        return self.processes * self.machines

    @property
    def meeting_point(self) -> str | None:
        """HOST:PORT where the machines meet; None for a single one, and where Slurm says it."""
        if self.machines == 1 or self.launcher == "slurm":
            return None
        return self.endpoint or f"{self.hosts[0].rpartition('@')[2]}:{PORT}"

    @model_validator(mode="after")
    def _meet_somewhere(self) -> "LaunchSettings":
        if (self.launcher == "ssh") != bool(self.hosts):
            raise ValueError("launch.launcher = 'ssh' and launch.hosts, the machines to start on, go together")
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("launch.hosts names a machine twice; launch.processes is the number for each machine")
        if wrong := [host for host in self.hosts if not host or host.startswith("-") or set(host) & set(" '\"\\$")]:
            raise ValueError(f"launch.hosts has {wrong[0]!r}, which is no name of a machine")
        if self.hosts and self.nodes not in (1, len(self.hosts)):
            raise ValueError(f"launch.nodes is {self.nodes}, but launch.hosts has {len(self.hosts)}; leave nodes out")
        if self.launcher == "torchrun" and self.nodes > 1 and self.endpoint is None:
            raise ValueError(f"{self.nodes} nodes need launch.endpoint, the HOST:PORT where they meet")
        return self
