"""A model for a command: whole in its process, or in parts over several. torch is loaded only when it is opened."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from gpt2train.checkpoint.format import Device
from gpt2train.settings import Settings

if TYPE_CHECKING:
    from gpt2train.model.gpt2 import GPT2
    from gpt2train.parallel.decode import Team


class Parts(Settings):
    """Over how many processes a model lies that answers; `tp` x `pp` of them are started."""

    tp: int = Field(1, ge=1)
    """Processes that share each layer; must divide the heads and 128, to which the vocabulary is padded."""
    pp: int = Field(1, ge=1)
    """Stages, each with a run of layers."""
    patience: float = Field(60.0, gt=0)
    """Seconds after which a process that says nothing counts as lost. Longer than a call takes, which reads one prompt
    or a few; nobody waits that long for one that died."""

    @property
    def processes(self) -> int:
        """All of them."""
        return self.tp * self.pp


@contextlib.contextmanager
def opened(model: Path, parts: Parts, device: Device = "auto") -> "Iterator[GPT2 | Team]":
    """Read a model folder, for as long as the block lasts.

    Where the model is to lie on several processes and this one is alone, a job takes its place: see `become_job`.

    Raises:
        UserError: no such model, no such device, or parts that do not fit it.
        gpt2train.parallel.decode.Lost: in the block, a process of the model is gone.
    """
    if parts.processes == 1:
        from gpt2train.checkpoint.huggingface import read_model

        yield read_model(model, device)
        return
    become_job(parts.processes)
    from gpt2train.parallel.job import team_of

    with team_of(model, parts, device) as team:
        yield team


def become_job(processes: int) -> None:
    """Outside of a job, go on as one: the same command line, on so many processes of this machine.

    Does not return where a job is to be started: its launcher takes this process's place, and with it its signals and
    its exit code.
    """
    if "RANK" not in os.environ:
        arguments = ["--standalone", "--nproc-per-node", str(processes), "-m", "gpt2train.parallel", *sys.argv[1:]]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "gpt2train.launch", "--", *arguments])
