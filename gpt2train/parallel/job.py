"""Commands on a model that lies on several processes: how they come to be, and who does what.

    gpt2train generate --model DIR --prompt "…" --tp 2 --pp 2
    torchrun --nproc-per-node 4 -m gpt2train.parallel generate --model DIR --prompt "…" --tp 2 --pp 2

The first line makes itself the second one, under `gpt2train.launch`. There the first process runs the command; the
others hear from it which model it is, and follow it until it ends.
"""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gpt2train.checkpoint.format import Device
from gpt2train.checkpoint.huggingface import open_model, read_shape
from gpt2train.cluster import find_seat
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape
from gpt2train.parallel import meeting
from gpt2train.parallel.decode import Line, Team, follow
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import TIMEOUT, Place, join, together
from gpt2train.parallel.opened import Parts
from gpt2train.parallel.part import Part

_team: Team | None = None


def led() -> Team | None:
    """The team that this process was the first of."""
    return _team


@contextlib.contextmanager
def team_of(model: Path, parts: Parts, device: Device = "auto") -> Iterator[Team]:
    """The model on all processes of the job, on its first one.

    Args:
        model: a Hugging Face model folder that every machine sees under this path.
        parts: as many as the job has processes.
        device: auto takes GPUs where each process can have its own.

    Raises:
        UserError: the layout does not fit the model or the processes; no such model; no GPUs where they were asked for.
        Lost: in the body, a process is gone.
    """
    seat = find_seat(os.environ)
    shape = read_shape(model)
    layout = Layout.of_model(shape, parts.tp, parts.pp, seat.world)
    place = join("auto", seat)
    on_gpu = place.device.type == "cuda" and device != "cpu"
    if device == "cuda" and not on_gpu:
        raise UserError(
            f"device cuda was asked for, but {seat.locals} processes here have {torch.cuda.device_count()} GPUs; "
            "use --device cpu"
        )
    start = Line(TIMEOUT)
    start.say(0, [list(os.fsencode(model.resolve())), [parts.tp, parts.pp, on_gpu, round(1000 * parts.patience)]])
    part, line, limit = _take_part(place, model, shape, layout, on_gpu, parts.patience)
    global _team
    _team = Team(part, line, limit)
    try:
        yield _team
    finally:
        _team.close()
        if not _team.lost:
            _leave_group()


def follow_first() -> None:
    """What every process but the first does: take its part of the model and follow, until the first one ends.

    Raises:
        UserError, RunError: of the process whose part could not be read.
    """
    seat = find_seat(os.environ)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the first process hears it too, finishes what it does, and says so
    place = join("auto", seat)
    _, (path, (tp, pp, on_gpu, milliseconds)) = Line(TIMEOUT).hear()
    model = Path(os.fsdecode(bytes(path)))
    layout = Layout(pp, 1, 1, tp, 1, 1, 1)
    part, line, _ = _take_part(place, model, read_shape(model), layout, bool(on_gpu), milliseconds / 1000)
    follow(part, line)
    _leave_group()


def _take_part(
    place: Place, model: Path, shape: Shape, layout: Layout, on_gpu: bool, patience: float
) -> tuple[Part, Line, timedelta]:
    limit = timedelta(seconds=patience)
    device = place.device if on_gpu else torch.device("cpu")
    part = Part(shape, layout, dataclasses.replace(place, device=device, timeout=limit))
    line = Line(limit)
    together(lambda: part.read(open_model(model)))
    return part, line, limit


def _leave_group() -> None:
    dist.destroy_process_group()
    meeting.part()
