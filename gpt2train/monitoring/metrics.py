"""Metrics of a training run: metrics.jsonl, FLOPs and utilisation."""

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2train.errors import RunError, UserError
from gpt2train.model.families import MODELS, is_lookup, sizes
from gpt2train.model.shape import Shape
from gpt2train.monitoring.gpu_peaks import peak_flops
from gpt2train.store.files import no_space, read_json_lines, set_aside, write_atomic

if TYPE_CHECKING:
    import torch

    from gpt2train.monitoring.trackers import TrackerThread

log = logging.getLogger("gpt2train")

FILE = "metrics.jsonl"
TASK_PREFIX = "valid_task_"  # of the columns of `validation.tasks`
JOULES_PER_KWH = 3.6e6
NOT_CURVES = ("step", "tokens")  # columns that are not sent to trackers


@cache
def flops_per_token(shape: Shape, length: int | None = None) -> int:
    """FLOPs of forward and backward per token: 6N + 12LHQT (PaLM, Chowdhery et al. 2022, appendix B).

    N is the number of parameters without embeddings that are only looked up, L layers, H heads, Q head size, T sample
    length. Of a model with an encoder and a decoder they are those of a sample, divided by the tokens of the encoder.

    Args:
        shape: shape of the model.
        length: tokens of a sample; by default the context length of the model.
    """
    if (per_sample := MODELS[shape.family].flops_per_sample) is not None:
        return per_sample(shape) // shape.context
    counted = sum(math.prod(size) for name, size in sizes(shape).items() if not is_lookup(name, shape))
    return 6 * counted + 12 * shape.layers * shape.heads * shape.head_dim * (length or shape.context)


def mfu(tokens_per_second: float, shape: Shape, length: int, device: "torch.device", world: int) -> float | None:
    """Model FLOPs utilisation of all devices, 0 to 1, on samples of a length; None on a CPU or an unknown GPU."""
    if device.type != "cuda":
        return None
    import torch  # imported here, so that reading metrics does not need it

    peak = peak_flops(torch.cuda.get_device_name(device))
    return None if peak is None else tokens_per_second * flops_per_token(shape, length) / (peak * world)


def kwh(rows: Iterable[Mapping[str, Any]], column: str, repeated_joules: float = 0.0) -> float | None:
    """Energy in a column that a run took, kWh, with that of repeated steps; None if it was not measured."""
    measured = [row[column] for row in rows if row.get(column) is not None]
    return (sum(measured) + repeated_joules) / JOULES_PER_KWH if measured else None


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """Read the rows of a run's metrics.jsonl.

    An incomplete last line of a killed run is ignored. Lines that cannot be parsed or have no step are left out;
    `unreadable_lines` names them.
    """
    return _read(Path(run) / FILE)[0]


def unreadable_lines(run: str | Path) -> str | None:
    """Message that names the lines that `read_metrics` leaves out; None if there are none."""
    lines = _read(Path(run) / FILE)[1]
    others = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"{Path(run) / FILE}: line {lines[0]}{others} cannot be read; left out" if lines else None


def _read(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    return read_json_lines(path.read_bytes() if path.exists() else b"", lambda row: type(row.get("step")) is int)


def keep_before(path: Path, interval: int) -> None:
    """Set aside what a run that begins at step 0 would remove from a file of rows of steps, and warn.

    That is the file of another program, or of a run that had passed its first checkpoint: its checkpoints were removed,
    or are on a disk that is not there.
    """
    rows, unreadable = _read(path)
    last = max((row["step"] for row in rows), default=0)
    if last > interval or (not last and unreadable):
        aside = set_aside(path)
        found = f"has {last:,} steps, but no checkpoint of them" if last else "is of another program"
        log.warning("warning: %s %s: training begins at step 0; it is kept in %s", path, found, aside)


class MetricsWriter:
    """Writer that appends one row per step to metrics.jsonl and forwards it to trackers.

    Rows of steps after `step`, left by a run that was killed after its last checkpoint, are removed; `rows` has the
    others. The trackers are closed together with the writer; their failures end nothing.

    Raises:
        RunError: the disk is full.
        UserError: the run folder cannot be written.
    """

    def __init__(self, run: str | Path, step: int, trackers: "Sequence[TrackerThread]" = ()) -> None:
        path = Path(run) / FILE
        if problem := unreadable_lines(run):
            log.warning("%s", problem)
        self.rows = [row for row in read_metrics(run) if row["step"] <= step]
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())
        self._file = path.open("ab", buffering=0)  # otherwise a write that failed on a full disk is retried on close
        self._trackers = trackers

    def write(self, row: dict[str, Any]) -> None:
        """Write one row; numbers that are not finite become null, since JSON has no NaN.

        Raises:
            RunError: the disk is full or cannot be written.
            UserError: the file was removed.
        """
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self.rows.append(plain)
        line = json.dumps(plain).encode() + b"\n"
        name = self._file.name
        try:
            while line:  # a disk takes a part of the line before it is full
                line = line[self._file.write(line) :]
        except OSError as error:
            if (full := no_space(error)) is None:
                raise RunError(f"cannot write {name}: {error.strerror}; checkpoints are intact") from error
            remedy = f"{full.remedy} and run again: checkpoints are intact"
            raise RunError(f"{full.reason} while writing {name}; {remedy}") from error
        if os.fstat(self._file.fileno()).st_nlink == 0:  # writing goes on without an error, into a file without a name
            raise UserError(f"{name} was removed during the run; run again, which resumes from the last checkpoint")
        values = {name: value for name, value in plain.items() if value is not None and name not in NOT_CURVES}
        for tracker in self._trackers:
            tracker.write(row["step"], values)

    def close(self, wait: bool = True) -> None:
        """Flush and close, the trackers within a bounded time or, without `wait`, at once."""
        self._file.close()
        for tracker in self._trackers:
            tracker.close(wait)
