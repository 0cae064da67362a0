"""Run by torchrun in test_train.py: the second rank fails while the first waits for it."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from gpt2train.parallel.mesh import join
from gpt2train.rank import end_at_once_on_bugs, follow_launcher

follow_launcher()
end_at_once_on_bugs(int(os.environ["RANK"]), debug=False)  # before the process group, as the training does
place = join("cpu")
dist.all_reduce(torch.ones(1))
if place.rank == 1:
    if sys.argv[1] == "raise":
        raise ValueError("broken on purpose")
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
dist.all_reduce(torch.ones(1))
