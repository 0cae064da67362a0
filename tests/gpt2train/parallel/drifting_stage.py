"""Program for torchrun: the two copies of the embedding, on the first and the last stage of a pipeline, differ."""

from pipeline_cases import SAMPLES, batch, counted, settings

from gpt2train.launch.rank_process import follow_launcher, install_excepthook
from gpt2train.parallel.mesh import join
from gpt2train.training.engine import Engine

follow_launcher()
ctx = join("cpu")
install_excepthook(ctx.rank, debug=False)
engine = Engine(settings({"parallel": {"pp": 2, "schedule": "interleaved", "virtual_pipeline_stages": 2}}), ctx)
engine.accumulate([batch([number]) for number in range(SAMPLES)], counted(range(SAMPLES)), 0)
engine.state()
if ctx.rank == 1:
    engine.shared.copies[0].detach().to_local()[-1, -1] += 1e-7
engine.state()
