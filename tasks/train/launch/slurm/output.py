"""Tail of a Slurm job's output file on the shared disk."""

from pathlib import Path

from tasks.train.launch.job import LAST_LINES

LINE_BYTES = 200  # length of a typical line
# Messages of slurmstepd for kills by the accounting (OverMemoryKill) and by the kernel.
OOM_MESSAGES = ("exceeded memory limit", "exceeded job memory limit", "oom_kill event", "oom-kill event")


class Output:
    """Incremental reader of a file that another machine writes, and that need not exist yet.

    The file is reopened for each read, because a network file system guarantees new data only after an open. Unless it
    is `fresh`, it is read from its last lines on, since an earlier process has reported the others.
    """

    def __init__(self, path: Path, fresh: bool = True) -> None:
        self.path = path
        self._read = 0
        if not fresh and path.exists():
            self._read = max(0, path.stat().st_size - LAST_LINES * LINE_BYTES)
        self._at_line_start = self._read == 0
        self._engine_error = False  # the engine has printed an error
        self._slurm_errors: list[str] = []

    def lines(self, last: bool = False) -> list[str]:
        """Return the complete lines since the last call; with `last` also an unterminated one."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data if last else data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        if not self._at_line_start and whole:
            self._at_line_start, whole = True, whole.partition(b"\n")[2]  # drop the rest of a line
        return [self._classify(line) for line in whole.decode(errors="replace").splitlines()]

    @property
    def cause(self) -> str | None:
        """First error of Slurm itself, or None if the engine printed an error."""
        return self._slurm_errors[0] if self._slurm_errors and not self._engine_error else None

    @property
    def out_of_memory(self) -> bool:
        """True if Slurm reported in the output that the job exceeded its memory; the job's state may not show it."""
        return any(text in line.lower() for line in self._slurm_errors for text in OOM_MESSAGES)

    def _classify(self, line: str) -> str:
        """Record errors, and remove Slurm's `error: ` mark, which it puts on every message, also on normal ends."""
        source, found, rest = line.partition(": error: ")
        if not found or source.split("-")[0] not in ("srun", "slurmstepd"):
            self._engine_error = self._engine_error or line.startswith("error: ")
            return line
        if not rest.startswith("*** ") and "Exited with exit code" not in rest:
            self._slurm_errors.append(f"{source}: {rest}")
        return f"{source}: {rest}"
