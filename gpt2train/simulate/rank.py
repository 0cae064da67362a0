"""Simulated step of one rank: the engine of a run, built and run for one training step that computes nothing."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.compat.torch_simulation import (
    join_fake_group,
    leave_fake_group,
    on_resize,
    on_stage_passes,
    shallow_1f1b,
)
from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.model import loss
from gpt2train.model.families import MODELS, shard_dim
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.parallel import pipeline, vocab_parallel
from gpt2train.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR, DistContext
from gpt2train.simulate.gpu_kernels import gpu_kernels
from gpt2train.simulate.recorder import Counts, Forwards, PassCounts, Recorder
from gpt2train.simulate.schedule import SHORT, Profile
from gpt2train.simulate.shape_mode import ShapeMode
from gpt2train.training import engine


@dataclass(frozen=True)
class ShortStep:
    """Step of a pipeline with few micro-batches."""

    micro_batches: int  # number of micro-batches
    depth: int = 1  # of 1F1B, micro-batches that go forward before the first one goes backward


@dataclass(frozen=True)
class RankStep:
    """Costs of one training step on one rank."""

    memory: dict[str, int]
    """Bytes of each category when the most memory is in use; `gpt2train.simulate.recorder.CATEGORIES`."""
    counts: Counts  # collectives and FLOPs
    parameters: int  # parameters of this rank, before they are sharded over data-parallel ranks
    profile: Profile | None = None  # passes of the micro-batches of a short step of a pipeline; None of a whole step
    pass_counts: PassCounts | None = None  # collectives and FLOPs of these passes

    @property
    def peak(self) -> int:
        """Bytes in use at the same time."""
        return sum(self.memory.values())


def simulate_rank(config: RunConfig, world: int, rank: int, short: ShortStep | None = None) -> RankStep:
    """Simulate a step of a run on one rank.

    Without a pipeline, three micro-batches are run and the others are counted like the second one.

    Args:
        config: settings of the run; on a device other than "cpu" the memory is that of a GPU without compilation.
        world: number of ranks of the run.
        rank: rank to simulate.
        short: with a pipeline, a step to run in place of the whole one, for `RankStep.profile`.

    Raises:
        UserError: the layout does not fit the ranks, the model or the batch, as in a training.
    """
    recorder = Recorder()
    mode = ShapeMode(recorder.created, recorder.executed, recorder.communicated)
    context = DistContext(rank, world, torch.device("cpu"))
    stream = "bf16" if config.has_half_stream(on_gpu=config.device != "cpu") else "fp32"
    plain = config.performance.model_copy(update={"compile": "off", "stream": stream})
    passes = on_stage_passes(lambda forward, stage: recorder.stage_pass(forward, stage // config.parallel.pp))
    empty = mock.patch.object(engine, "init_weights", lambda part, device, _: part.to_empty(device=device))
    warm = mock.patch.dict(pipeline.SCHEDULES, {"1f1b": shallow_1f1b(short.depth)} if short else {})
    with _fake_group(rank, world), _device_of(config), on_resize(recorder.resized), passes, empty, warm, mode:
        built = engine.Engine(config.model_copy(update={"performance": plain}), context)
        built.phases = Forwards(recorder)
        recorder.groups = _names(built)
        for parameter in built.parameters():
            recorder.created(parameter, "parameters")
        recorder.built()
        layout = built.layout
        number = short.micro_batches if short else layout.accumulation
        run = [empty_batch(config, layout.micro_batch) for _ in range(min(number, SHORT) if layout.pp == 1 else number)]
        others = _memory_of(run[0], number - len(run))
        recorder.restart()
        total = built.accumulate(run, 1, 1)
        recorder.begin_update()
        built.update(built.measure(total, 1, 1.0, stop=False), 1e-3)
        counts, memory = recorder.counts(), recorder.peak()
        if short:
            profile = recorder.profile(len(run))
            return RankStep(memory, counts, _parameters(built), profile, recorder.pass_counts(len(run)))
        del others  # in memory until here
        if len(run) < number:
            counts = counts.plus(recorder.between(1, 2), number - len(run))
        return RankStep(memory, counts, _parameters(built))


def _memory_of(batch: Batch, number: int) -> Tensor:
    """Return a tensor of the size of a number of micro-batches, in place of them: there may be 10^5 in a step."""
    tensors = (batch.tokens, batch.targets, *batch.extra.values())
    return torch.zeros(number * sum(tensor.nbytes for tensor in tensors), dtype=torch.uint8)


def _parameters(built: engine.Engine) -> int:
    """Parameters of a rank, of which tensor parallelism has split some."""
    named = [pair for part in built.model_parts for pair in part.named_parameters()]
    tp, shape = built.layout.tp, built.config.shape
    return sum(p.numel() // (1 if shard_dim(name, shape, tp) is None else tp) for name, p in named)


def _names(built: engine.Engine) -> dict[str, tuple[str, int]]:
    """Names and sizes of the process groups, by torch's own names."""
    groups = {"world": dist.group.WORLD}
    for dimension in (PIPELINE, REPLICATE, SHARD, TENSOR):
        if built.mesh[dimension].size() > 1:
            groups[dimension] = built.mesh[dimension].get_group()
    return {group.group_name: (name, group.size()) for name, group in groups.items() if group is not None}


@contextlib.contextmanager
def _fake_group(rank: int, world: int) -> Iterator[None]:
    join_fake_group(rank, world)
    try:
        yield
    finally:
        leave_fake_group()


@contextlib.contextmanager
def _device_of(config: RunConfig) -> Iterator[None]:
    """Let CPU tensors be treated as the run's device treats its tensors."""
    if config.device == "cpu":
        yield
        return
    chunk = {"cpu": loss.CHUNK["cuda"]}
    with mock.patch.object(loss, "CHUNK", chunk), mock.patch.object(vocab_parallel, "CHUNK", chunk), gpu_kernels():
        yield


def empty_batch(config: RunConfig, samples: int) -> Batch:
    """Return a micro-batch of zeros, with the tensors that the objective's data have."""
    length, lengths = config.model.context, MODELS[config.model.family].lengths(config.shape)
    tokens, extra = torch.zeros(samples, length, dtype=torch.int64), {}
    targets = tokens.clone()
    if OBJECTIVES[config.objective.name].sequences > 1:
        targets = torch.zeros(samples, lengths[-1], dtype=torch.int64)
        extra["decoder_tokens"] = targets.clone()
        if config.objective.options.get("task") == "prefix":
            extra["lengths"] = torch.full((samples,), length)
    elif config.model.labels:
        targets = torch.zeros(samples, dtype=torch.int64)
        extra["lengths"] = torch.ones(samples, dtype=torch.int64)
    if config.documents.reset_positions:
        extra["positions"] = tokens.clone()
    if config.documents.mask_documents:
        extra["documents"] = tokens.clone()
    return Batch(tokens, targets, extra)
