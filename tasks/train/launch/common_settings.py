"""Settings that all launchers share: machines, processes and timeouts of a training job."""

from typing import TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt

from gpt2train.settings import Settings

S = TypeVar("S", bound=Settings)

PORT = 29500  # default port of torchrun's rendezvous


class CommonLaunchSettings(Settings):
    """Settings of the launcher. None of them changes the trained weights."""

    launcher: str = "torchrun"
    """Launcher of the processes: torchrun on this machine, ssh on each of `hosts`, or a Slurm job."""
    hosts: tuple[str, ...] = ()
    """Host names for the ssh launcher, as ssh takes them; the first host holds the rendezvous."""

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
        """HOST:PORT of torchrun's rendezvous; None for a single machine, and where the launcher sets it itself."""
        if self.machines == 1 or not (self.endpoint or self.hosts):
            return None
        return self.endpoint or f"{self.hosts[0].rpartition('@')[2]}:{PORT}"

    def group(self, model: type[S]) -> S:
        """Settings of a launcher of its own, by their model: the group `launch.NAME`."""
        return next(value for _, value in self if isinstance(value, model))
