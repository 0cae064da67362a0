"""Settings of the Slurm launcher."""

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from gpt2train.settings import Settings

NAME = r"^[\w.,@+:-]+$"  # one word of a #SBATCH line

# Options that the launcher sets itself: a second value would take precedence, and the launcher would not know it.
FIXED = ("job-name", "nodes", "ntasks", "ntasks-per-node", "output", "error", "open-mode", "signal", "chdir", "array")
# Options with which sbatch submits nothing or something else.
REJECTED = ("wrap", "test-only", "wait", "help", "usage", "version", "clusters", "parsable")


class SlurmSettings(Settings):
    """Resources and options of the Slurm job, with `launch.launcher = "slurm"`."""

    partition: str | None = Field(None, pattern=NAME)
    """Partition; None takes the cluster's default."""
    account: str | None = Field(None, pattern=NAME)
    """Account that is charged."""
    qos: str | None = Field(None, pattern=NAME)
    """Quality of service."""
    time_limit: str | None = Field(None, pattern=r"^(\d+-)?\d+(:\d+){0,2}$")
    """Time limit of one submission in sbatch's format: minutes, H:M:S, D-H, D-H:M:S. None takes the partition's."""
    gpus: NonNegativeInt = 0
    """GPUs per node; 0 requests none."""
    cpus: PositiveInt | None = None
    """CPU cores per node; None takes launch.processes x launch.threads."""
    memory: str | None = Field(None, pattern=r"^\d+[KMGT]?$")
    """Memory per node, 64G for example; 0 takes all of it, None the cluster's default."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, each as on a #SBATCH line: --exclusive, --constraint=h100."""
    setup: tuple[str, ...] = ()
    """Lines of the script before the training: module load cuda, export NCCL_SOCKET_IFNAME=ib0."""
    python: str | None = Field(None, pattern=r"^\S+$")
    """Python on the nodes of the job: a path, or a name that `setup` puts on the PATH. None: this Python's path."""
    save_before: int = Field(120, ge=1, le=65_535)
    """Seconds before the time limit at which the job gets SIGTERM to save and end. Slurm may be 60 s early."""
    resubmit: NonNegativeInt = 20
    """Maximum resubmissions of a job that ended early (time limit, preemption, node failure). Requeues by Slurm itself
    do not count."""
    poll: float = Field(10.0, gt=0, le=604_800)
    """Seconds between two queries of Slurm's controller; the output is read at least every second."""

    @field_validator("options")
    @classmethod
    def _options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for option in value:
            name = option.removeprefix("--").partition("=")[0].split(" ")[0]
            if not option.startswith("--") or not option.isprintable():
                raise ValueError(f"{option!r} is not a long option of sbatch, such as --constraint=h100")
            if name in FIXED + REJECTED:
                raise ValueError(f"--{name} is not allowed in options: the launcher needs its own")
        return value

    @field_validator("setup")
    @classmethod
    def _setup(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for line in value:
            if "\n" in line or "\0" in line:
                raise ValueError(f"{line!r} is more than one line; give each line as an item of its own")
        return value
