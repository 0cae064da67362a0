"""Speed and memory of full-size models on a GPU, each contestant in a process of its own.

    python -m benchmarks.gpu.measure DEVICE PART SHAPE

prints `Result`s as lines of JSON. The contestants are those of `benchmarks.trainer`: the engine, `transformers`, and a
plain loop in the manner of nanoGPT. Micro-batches are tried from the largest down; the first that fits is kept.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpu.result import Check, NotAvailable, Result, at_least, at_most, run_checks
from benchmarks.train import SHAPES, Contestant
from benchmarks.trainer import Task, config_of
from gpt2train.config import RunConfig
from gpt2train.monitoring.gpu_peaks import peak_flops
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.parallel.layout import Layout
from gpt2train.plan.memory import peak
from gpt2train.plan.parameters import pieces
from gpt2train.settings import build, layer

MICRO = {"tiny": (4,), "124m": (64, 32, 16), "345m": (32, 16, 8), "1542m": (16, 8, 4)}
KERNELS = ("ours", "ours, flash")  # cuDNN's attention and flash
PEERS = ("transformers", "plain")
BARS = {"124m": 0.42, "345m": 0.50, "1542m": 0.50}  # share of the card's peak
STEPS = {"cpu": 1, "cuda": 6}
PLAN_BOUND = 0.10  # relative error of `plan`


def measured(name: str, task: Task) -> dict[str, float] | None:
    """Figures of some steps after a first call that compiles; None if the memory does not suffice."""
    contestant = Contestant(name, task, STEPS[task.device], 1)
    try:
        for _ in range(2):
            contestant()
        contestant.close()
    except SystemExit:  # the process has printed its error
        contestant.process.kill()
        return None
    return contestant.rounds[-1] | {"compile": contestant.rounds[0]["wall"]}


def first_fitting(name: str, task: Task, sizes: tuple[int, ...]) -> tuple[Task, dict[str, float]]:
    """Largest of these micro-batches that fits, and its figures."""
    for micro in sizes:
        if (found := measured(name, replace(task, micro_batch=micro))) is not None:
            return replace(task, micro_batch=micro), found
    raise NotAvailable(f"no micro-batch of {sizes} fits")


def rate(task: Task, found: dict[str, float]) -> float:
    """Tokens per second."""
    return STEPS[task.device] * task.tokens / found["wall"]


def use(task: Task, found: dict[str, float]) -> float:
    """Share of the card's dense half-precision peak; NaN for a card without a known one, or a CPU."""
    known = peak_flops(torch.cuda.get_device_name()) if task.device == "cuda" else None
    return rate(task, found) * flops_per_token(task.shape) / known if known else float("nan")


def speed(device: str, name: str) -> Iterator[Result]:
    """Tokens per second of the engine with the best of a short search, beside its peers on the same card."""
    shape = SHAPES[name][0]
    start = Task(shape, 1, 1, device, compile=device == "cuda")
    best, figures = first_fitting(KERNELS[0], start, MICRO[name])
    rates = {KERNELS[0]: rate(best, figures)}
    for other in KERNELS[1:] if device == "cuda" else ():
        if (found := measured(other, best)) is not None:
            rates[other] = rate(best, found)
            figures = found if found["wall"] < figures["wall"] else figures
    share = use(best, figures)
    how = f"micro-batch {best.micro_batch}, compiled in {figures['compile']:.0f} s; " + ", ".join(
        f"{kernel} {tokens:,.0f} tokens/s" for kernel, tokens in rates.items()
    )
    yield Result("speed", f"{name} tokens/s", None, max(rates.values()), None, "tokens/s", how)
    if share == share:
        yield at_least("speed", f"{name} MFU", share, BARS.get(name, 0.0), "of the peak", how)
    for peer in PEERS:
        task, found = first_fitting(peer, best, tuple(size for size in MICRO[name] if size <= best.micro_batch))
        ratio = max(rates.values()) / rate(task, found)
        detail = f"{peer}: {rate(task, found):,.0f} tokens/s at micro-batch {task.micro_batch}"
        against = f"{name} against {peer}"
        if device == "cpu":  # a rehearsal is no measurement
            yield Result("speed", against, None, ratio, None, "x", detail)
        else:
            yield at_least("speed", against, ratio, 1.0, "x", detail)


def products(device: str) -> Iterator[Result]:
    """Achieved rate of large half-precision matrix products, the ceiling of this card today."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (512, torch.float32)
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(one)
    times = 50 if device == "cuda" else 2
    for _ in range(times):  # warm
        torch.mm(one, other, out=out)
    out[0, 0].item()
    started = time.perf_counter()
    for _ in range(times):
        torch.mm(one, other, out=out)
    out[0, 0].item()
    achieved = 2 * size**3 * times / (time.perf_counter() - started)
    yield Result("speed", "matrix products", None, achieved / 1e12, None, "TFLOP/s", f"{size} x {size}, {dtype}")


def memory(device: str, name: str) -> Iterator[Result]:
    """Peak memory of the allocator against `gpt2train plan`."""
    if device == "cpu":
        raise NotAvailable("a CPU has no count of its own for tensors alone")
    shape = SHAPES[name][0]
    for label, parallel in (("", {}), (" full", {"activation_checkpointing": "full"})):
        task = Task(shape, MICRO[name][-1], 2, device, compile=False)
        found = measured("ours, full" if parallel else "ours", task)
        if found is None:
            yield Result("memory", f"{name}{label}", False, detail="out of memory")
            continue
        settings: RunConfig = build(RunConfig, layer(config_of(task), {"parallel": parallel}))
        layout = Layout.of(settings, 1)
        planned = peak(settings, shape, layout, pieces(settings, shape)[0], 0).device
        error = abs(planned / found["peak"] - 1)
        sizes = f"plan {planned / 2**30:.2f} GiB, measured {found['peak'] / 2**30:.2f} GiB"
        detail = f"{sizes}, micro-batch {task.micro_batch}"
        yield at_most("memory", f"{name}{label}", error, PLAN_BOUND, "relative", detail)


def features(device: str, name: str) -> Iterator[Result]:
    """Cost of document masking and of activation checkpointing, in time and memory, against the plain engine."""
    task = Task(SHAPES[name][0], MICRO[name][-1], 1, device, compile=device == "cuda")
    plain = measured("ours", task)
    if plain is None:
        raise NotAvailable("out of memory")
    for other in ("ours, documents", "ours, selective", "ours, full"):
        found = measured(other, task)
        if found is None:
            yield Result("features", f"{name} {other}", False, detail="the process ended; its error is above")
            continue
        detail = f"peak memory {found['peak'] / plain['peak']:.2f}x; {rate(task, found):,.0f} tokens/s"
        yield Result("features", f"{name} {other}", None, found["wall"] / plain["wall"], None, "x the time", detail)


def checks(device: str, part: str, name: str) -> dict[str, Check]:
    """Measurements of one part for one shape."""
    if name == "products":
        return {"products": partial(products, device)}
    return {f"{part} {name}": partial({"speed": speed, "memory": memory, "features": features}[part], device, name)}


if __name__ == "__main__":
    run_checks(sys.argv[2], checks(*sys.argv[1:4]), set(sys.argv[4:]))
