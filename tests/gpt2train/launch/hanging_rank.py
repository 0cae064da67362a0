"""Program for ranks: a training whose last rank sleeps or stops for ever in its third step.

hanging_rank.py RUN.toml sleep|stop SECONDS, the timeout of collectives
"""

import os
import signal
import sys
import time
from typing import Any

from gpt2train import train
from gpt2train.launch import rank_process
from gpt2train.training.engine import Engine

path, kind, timeout = sys.argv[1:]
measure, calls = Engine.measure, []


def hang(self: Engine, *arguments: Any, **keywords: Any) -> Any:
    calls.append(1)
    if self.ctx.rank == self.ctx.world - 1 and len(calls) == 3:
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    return measure(self, *arguments, **keywords)


Engine.measure = hang  # type: ignore[method-assign]
rank_process.exit_without_teardown(train.main(["--config", path, "--timeout", timeout]))
