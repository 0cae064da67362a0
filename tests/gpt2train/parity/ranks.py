"""Run by torchrun: trains the runs that it is given, one after the other, in one process group.

    ranks.py RUN.toml…

A run that is refused leaves its message in `RUN.error`, and the next one begins.
"""

import sys
from pathlib import Path

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.errors import RunError, UserError
from gpt2train.parallel.mesh import join
from gpt2train.rank import end_at_once_on_bugs, follow_launcher, leave
from gpt2train.train import train

follow_launcher()
place = join("cpu")
end_at_once_on_bugs(place.rank, debug=True)
for path in sys.argv[1:]:
    try:
        train(read_run_config(path), place)
    except (UserError, RunError) as error:
        if place.is_first:
            Path(path).with_suffix(".error").write_text(str(error))
dist.destroy_process_group()
leave(0)
