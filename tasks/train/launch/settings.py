"""Settings of the launchers: machines, processes and timeouts of a training job."""

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gpt2train.settings import Settings
from tasks.train.launch.slurm.settings import SlurmSettings
from tasks.train.launch.ssh_settings import SshSettings

PORT = 29500  # default port of torchrun's rendezvous


class LaunchSettings(Settings):
    """Settings of the launcher. None of them changes the trained weights."""

    launcher: Literal["torchrun", "ssh", "slurm"] = "torchrun"
    """Launcher of the processes: torchrun on this machine, ssh on each of `hosts`, or a Slurm job."""
    hosts: tuple[str, ...] = ()
    """Host names for the ssh launcher, as ssh takes them; the first host holds the rendezvous."""
    ssh: SshSettings = SshSettings()
    """Settings of the ssh launcher."""
    slurm: SlurmSettings = SlurmSettings()
    """Settings of the Slurm launcher."""

    processes: PositiveInt = 2
    """Processes on each machine: one per GPU, or per group of CPU cores without GPUs."""
    nodes: PositiveInt = 1
    """Number of machines; all must see the run folder on a shared disk. torchrun logs the command for the others."""
    endpoint: str | None = Field(None, pattern=r"^[^\s:]+:\d+$")
    """HOST:PORT of the rendezvous of several machines. None, with `hosts`: the first host, port 29500."""
    restarts: NonNegativeInt = 0
    """Maximum restarts of all processes from the last checkpoint, within one job, after a process was lost."""
    retries: NonNegativeInt = 2
    """Maximum retries of a job that lost a process after its last restart, each from the last checkpoint. User errors,
    bugs and a diverged loss are not retried."""
    retry_delay: float = Field(10.0, ge=0, le=604_800)
    """Seconds before the first retry; doubled for each further one."""
    timeout: float = Field(300.0, gt=0, le=604_800)
    """Seconds without progress after which a process counts as lost."""
    threads: PositiveInt = 1
    """OMP threads of each process; on a CPU, processes x threads should not exceed the cores."""
    max_jobs_per_gpu: PositiveInt = 1
    """Training jobs at a time on one GPU, or on the cores of a machine without GPUs; further jobs wait in a queue. Each
    run applies its own value (docs/operate/budget.md)."""
    skip_resource_check: bool = False
    """Start even if, by the plan (--dry-run), this machine lacks GPUs, memory, time or disk space for the run."""
    shutdown_timeout: float = Field(60.0, gt=0, le=604_800)
    """Seconds that a cancelled job has to save a checkpoint before it is killed."""

    @property
    def machines(self) -> int:
        """Number of machines."""
        return len(self.hosts) or self.nodes

    @property
    def world(self) -> int:
        """World size: processes on all machines."""
        return self.processes * self.machines

    @property
    def rdzv_endpoint(self) -> str | None:
        """HOST:PORT of torchrun's rendezvous; None for a single machine and for Slurm, which sets it itself."""
        if self.machines == 1 or self.launcher == "slurm":
            return None
        return self.endpoint or f"{self.hosts[0].rpartition('@')[2]}:{PORT}"

    @model_validator(mode="after")
    def _check_hosts(self) -> "LaunchSettings":
        if (self.launcher == "ssh") != bool(self.hosts):
            raise ValueError("launch.launcher = 'ssh' and launch.hosts, the machines to start on, require each other")
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("launch.hosts names a machine twice; launch.processes is the number for each machine")
        if wrong := [host for host in self.hosts if not host or host.startswith("-") or set(host) & set(" '\"\\$")]:
            raise ValueError(f"launch.hosts has {wrong[0]!r}, which is not a host name")
        if self.hosts and self.nodes not in (1, len(self.hosts)):
            raise ValueError(f"launch.nodes is {self.nodes}, but launch.hosts has {len(self.hosts)}; leave nodes out")
        if self.launcher == "torchrun" and self.nodes > 1 and self.endpoint is None:
            raise ValueError(f"{self.nodes} nodes need launch.endpoint, the HOST:PORT of their rendezvous")
        return self
