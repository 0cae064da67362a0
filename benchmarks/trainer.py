"""One contestant of benchmarks/train.py, in a process of its own: so that its peak memory is its own.

    python -m benchmarks.trainer NAME SETTINGS.json

A line with a number on standard input is answered, after that many optimizer steps, by a line of JSON: seconds by the
wall and of the processor, the loss, the peak memory in bytes. The batches are random tokens, the same for all.
"""

import contextlib
import gc
import itertools
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token

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


def ours(task: Task, speed: dict[str, Any] | None = None, **parallel: Any) -> Step:
    """A step of the engine, as gpt2train.train runs it on one process."""
    from gpt2train.config import RunConfig
    from gpt2train.data.batch import Batch
    from gpt2train.parallel.mesh import join
    from gpt2train.settings import build
    from gpt2train.training.engine import Engine
    from gpt2train.training.performance import fast_kernels

    shape = task.shape
    sizes = {key: getattr(shape, key) for key in ("layers", "heads", "hidden", "context")}
    config = build(
        RunConfig,
        {
            "model": sizes | {"dropout": 0.0},
            "batch": {"micro_batch": task.micro_batch, "global_batch": task.micro_batch * task.accumulation},
            "optimizer": {"lr": task.lr, "max_grad_norm": task.clip},
            "parallel": parallel,
            "performance": {"compile": "on" if task.compile else "off"} | (speed or {}),
            "precision": "bf16" if task.device == "cuda" else "fp32",
            "device": task.device,
            "vocab": shape.vocab,
            "data": {"train": "random tokens"},
            "output": "nowhere",
        },
    )
    kernels.enter_context(fast_kernels(config.performance, torch.device(task.device)))
    engine = Engine(config, join(task.device))
    steps = itertools.count(1)

    def step(batches: list[Tensor]) -> Tensor:
        total = engine.accumulate([Batch(b[:, :-1], b[:, 1:]) for b in batches], task.tokens, next(steps))
        measure = engine.measure(total, task.tokens, 1.0, False)
        engine.update(measure, task.lr)
        return torch.tensor(measure.read()[0])

    return step


def transformers(task: Task) -> Step:
    """GPT2LMHeadModel as people train it: SDPA, fused AdamW, bfloat16 autocast on a GPU, clipping by the norm."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = task.shape
    config = GPT2Config(
        vocab_size=shape.vocab,
        n_positions=shape.context,
        n_embd=shape.hidden,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    torch.manual_seed(1)
    model = cast(torch.nn.Module, GPT2LMHeadModel._from_config(config, attn_implementation="sdpa"))
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
    "ours, offload": partial(ours, offload=True),
    "ours, selective": partial(ours, activation_checkpointing="selective"),
    "ours, full": partial(ours, activation_checkpointing="full"),
    "ours, flash": partial(ours, performance={"attention": "flash"}),
    "ours, autotuned": partial(ours, performance={"max_autotune": True}),
    "transformers": transformers,
    "products": products,
}
DEFAULT = ("ours", "transformers", "products")


def main() -> None:
    """Answer requests for steps until standard input ends."""
    name, settings = sys.argv[1:]
    task = Task.from_json(settings)
    step = CONTESTANTS[name](task)
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
        result = {"loss": loss.item()}  # also waits for the device
        result |= {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "peak": peak_bytes(task.device),
        }
        gc.collect()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
