"""Program for torchrun: the second step of each given run; writes peak bytes and bytes of collectives of every rank.

measure_step.py OUTPUT.json RUN.toml…
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join
from gpt2train.simulate.rank import empty_batch
from gpt2train.training.engine import Engine
from tests.gpt2train.simulate.against import CollectiveBytes, LiveBytes

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
found = []
for path in sys.argv[2:]:
    config = read_run_config(path)
    engine = Engine(config, ctx)
    batches = [empty_batch(config, engine.layout.micro_batch) for _ in range(engine.layout.accumulation)]
    live = LiveBytes()
    for tensor in engine.state().values():
        live.add(tensor)
    for step in (1, 2):  # the first one makes buffers that the second one meets
        counter, live.peak = CollectiveBytes(), 0
        with live, counter:
            total = engine.accumulate(batches, 1, step)
            engine.update(engine.measure(total, 1, 1.0, False), 1e-3)
        del total
    sizes = {" ".join(key): [counter.calls[key], size] for key, size in sorted(counter.bytes.items())}
    found.append({"peak": live.peak, "collectives": sizes})
    del engine, live
every: list[list[object]] = [[]] * ctx.world
dist.all_gather_object(every, found)
if ctx.is_rank0:
    Path(sys.argv[1]).write_text(json.dumps(every))
dist.destroy_process_group()
exit_without_teardown(0)
