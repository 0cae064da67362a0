"""Program for torchrun: one pipeline stage fails while the other waits for its hidden states.

failing_stage.py raise|die
failing_stage.py drift        the two copies of the embedding differ
"""

import os
import signal
import sys

from pipeline_cases import SAMPLES, batch, counted, settings

from gpt2train.launch.rank_process import follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join
from gpt2train.training.engine import Engine

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=False)
engine = Engine(settings({"parallel": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}}), ctx)
batches = [batch([number]) for number in range(SAMPLES)]
engine.accumulate(batches, counted(range(SAMPLES)), 0)


def fail(*arguments: object) -> None:
    if sys.argv[1] == "raise":
        raise ValueError("broken on purpose")
    os.kill(os.getpid(), signal.SIGKILL)


if sys.argv[1] == "drift":
    engine.state()
    if ctx.rank == 1:
        engine.shared.copies[0].detach().to_local()[-1, -1] += 1e-7
    engine.state()
if ctx.rank == 1:
    engine.model_parts[0].register_forward_pre_hook(fail)
engine.accumulate(batches, counted(range(SAMPLES)), 1)
