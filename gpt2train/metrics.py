"""What a run tells while it trains: metrics.jsonl, throughput and hardware use."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2train.errors import RunError
from gpt2train.files import FULL, write_whole
from gpt2train.model.shape import Shape

if TYPE_CHECKING:
    import torch

    from gpt2train.trackers import Tracker

FILE = "metrics.jsonl"
NOT_CURVES = ("step", "tokens")  # columns that trackers need not draw

# Dense bfloat16 peak in FLOP/s by a part of the device's name (the makers' data sheets; SXM where there are several).
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10G": 70e12}


def parameter_count(shape: Shape) -> int:
    """Parameters of a GPT-2 of this shape, the padded vocabulary included; the tied embedding counts once."""
    width = shape.hidden
    return (shape.padded_vocab + shape.context) * width + shape.layers * (12 * width**2 + 13 * width) + 2 * width


def flops_per_token(shape: Shape) -> int:
    """FLOPs of forward and backward for one token: 6N + 12LHQT (PaLM, Chowdhery et al. 2022, appendix B).

    N is the parameters without the position embedding, L layers, H heads, Q head size, T context.
    """
    counted = parameter_count(shape) - shape.context * shape.hidden
    return 6 * counted + 12 * shape.layers * shape.heads * shape.head_dim * shape.context


def peak_flops(device: "torch.device") -> float | None:
    """The device's bfloat16 peak, or None where it is not known (every CPU)."""
    if device.type != "cuda":
        return None
    import torch  # here, so that reading a run's metrics does not wait for it

    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def mfu(tokens_per_second: float, shape: Shape, device: "torch.device", world: int) -> float | None:
    """Model FLOPs utilisation of all devices, 0 to 1; None where the peak is not known."""
    peak = peak_flops(device)
    return None if peak is None else tokens_per_second * flops_per_token(shape) / (peak * world)


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl. A last line that a killed run left unfinished is not a row."""
    path = Path(run) / FILE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class MetricsWriter:
    """Appends one row a step to metrics.jsonl, and passes it on to trackers.

    Args:
        run: the run folder.
        step: where the run goes on; rows of later steps, left by a run that was killed after its last checkpoint,
            are cut off.
        trackers: where rows go as well; closed with this.

    Attributes:
        rows: the rows so far, those of before a restart included.

    Raises:
        RunError: the disk is full.
        UserError: the run folder cannot be written.
    """

    def __init__(self, run: str | Path, step: int, trackers: "Sequence[Tracker]" = ()) -> None:
        path = Path(run) / FILE
        self.rows = [row for row in read_metrics(run) if row["step"] <= step]
        write_whole(path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())
        self._file = path.open("ab", buffering=0)  # what a full disk did not take is not tried again on closing
        self._trackers = trackers

    def write(self, row: dict[str, Any]) -> None:
        """Write one row; numbers that are not finite become null, which JSON can hold.

        Raises:
            RunError: the disk is full or cannot be written.
        """
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self.rows.append(plain)
        line = json.dumps(plain).encode() + b"\n"
        name = self._file.name
        try:
            whole = self._file.write(line) == len(line)
        except OSError as error:
            if error.errno not in FULL:
                raise RunError(f"cannot write {name}: {error.strerror}; checkpoints are whole") from error
            whole = False
        if not whole:
            raise RunError(f"no space left while writing {name}; free some and run again: checkpoints are whole")
        values = {name: value for name, value in plain.items() if value is not None and name not in NOT_CURVES}
        for tracker in self._trackers:
            tracker.write(row["step"], values)

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        for tracker in self._trackers:
            tracker.close()
