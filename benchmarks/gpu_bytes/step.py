"""A training step of a preset, kernel by kernel, from the code for a few layers."""

import math
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.gpu_bytes.fake_card import fake_card
from benchmarks.gpu_bytes.kernels import Kernel, Kernels, kernels_of, peak_bytes
from benchmarks.train import SHAPES
from gpt2train.config import PerformanceSettings
from gpt2train.model.families import block_sizes, parameter_count
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token

# Layers that are compiled; each further pair has the kernels that the second one adds. A pair, since with a stream in
# fp32 each second layer reads or writes the stream once more: 13.14, 13.34 and 13.14 GB for the third to fifth at 124m.
FEW = (2, 4)
# Bytes per parameter, read and written.
CAST = (4, 2)  # once a step, of a linear layer
FIRST = (2, 4)  # its gradient of the first micro-batch
ADDED = (6, 4)  # its gradient of a later one
ADDED_ELSEWHERE = (8, 4)  # that of another parameter
UPDATED = (20, 16)  # AdamW, which writes the clipped gradient too, and the norm of the gradients
STATE = 16  # bytes per parameter of weights, gradients of earlier micro-batches and AdamW's state


@dataclass(frozen=True)
class Step:
    """A training step on one GPU.

    Attributes:
        shape: shape of the model.
        micro_batch: samples of a micro-batch.
        accumulation: micro-batches.
        kernels: launches of each kernel.
        graph_breaks: graph breaks of the compilation.
        memory: most bytes on the device, with weights, gradients and AdamW's state in float32.
    """

    shape: Shape
    micro_batch: int
    accumulation: int
    kernels: Kernels
    graph_breaks: int
    memory: float

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.micro_batch * self.accumulation * self.shape.context

    @property
    def flops(self) -> float:
        """FLOPs by the usual formula (6N + 12LHQT)."""
        return float(flops_per_token(self.shape)) * self.tokens


def step_of(preset: str, micro_batch: int, tokens: int, **performance: Any) -> Step:
    """Count a step of a preset.

    Args:
        preset: name in `benchmarks.train.SHAPES`.
        micro_batch: samples of a micro-batch.
        tokens: tokens of the step.
        performance: settings.
    """
    shape = SHAPES[preset][0]
    few, more = (compiled(replace(shape, layers=layers), micro_batch, **performance) for layers in FEW)
    accumulation = max(1, tokens // (micro_batch * shape.context))
    found = extended(few.kernels, more.kernels, shape.layers)
    kernels = Kernels({one: accumulation * count for one, count in found.items()})
    factor = (shape.layers - FEW[0]) / (FEW[1] - FEW[0])
    count = parameter_count(shape)
    halved = shape.layers * sum(math.prod(size) for name, size in block_sizes(shape, 0).items() if "ln_" not in name)

    def add(launches: int, phase: str, name: str, bytes_each: tuple[int, int], parameters: int) -> None:
        if launches:
            read, written = (size * parameters for size in bytes_each)
            kernels[Kernel(phase, name, "pointwise", read, written)] += launches

    add(1, "forward", "HalfWeights", CAST, halved)
    add(1, "backward", "add_gradients, first", FIRST, halved)
    add(accumulation - 1, "backward", "add_gradients", ADDED, halved)
    add(accumulation - 1, "backward", "AccumulateGrad", ADDED_ELSEWHERE, count - halved)
    add(1, "optimizer", "AdamW", UPDATED, count)
    held = max(a + factor * (b - a) for a, b in zip(few.peaks, more.peaks, strict=True))
    memory = STATE * count + (0 if accumulation > 1 else -4 * count) + 2 * halved + held
    return Step(shape, micro_batch, accumulation, kernels, few.graph_breaks + more.graph_breaks, memory)


def extended(few: Kernels, more: Kernels, layers: int) -> Kernels:
    """Return the kernels of a model of `layers` layers from those of FEW[0] and of FEW[1] layers."""
    factor = (layers - FEW[0]) / (FEW[1] - FEW[0])
    found = Kernels({one: round(few[one] + factor * (more[one] - few[one])) for one in few | more})
    return Kernels({one: count for one, count in found.items() if count})


def nonlinearity(preset: str, micro_batch: int, layers: int, **performance: Any) -> float:
    """Return the relative difference of the bytes of a compiled model of some layers from what FEW layers foretell."""
    few, more, all_of_them = (
        compiled(replace(SHAPES[preset][0], layers=number), micro_batch, **performance).kernels
        for number in (*FEW, layers)
    )
    foretold, found = (
        sum(count * kernel.bytes for kernel, count in one.items()) for one in (extended(few, more, layers), all_of_them)
    )
    return abs(foretold / found - 1)


@dataclass(frozen=True)
class Compiled:
    """Forward and backward of a micro-batch.

    Attributes:
        kernels: launches of each kernel.
        graph_breaks: graph breaks.
        peaks: most bytes beside parameters and their state, of each graph.
    """

    kernels: Kernels
    graph_breaks: int
    peaks: tuple[int, ...]


def compiled(shape: Shape, micro_batch: int, **performance: Any) -> Compiled:
    """Compile a model as the engine does it on one GPU."""
    import torch

    from gpt2train.model.causal_lm import build_model
    from gpt2train.training.half_weights import HalfWeights
    from gpt2train.training.performance import compile_module

    graphs: list[tuple[Kernels, int]] = []
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with fake_card(lambda graph: graphs.append((kernels_of(graph), peak_bytes(graph)))):
        with torch.device("cuda"):
            model = build_model(shape)
            tokens = torch.empty((micro_batch, shape.context), dtype=torch.int64)
        settings = PerformanceSettings.model_validate({"compile": "on"} | performance)
        model.stream = torch.bfloat16 if settings.stream != "fp32" else None
        compile_module(model, settings, torch.device("cuda"), whole=True, loss=True)
        half = HalfWeights(model.blocks, torch.bfloat16)
        with half.in_place(), torch.autocast("cuda", dtype=torch.bfloat16):
            model(tokens, tokens)
    total = Kernels()
    for kernels, _ in graphs:
        total += kernels
    return Compiled(total, sum(torch._dynamo.utils.counters["graph_break"].values()), tuple(peak for _, peak in graphs))
