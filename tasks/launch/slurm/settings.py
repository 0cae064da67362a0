"""What Slurm is asked for."""

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from gpt2train.settings import Settings

NAME = r"^[\w.,@+:-]+$"  # one word of a #SBATCH line

# Written by us, from other settings: a second one would win and be followed wrongly.
OURS = ("job-name", "nodes", "ntasks", "ntasks-per-node", "output", "error", "open-mode", "signal", "chdir", "array")
# Those after which sbatch submits nothing, or something else.
NOT_HERE = ("wrap", "test-only", "wait", "help", "usage", "version", "clusters", "parsable")


class SlurmSettings(Settings):
    """What Slurm is asked for, with `launch.launcher = "slurm"`."""

    partition: str | None = Field(None, pattern=NAME)
    """Partition; None takes the cluster's default."""
    account: str | None = Field(None, pattern=NAME)
    """Account that pays."""
    qos: str | None = Field(None, pattern=NAME)
    """Quality of service."""
    time_limit: str | None = Field(None, pattern=r"^(\d+-)?\d+(:\d+){0,2}$")
    """Longest time of one submission, as sbatch takes it: minutes, H:M:S, D-H, D-H:M:S. None takes the partition's."""
    gpus: NonNegativeInt = 0
    """GPUs of each machine; 0 asks for none."""
    cpus: PositiveInt | None = None
    """CPU cores of each machine; None takes launch.processes x launch.threads."""
    memory: str | None = Field(None, pattern=r"^\d+[KMGT]?$")
    """Memory of each machine, 64G for example; 0 takes all of it, None the cluster's default."""
    options: tuple[str, ...] = ()
    """More options of sbatch, each as it would stand on a #SBATCH line: --exclusive, --constraint=h100."""
    setup: tuple[str, ...] = ()
    """Lines of the script before the training: module load cuda, export NCCL_SOCKET_IFNAME=ib0."""
    python: str | None = Field(None, pattern=r"^\S+$")
    """Python on the machines of the job: a path, or a name that `setup` puts on the PATH. None: the one that submits,
    under the same path."""
    save_before: int = Field(120, ge=1, le=65_535)
    """Seconds before the time limit at which the training is told to save and end. Slurm may be 60 s early."""
    resubmit: NonNegativeInt = 20
    """How often a job that ended early (time limit, preemption, a lost machine) is submitted again. What Slurm puts
    back into the queue by itself does not count."""
    poll: float = Field(10.0, gt=0)
    """Seconds between two questions to Slurm's controller; the output is read every second at least."""

    @field_validator("options")
    @classmethod
    def _options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for option in value:
            name = option.removeprefix("--").partition("=")[0].split(" ")[0]
            if not option.startswith("--") or not option.isprintable():
                raise ValueError(f"{option!r} is no long option of sbatch, as --constraint=h100")
            if name in OURS + NOT_HERE:
                raise ValueError(f"--{name} is not for options: the launcher needs its own")
        return value

    @field_validator("setup")
    @classmethod
    def _setup(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for line in value:
            if "\n" in line or "\0" in line:
                raise ValueError(f"{line!r} is more than one line; give each line on its own")
        return value
