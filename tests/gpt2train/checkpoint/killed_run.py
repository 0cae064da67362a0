"""Program for torchrun: trains, and kills itself and its launcher at one instant.

    killed_run.py RUN.toml MOMENT STEP

Moments of the checkpoint of a step: `written` (the tensors are on the disk, the manifest is not), `renamed` (the folder
has its name, `latest` has not), `removing` (an older checkpoint has lost its manifest), `never`.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch.distributed as dist

from gpt2train.checkpoint import writer
from gpt2train.config import read_run_config
from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join
from gpt2train.train import train


def die_in(module: ModuleType, name: str, rank: int, when: Callable[..., bool]) -> None:
    """Kill a rank and its launcher by SIGKILL in the call of a function for which `when` holds."""
    original = getattr(module, name)

    def deadly(*arguments: Any) -> Any:
        if ctx.rank == rank and when(*arguments):
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(module, name, deadly)


def in_removing(checkpoint: Any) -> bool:
    if step in str(newest[-1:]):
        (checkpoint / "manifest.json").unlink()
        return True
    return False


follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
config, moment, step = sys.argv[1], sys.argv[2], f"step-{int(sys.argv[3]):08d}"
newest: list[str] = []
if moment == "written":
    die_in(writer, "_own_files", 1, lambda draft: step in draft.name)
elif moment == "renamed":
    die_in(writer, "write_durably", 0, lambda path, text: path.name == "latest" and step in text)
elif moment == "removing":
    die_in(writer, "_point", 0, lambda folder, path, best: bool(newest.append(path.name)))
    die_in(writer, "remove", 0, in_removing)
train(read_run_config(config), ctx)
dist.destroy_process_group()
exit_without_teardown(0)
