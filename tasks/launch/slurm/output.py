"""The lines of a job's output, as its file grows on the shared disk."""

from pathlib import Path

from tasks.launch.job import LAST_LINES

LINE_BYTES = 200  # of a usual line
# Words of slurmstepd: of the accounting's own watch (OverMemoryKill), and of the kernel's.
MEMORY = ("exceeded memory limit", "exceeded job memory limit", "oom_kill event", "oom-kill event")


class Output:
    """Reads a file that others write to.

    It is opened anew for each look: a network file system shows what another machine wrote at the latest then.

    Args:
        path: the file, which need not be there yet.
        fresh: begin with its last lines alone when it has some already, as an earlier reader told of the others.
    """

    def __init__(self, path: Path, fresh: bool = True) -> None:
        self.path = path
        self._read = 0
        if not fresh and path.exists():
            self._read = max(0, path.stat().st_size - LAST_LINES * LINE_BYTES)
        self._begun = self._read == 0
        self._engine_told = False
        self._slurms: list[str] = []  # Slurm's own complaints

    def lines(self, last: bool = False) -> list[str]:
        """The whole lines that came since; at the end also one that was never finished."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data if last else data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        if not self._begun and whole:
            self._begun, whole = True, whole.partition(b"\n")[2]  # the middle of a line
        return [self._plain(line) for line in whole.decode(errors="replace").splitlines()]

    @property
    def cause(self) -> str | None:
        """What Slurm complained of first, where the engine had nothing to say."""
        return self._slurms[0] if self._slurms and not self._engine_told else None

    @property
    def short_of_memory(self) -> bool:
        """Whether Slurm said that the job took more memory than it was given: its state need not."""
        return any(word in line.lower() for line in self._slurms for word in MEMORY)

    def _plain(self, line: str) -> str:
        """A line as it is told. Slurm calls every word of its own an error, its farewells too."""
        said, found, rest = line.partition(": error: ")
        if not found or said.split("-")[0] not in ("srun", "slurmstepd"):
            self._engine_told = self._engine_told or line.startswith("error: ")
            return line
        if not rest.startswith("*** ") and "Exited with exit code" not in rest:
            self._slurms.append(f"{said}: {rest}")
        return f"{said}: {rest}"
