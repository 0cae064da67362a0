"""Training engine: a model and its optimizer on a parallel layout.

The order in which parallelism is applied matters: build on the meta device, split into pipeline stages, tensor
parallelism, activation checkpointing, compilation, FSDP2, allocation and initial values. The optimizer comes last,
since it must hold the final parameters.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.config import ParallelSettings, RunConfig
from gpt2train.data.batch import Batch
from gpt2train.model.causal_lm import build_model
from gpt2train.model.device import sum_dtype
from gpt2train.model.linear import use_fp8
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.parallel.activation_checkpointing import apply_activation_checkpointing
from gpt2train.parallel.fsdp import accumulate, init_weights, reshard, shard
from gpt2train.parallel.grad_norm import align_grad_placements, local, norm_weights, norms, squared_norm
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import REPLICATE, TENSOR, DistContext, make_mesh, shards_group
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.parallel.rng import dropout_seed
from gpt2train.parallel.shared_parameters import SharedParameters
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel
from gpt2train.plugins import load
from gpt2train.training.adamw import AdamW
from gpt2train.training.half_weights import HalfWeights
from gpt2train.training.muon import Muon
from gpt2train.training.offloaded_adamw import OffloadedAdamW, fill_device, weights_fit
from gpt2train.training.performance import casts_once, compile_module, without_compilation
from gpt2train.training.phases import in_phase, phase_timer
from gpt2train.training.train_state import StepStats

if TYPE_CHECKING:
    from gpt2train.parallel.pipeline import Pipeline

log = logging.getLogger("gpt2train")

COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class PendingStats:
    """Statistics and gradients of one step, before the update; the device may still be computing them.

    `summary`, `divisor` and `bad` are the same on every process; the rest belongs to this process.
    """

    summary: Tensor
    """Float64 [2 + terms] in CPU memory: gradient norm over all parameters before clipping, number of processes with a
    stop request, and the mean of each term of the loss over the tokens of the step. On a GPU valid only after
    `ready`."""
    ready: torch.cuda.Event | None  # CUDA event after which `summary` is valid; None if it is valid at once
    divisor: Tensor  # float32 scalar on the device, the divisor of the gradients: loss scale times clipping factor
    bad: Tensor  # float32 scalar on the device, 1 if the norm is not finite
    gradients: list[Tensor]  # local gradient shards, in the order of the optimizer's parameters
    each: Tensor  # float64 [parameters], norm of each local shard
    finite_loss: Tensor  # bool scalar on the device, True if this process's own loss is finite

    def read(self) -> StepStats:
        """Wait for the statistics, but not for work queued on the device after `Engine.measure`."""
        if self.ready is not None:
            self.ready.synchronize()
        norm, stopping, loss, *z_loss = self.summary.tolist()
        return StepStats(loss, norm, stopping > 0, *z_loss)


class Engine:
    """Model parts, optimizer and communication of this process.

    Attributes:
        model_parts: pipeline stages of the model on this process: one, or several with the interleaved schedule.
        phases: timer of the phases of a step.
        loss_size: size of the loss of a training: a scalar, or with `objective.z_loss` a vector of both terms.
        sums: length of the result of `evaluate`: the loss, and the scores of the objective.
    """

    def __init__(self, config: RunConfig, ctx: DistContext) -> None:
        self.config, self.ctx, self.phases = config, ctx, phase_timer(ctx.device)
        self.layout = Layout.of(config, ctx.world)
        self.mesh = make_mesh(ctx, self.layout)
        layout, at = self.layout, self.layout.coordinates(ctx.rank)
        stages = stage_layers(config.shape, layout.pp * config.parallel.virtual_pipeline_stages)
        with torch.device("meta"):
            self.model_parts = [
                build_model(config.shape, config.model.dropout).keep_layers(mine) for mine in stages[at.pp :: layout.pp]
            ]
        objective = OBJECTIVES[config.objective.name]
        self.loss_size: tuple[int, ...] = (2,) if config.objective.z_loss else ()
        self.sums = 1 + objective.sums + objective.sums_per_label * config.model.labels
        for part in self.model_parts:
            part.z_loss = config.objective.z_loss
            part.stream = torch.bfloat16 if config.has_half_stream(on_gpu=ctx.device.type == "cuda") else None
            part.own_loss = load(objective.loss) if objective.loss else None
            part.scores = load(objective.scores) if objective.scores else None
        parallel = self.parallel = self._placed(config.parallel)
        for part in self.model_parts:
            apply_tensor_parallel(part, self.mesh[TENSOR], config.parallel.sequence_parallel)
            use_fp8(part.blocks, config.performance.fp8)
            apply_activation_checkpointing(part, config.parallel.activation_checkpointing)
            alone = ctx.world == 1 and not parallel.offloads_weights
            compile_module(part, config.performance, ctx.device, whole=alone, loss=layout.tp == 1)
            shard(part, self.mesh, parallel, COMPUTE_DTYPES[config.precision])
            init_weights(part, torch.device("cpu") if parallel.offloads_weights else ctx.device, config.seed)
        self.pipeline = self.shared = None
        if layout.pp > 1:
            self.pipeline = self._make_pipeline()
            self.shared = SharedParameters(self.model_parts, stages, self.mesh, ctx.timeout)
        named = self.shared.named if self.shared is not None else list(self.model_parts[0].named_parameters())
        offloaded = parallel.cpu_offload and not parallel.offloads_weights
        self.optimizer: AdamW | OffloadedAdamW | Muon
        if config.optimizer.name == "muon":  # whose state is never offloaded alone
            replicas = self.mesh[REPLICATE].get_group() if layout.replicate > 1 else None
            self.optimizer = Muon(named, config.optimizer, replicas, shards_group(ctx, layout))
        else:
            self.optimizer = (OffloadedAdamW if offloaded else AdamW)(named, config.optimizer)
        self._half: HalfWeights | None = None
        if ctx.world == 1 and not parallel.offloads_weights and casts_once(config, ctx.device):
            self._half = HalfWeights(self.model_parts[0].blocks, COMPUTE_DTYPES[config.precision])
        copies = self.shared.copies if self.shared is not None else []
        self._norm_weights = norm_weights([parameter for _, parameter in named], ctx.world // layout.pp, copies)

    def _make_pipeline(self) -> "Pipeline":
        """Create the schedule of this rank's stages."""
        from gpt2train.parallel.pipeline import Pipeline  # imports torch's pipelining (0.5 s), unneeded for pp = 1

        config, part = self.config, self.model_parts[0]
        slices = self.layout.tp if config.parallel.sequence_parallel else 1

        def sent(layer: int) -> tuple[int, int, int]:
            length = part.sent_length(layer, config.model.context)
            return self.layout.micro_batch, length // slices, config.model.hidden

        dtype, schedule = COMPUTE_DTYPES[config.precision], config.parallel.schedule
        return Pipeline(
            self.model_parts, self.mesh, self.ctx.device, schedule, sent, dtype, self.loss_size, self._forward
        )

    def _placed(self, parallel: ParallelSettings) -> ParallelSettings:
        """Decide whether an automatic placement keeps the weights on the device. Collective."""
        if parallel.offload_placement != "auto":
            return parallel
        count = sum(parameter.numel() for part in self.model_parts for parameter in part.parameters())
        sharded = self.layout.shard if parallel.zero == 3 else 1
        if weights_fit(count // (self.layout.tp * sharded), self.ctx.device):
            return parallel
        log.info("the weights do not fit the device: offload_placement 'all'")
        return parallel.model_copy(update={"offload_placement": "all"})

    def fill_device(self) -> None:
        """With an automatic placement, move optimizer state to what is free of the device; after the first step."""
        if self.parallel.offload_placement == "auto" and isinstance(self.optimizer, OffloadedAdamW):
            fill_device(self.optimizer)

    @property
    def data_rank(self) -> int:
        """Data-parallel rank of this process, which determines its samples."""
        return self.layout.data_rank(self.ctx.rank)

    @in_phase("backward")
    def accumulate(self, batches: Sequence[Batch], tokens: int, step: int, scale: float = 1.0) -> Tensor:
        """Run forward and backward of this process's micro-batches and accumulate their gradients.

        Args:
            batches: micro-batches of this process.
            tokens: number of counted targets in the whole step, over all processes; the loss is divided by it.
            step: step number; seeds dropout, together with the coordinates of this process.
            scale: loss scale, for fp16; the gradients are multiplied by it as well.

        Returns:
            float32 of `loss_size`, the sum of -log p over the targets of this process, and with `objective.z_loss` the
            second term.
        """
        at = self.layout.coordinates(self.ctx.rank)
        # Ranks of a tensor-parallel group share it, but under sequence parallelism, where each holds other tokens.
        slice_ = at.tp if self.config.parallel.sequence_parallel else 0
        torch.manual_seed(dropout_seed(self.config.seed, step, at.pp, self.data_rank, slice_))
        if self.pipeline is not None and self.shared is not None:
            self.shared.copy_first()
            return self.pipeline.accumulate(batches, scale / tokens)
        total = torch.zeros(self.loss_size, device=self.ctx.device)
        parallel = self.parallel
        # Otherwise CPU offload would leave unsharded gradients and all blocks on the device until the last micro-batch.
        zero = max(parallel.zero, 2) if parallel.offloads_weights else parallel.zero
        with contextlib.nullcontext() if self._half is None else self._half.in_place():
            for index, batch in enumerate(batches):
                accumulate(self.model_parts, zero, last=index == len(batches) - 1)
                with self._forward():
                    loss = self.model_parts[0](batch.tokens, batch.targets, **batch.extra)
                (loss * (scale / tokens)).sum().backward()
                if self._half is not None:
                    self._half.add_gradients()
                total += loss.detach()
        return total

    @in_phase("optimizer")
    @torch.no_grad()
    def measure(self, total: Tensor, tokens: int, scale: float, stop: bool) -> PendingStats:
        """Reduce loss, gradient norm and stop requests over all processes, by one collective and without a host sync.

        A single infinite element on one process makes the norm not finite on all processes. `total` is the result of
        `accumulate`; tokens and scale are those that it got.
        """
        parameters = [parameter for _, parameter in self.optimizer.named]
        with self.phases("communication"):
            align_grad_placements(parameters)
        if self.shared is not None:
            self.shared.add_gradients()
        gradients = [local(cast(Tensor, parameter.grad)) for parameter in parameters]
        each = norms(gradients)
        square = squared_norm(each, self._norm_weights).to(total.device)
        # torch.full passes the number as a kernel argument; copying it to the device would synchronise.
        dtype = sum_dtype(total.device)
        stop_count = torch.full((), float(stop), dtype=dtype, device=total.device)
        summary = torch.stack([square.to(dtype), stop_count, *(total.to(dtype) / self.layout.tp).reshape(-1)])
        if self.ctx.world > 1:
            dist.all_reduce(summary)
        summary[2:] /= tokens
        summary[0].sqrt_().div_(scale)
        self.phases.cut()
        out, ready = _copy_to_host(summary)
        return PendingStats(
            summary=out,
            ready=ready,
            divisor=(((summary[0] + 1e-6) / self.config.optimizer.max_grad_norm).clamp(min=1) * scale).float(),
            bad=(~summary[0].isfinite()).float(),
            gradients=gradients,
            each=each,
            finite_loss=total.isfinite().all(),
        )

    @in_phase("optimizer")
    @torch.no_grad()
    def update(self, stats: PendingStats, lr: float, skip: bool = False) -> None:
        """Unscale, clip and apply the optimizer step in one kernel; no change if the gradient norm is not finite."""
        device = self.optimizer.device  # the CPU when the weights are offloaded
        bad = torch.ones_like(stats.bad) if skip else stats.bad
        rate = torch.full((), lr, dtype=torch.float32, device=device)
        self.optimizer.step(stats.gradients, rate, stats.divisor.to(device), bad.to(device))
        for _, parameter in self.optimizer.named:
            parameter.grad = None
        stats.gradients.clear()  # free their memory for the next step

    def culprit(self, stats: PendingStats) -> str:
        """Name the origin of a gradient that is not finite: the loss of a rank, otherwise a parameter's gradient on it.

        Collective, to be called only after a skipped step, since it waits for the device.
        """
        each = zip(self.optimizer.named, stats.each.tolist(), strict=True)
        names = [f"the gradient of {name}" for (name, _), norm in each if not math.isfinite(norm)]
        mine = "the loss" if not stats.finite_loss else names[0] if names else ""
        found: list[str] = [""] * self.ctx.world
        dist.all_gather_object(found, mine)
        losses = [rank for rank, origin in enumerate(found) if origin == "the loss"]
        rank = (losses or [rank for rank, origin in enumerate(found) if origin])[0]
        return f"{found[rank]} on rank {rank}"

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Batch]) -> list[float]:
        """Sum the loss, and the scores of the objective, over the samples of all processes; `sums` numbers.

        Collective: all processes pass the same number of batches. Without compilation: that of the forward alone takes
        a minute for 48 blocks, and saves 0.03 % of the time of a run that validates by default.
        """
        with self.evaluating(), without_compilation(self.config.performance, self.ctx.device):
            if self.pipeline is not None:
                total = self.pipeline.evaluate(batches, self.sums)
            else:
                dtype = sum_dtype(self.ctx.device)
                total = torch.zeros(self.sums, dtype=dtype, device=self.ctx.device)
                for batch in batches:
                    with self._forward():
                        total += self.model_parts[0](batch.tokens, batch.targets, **batch.extra).to(dtype)
        if self.ctx.world > 1:
            dist.all_reduce(total)
        return (total / self.layout.tp).tolist()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute without dropout in a block, and free the parameters gathered in it."""
        for part in self.model_parts:
            part.eval()
        if self.shared is not None:
            self.shared.copy_first()
        yield
        for part in self.model_parts:
            part.train()
        reshard(self.model_parts)

    @torch.no_grad()
    def logits(self, tokens: Tensor, head: Callable[[Tensor], Tensor] | None = None) -> Tensor | None:
        """Compute logits inside of `evaluating`, without compilation, since they may have any length. Collective.

        Args:
            tokens: int64 [batch, length], the same on every process; under sequence parallelism the length is a
                multiple of tp.
            head: function of the last hidden states whose result takes the place of the logits.

        Returns:
            Logits on the processes with the head of the model; None on the others.
        """
        config = self.config
        with without_compilation(config.performance, self.ctx.device):
            if self.pipeline is not None:
                return self.pipeline.logits(tokens, self.layout.tp if config.parallel.sequence_parallel else 1, head)
            with self._forward():
                return cast(Tensor, self.model_parts[0](tokens, head=head))

    def parameters(self) -> list[Tensor]:
        """Parameters on this process."""
        return [parameter for part in self.model_parts for parameter in part.parameters()]

    def state(self) -> Mapping[str, Tensor]:
        """Weights and optimizer state by names that do not depend on the layout: `model.<name>`, `optim.<name>.<key>`.

        Raises:
            RunError: copies of a parameter on several pipeline stages differ.
        """
        if self.shared is not None:
            self.shared.check()
        state = {f"model.{name}": parameter.detach() for name, parameter in self.optimizer.named}
        return state | {f"optim.{key}": value for key, value in self.optimizer.state().items()}

    @contextlib.contextmanager
    def _forward(self) -> Iterator[None]:
        """Context of a forward pass."""
        dtype, half = COMPUTE_DTYPES[self.config.precision], self.config.precision != "fp32"
        autocast = torch.autocast(self.ctx.device.type, dtype=dtype) if half else contextlib.nullcontext()
        with self.phases("forward"), autocast:
            yield


def _copy_to_host(summary: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start a copy to CPU memory.

    Returns:
        The copy, and the CUDA event after which it is valid, None if it is valid at once.
    """
    if summary.device.type != "cuda":
        return summary, None
    copy = torch.empty(summary.shape, dtype=summary.dtype, pin_memory=True).copy_(summary, non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return copy, ready
