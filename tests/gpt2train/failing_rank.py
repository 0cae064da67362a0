"""Program for torchrun: the second rank fails while the first waits for it.

failing_rank.py raise|die|files|threads LOGS
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gpt2train.launch.rank_logs import log_to
from gpt2train.launch.rank_process import follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join

follow_launcher()
log_to(Path(sys.argv[2]), int(os.environ["RANK"]))
install_excepthook(int(os.environ["RANK"]), debug=False)  # before the process group, as the training does
ctx = join("cpu")
dist.all_reduce(torch.ones(1))
if ctx.rank == 1:
    if sys.argv[1] == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())), 99))
        dist.new_subgroups_by_enumeration([[0, 1]])
    if sys.argv[1] == "threads":
        raise RuntimeError("can't start new thread")  # as Python does; root has no limit of its own
    if sys.argv[1] == "raise":
        raise ValueError("broken on purpose")
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
dist.all_reduce(torch.ones(1))
