"""Run by torchrun in test_pipeline.py: a stage of a pipeline fails while the other waits for its hidden states.

failing_stage.py raise|die
failing_stage.py drift        the two copies of the embedding are made to differ
"""

import os
import signal
import sys

from pipelines import SAMPLES, batch, counted, settings

from gpt2train.engine import Engine
from gpt2train.parallel.mesh import join
from gpt2train.rank import end_at_once_on_bugs, follow_launcher

follow_launcher()
place = join("cpu")
end_at_once_on_bugs(place.rank, debug=False)
engine = Engine(settings({"parallel": {"pp": 2, "schedule": "interleaved", "stages": 2}}), place)
batches = [batch([number]) for number in range(SAMPLES)]
engine.accumulate(batches, counted(range(SAMPLES)), 0)


def fail(*arguments: object) -> None:
    if sys.argv[1] == "raise":
        raise ValueError("broken on purpose")
    os.kill(os.getpid(), signal.SIGKILL)


if sys.argv[1] == "drift":
    engine.state()
    if place.rank == 1:
        engine.tied.copy.detach().to_local()[-1, -1] += 1e-7
    engine.state()
if place.rank == 1:
    engine.parts[0].register_forward_pre_hook(fail)
engine.accumulate(batches, counted(range(SAMPLES)), 1)
