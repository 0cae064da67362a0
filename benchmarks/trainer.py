"""One contestant of benchmarks/train.py, in a process of its own: so that its peak memory is its own.

    python -m benchmarks.trainer NAME SETTINGS.json

A line with a number on standard input is answered, after that many optimizer steps, by a line of JSON: seconds by the
wall and of the processor, the loss, the peak memory in bytes. The batches are random tokens, the same for all. If the
device has too little memory, the answer says that and the process ends.
"""

import contextlib
import gc
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from gpt2train.convert.hf_layout import layout_of
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token

OUT_OF_MEMORY = "out_of_memory"  # field of the answer of a process whose device has too little memory
kernels = contextlib.ExitStack()  # preferred by ours until the process ends
Step = Callable[[list[Tensor]], Tensor]  # micro-batches of tokens [batch, context + 1] -> mean loss, on the device


@dataclass(frozen=True)
class Task:
    """What every contestant does in one step."""

    shape: Shape
    micro_batch: int
    accumulation: int
    device: str
    compile: bool
    lr: float = 1e-4
    clip: float = 1.0

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.accumulation * self.shape.context

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Task":
        fields = json.loads(text)
        shape = fields.pop("shape")
        options = tuple((name, value) for name, value in shape.pop("options"))  # JSON has lists
        return Task(shape=Shape(**shape, options=options), **fields)


def config_of(task: Task, speed: dict[str, Any] | None = None, **groups: Any) -> dict[str, Any]:
    """Settings of a run with this task's sizes; `groups` are further groups of settings."""
    shape = task.shape
    sizes = {key: getattr(shape, key) for key in ("layers", "heads", "hidden", "context")}
    return {
        "model": sizes | {"dropout": 0.0, "family": shape.family, "options": dict(shape.options)},
        "batch": {"micro_batch": task.micro_batch, "global_batch": task.micro_batch * task.accumulation},
        "optimizer": {"lr": task.lr, "max_grad_norm": task.clip},
        "performance": {"compile": "on" if task.compile else "off"} | (speed or {}),
        "precision": "bf16" if task.device == "cuda" or "fp8" in (speed or {}) else "fp32",
        "device": task.device,
        "vocab": shape.vocab,
        "data": {"train": "random tokens"},
        "output": "nowhere",
    } | groups


def ours(
    task: Task, speed: dict[str, Any] | None = None, documents: bool = False, muon: bool = False, **parallel: Any
) -> Step:
    """A step of the engine, as gpt2train.train runs it on one process; `documents`: two documents in each sample."""
    from gpt2train.config import RunConfig
    from gpt2train.data.batch import Batch
    from gpt2train.parallel.mesh import join
    from gpt2train.settings import build
    from gpt2train.training.engine import Engine
    from gpt2train.training.performance import fast_kernels

    config = build(
        RunConfig, config_of(task, speed, parallel=parallel), {"optimizer": {"name": "muon"}} if muon else {}
    )
    kernels.enter_context(fast_kernels(config.performance, torch.device(task.device), documents))
    engine = Engine(config, join(task.device))
    steps = itertools.count(1)
    length = task.shape.context
    second = (torch.arange(length, device=task.device) > length // 3).long().expand(task.micro_batch, -1).contiguous()
    extra = {"documents": second} if documents else {}

    def step(batches: list[Tensor]) -> Tensor:
        total = engine.accumulate([Batch(b[:, :-1], b[:, 1:], extra) for b in batches], task.tokens, next(steps))
        measure = engine.measure(total, task.tokens, 1.0, False)
        engine.update(measure, task.lr)
        # In CPU memory, and valid once the device has been waited for: a training on a GPU starts the next step before.
        return measure.summary[2]

    return step


def transformers(task: Task) -> Step:
    """Their model of this shape as people train it: SDPA, fused AdamW, bfloat16 autocast on a GPU, clipping."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = layout_of(task.shape.family).config(task.shape)
    no_dropout: dict[str, Any] = {name: 0.0 for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop") if name in fields}
    tokens = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}
    settings: dict[str, Any] = {**fields, **no_dropout, **tokens}
    config = AutoConfig.for_model(**settings)
    torch.manual_seed(1)
    model = cast(torch.nn.Module, AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"))
    model.to(task.device).train()
    forward = torch.compile(model) if task.compile else model
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=task.lr, fused=True)

    def step(batches: list[Tensor]) -> Tensor:
        total = torch.zeros((), device=task.device)
        for batch in batches:
            # Labels alone would be shifted inside, which leaves context - 1 targets; ours has all of them.
            inputs, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
            with torch.autocast(task.device, torch.bfloat16, enabled=task.device == "cuda"):
                loss = forward(input_ids=inputs, labels=inputs, shift_labels=targets).loss
            (loss / len(batches)).backward()
            total += loss.detach() / len(batches)
        torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


class PlainBlock(torch.nn.Module):
    """Pre-norm block of GPT-2 in a few lines, as a user would write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.ln_1(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class PlainModel(torch.nn.Module):
    """GPT-2 with a tied head, and the mean loss over all logits at once, in the manner of nanoGPT."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.wte = torch.nn.Embedding(shape.padded_vocab, shape.hidden)
        self.wpe = torch.nn.Embedding(shape.context, shape.hidden)
        self.blocks = torch.nn.Sequential(*[PlainBlock(shape.hidden, shape.heads) for _ in range(shape.layers)])
        self.ln_f = torch.nn.LayerNorm(shape.hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        logits = torch.nn.functional.linear(self.ln_f(self.blocks(x)), self.wte.weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plain(task: Task) -> Step:
    """A plain loop in the manner of nanoGPT: autocast, fused AdamW, clipping, torch.compile of the whole model."""
    torch.manual_seed(1)
    model = PlainModel(task.shape).to(task.device)
    forward = torch.compile(model) if task.compile else model
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=task.lr, fused=True)

    def step(batches: list[Tensor]) -> Tensor:
        total = torch.zeros((), device=task.device)
        for batch in batches:
            with torch.autocast(task.device, torch.bfloat16, enabled=task.device == "cuda"):
                loss = forward(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) / len(batches)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def products(task: Task) -> Step:
    """As many FLOPs as a step has (6N + 12LHQT), as plain matrix products: the floor."""
    size, dtype = (8192, torch.bfloat16) if task.device == "cuda" else (1024, torch.float32)
    one = torch.randn(size, size, device=task.device).to(dtype)
    other, result = torch.randn_like(one), torch.empty_like(one)
    times = max(1, round(flops_per_token(task.shape) * task.tokens / (2 * size**3)))

    def step(batches: list[Tensor]) -> Tensor:
        for _ in range(times):
            torch.mm(one, other, out=result)
        return result[0, 0].float()

    return step


def peak_bytes(device: str) -> int:
    """The most memory held at once: of the GPU by the allocator's count, else resident in this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


CONTESTANTS: dict[str, Callable[[Task], Step]] = {
    "ours": ours,
    "ours, offload": partial(ours, cpu_offload=True),
    "ours, documents": partial(ours, documents=True),
    "ours, muon": partial(ours, muon=True),
    "ours, selective": partial(ours, activation_checkpointing="selective"),
    "ours, full": partial(ours, activation_checkpointing="full"),
    "ours, flash": partial(ours, speed={"attention": "flash"}),
    "ours, blocks": partial(ours, speed={"compile": "blocks"}),
    "ours, autotuned": partial(ours, speed={"max_autotune": True}),
    "ours, flash, autotuned": partial(ours, speed={"attention": "flash", "max_autotune": True}),
    "ours, fp8 tensorwise": partial(ours, speed={"fp8": "tensorwise"}),
    "ours, fp8 rowwise": partial(ours, speed={"fp8": "rowwise"}),
    "transformers": transformers,
    "plain": plain,
    "products": products,
}
DEFAULT = ("ours", "transformers", "products")


def faulty(fault: str, task: Task) -> Step:
    """A step that fails in one way, for rehearsals of what reads the answers."""

    def step(batches: list[Tensor]) -> Tensor:
        if fault == "out of memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB")
        if fault == "crash":
            os._exit(7)
        time.sleep(3_600)
        return torch.zeros(())

    return step


PLANTED = {f"planted {fault}": partial(faulty, fault) for fault in ("crash", "hang", "out of memory")}


def main() -> None:
    """Answer requests for steps until standard input ends, or memory does."""
    try:
        answer()
    except RuntimeError as error:  # of which torch.OutOfMemoryError is one
        if not any(words in str(error) for words in ("out of memory", "ALLOC_FAILED")):
            raise
        print(json.dumps({OUT_OF_MEMORY: str(error).splitlines()[0]}), flush=True)
        sys.exit(str(error).splitlines()[0])


def answer() -> None:
    """Answer requests for steps until standard input ends."""
    name, settings = sys.argv[1:]
    task = Task.from_json(settings)
    step = (CONTESTANTS | PLANTED)[name](task)
    generator = torch.Generator().manual_seed(0)
    size = (task.micro_batch, task.shape.context + 1)
    gc.disable()
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = torch.zeros(())
        for _ in range(int(line)):
            loss = step(
                [
                    torch.randint(task.shape.vocab, size, generator=generator).to(task.device, non_blocking=True)
                    for _ in range(task.accumulation)
                ]
            )
        if task.device == "cuda":
            torch.cuda.synchronize()  # for the update too, which the loss does not wait for
        result = {"loss": loss.item()}
        result |= {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "peak": peak_bytes(task.device),
        }
        gc.collect()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
