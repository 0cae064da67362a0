"""Program for torchrun: two steps on each given layout; writes the peak bytes of every rank.

measure_peak.py OUTPUT.json RUN.toml…
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gpt2train.config import read_run_config
from gpt2train.launch.rank_process import exit_without_teardown, follow_launcher, install_excepthook
from gpt2train.model.families import MODELS
from gpt2train.parallel.mesh import join
from gpt2train.training.engine import Batch, Engine
from tests.gpt2train.plan.live_bytes import LiveBytes

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=True)
peaks: list[int] = []
for path in sys.argv[2:]:
    config = read_run_config(path)
    engine = Engine(config, ctx)
    for step in (1, 2):  # the first one makes buffers that the second one meets
        batches = []
        for _ in range(engine.layout.accumulation):
            tokens = torch.randint(config.vocab, (engine.layout.micro_batch, config.model.context + 1))
            batch = Batch(tokens[:, :-1], tokens[:, 1:])
            for length in MODELS[config.model.family].lengths(config.shape)[1:]:
                written = tokens[:, :length]
                batch = Batch(batch.tokens, written, {"decoder_tokens": written})
            batches.append(batch)
        live = LiveBytes()
        for tensor in engine.state().values():
            live.add(tensor)
        with live:
            total = engine.accumulate(batches, 1000, step)
            engine.update(engine.measure(total, 1000, 1.0, False), 1e-3)
    peaks.append(live.peak)
    del engine, live, total
all_peaks: list[list[int]] = [[]] * ctx.world
dist.all_gather_object(all_peaks, peaks)
if ctx.is_rank0:
    Path(sys.argv[1]).write_text(json.dumps(all_peaks))
dist.destroy_process_group()
exit_without_teardown(0)
