"""Speed and memory of full-size models on a GPU, each contestant in a process of its own.

    python -m benchmarks.gpu.measure DEVICE "PART SHAPE"… [NAME to leave out …]

prints `Result`s as lines of JSON. The contestants are those of `benchmarks.trainer`: the engine, `transformers`, and a
plain loop in the manner of nanoGPT. Micro-batches are tried from the largest down; the first that fits is kept.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from benchmarks.gpu.result import Check, NotAvailable, Result, at_least, at_most, run_checks
from benchmarks.gpu.tiny import has_fp8
from benchmarks.train import SHAPES, Contestant
from benchmarks.trainer import Task, config_of
from gpt2train.config import RunConfig
from gpt2train.monitoring.gpu_peaks import peak_flops
from gpt2train.monitoring.metrics import flops_per_token
from gpt2train.parallel.layout import Layout
from gpt2train.plan.memory import peak
from gpt2train.plan.parameters import pieces
from gpt2train.settings import build, layer
from gpt2train.simulate.kinds import all_kinds

MICRO = {"tiny": (4,), "124m": (64, 32, 16), "345m": (32, 16, 8), "1542m": (16, 8, 4)}
KERNELS = {"ours": "ours, autotuned", "ours, flash": "ours, flash, autotuned"}  # attention; with a search for kernels
PEERS = ("transformers", "plain")
BARS = {"124m": 0.42, "345m": 0.50, "1542m": 0.50}  # share of the card's peak
STEPS = {"cpu": 1, "cuda": 6}
PLAN_BOUND = 0.10  # relative error of `plan`
HANGING = 300.0  # seconds after which a contestant is taken to hang; a model of 48 blocks compiles for minutes


@cache
def measured(name: str, task: Task) -> dict[str, float] | None:
    """Figures of some steps after a first call that compiles; None if the process dies, as without enough memory.

    Raises:
        TimeoutError: the process hangs.
    """
    contestant = Contestant(name, task, STEPS[task.device], 1)
    killer = threading.Timer(HANGING, contestant.process.kill)
    killer.start()
    try:
        for _ in range(2):
            contestant()
        contestant.close()
    except SystemExit:  # the process has printed its error
        if contestant.process.returncode == -signal.SIGKILL and not killer.is_alive():
            raise TimeoutError(f"{name} took more than {HANGING:g} s") from None
        return None
    finally:
        killer.cancel()
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


def search(device: str, name: str) -> tuple[Task, dict[str, dict[str, float]]]:
    """Largest micro-batch that fits, and the figures of the engine with each attention kernel."""
    kernel, *others = KERNELS
    task, figures = first_fitting(kernel, Task(SHAPES[name][0], 1, 1, device, compile=device == "cuda"), MICRO[name])
    found = {kernel: figures}
    for other in others if device == "cuda" else ():
        if (figures := measured(other, task) or {}) != {}:
            found[other] = figures
    return task, found


def speed(device: str, name: str) -> Iterator[Result]:
    """Tokens per second of the engine with the best of a short search, beside its peers on the same card."""
    best, found = search(device, name)
    rates = {kernel: rate(best, figures) for kernel, figures in found.items()}
    figures = found[max(rates, key=lambda kernel: rates[kernel])]
    share = use(best, figures)
    how = f"micro-batch {best.micro_batch}, compiled in {figures['compile']:.0f} s; " + ", ".join(
        f"{kernel} {tokens:,.0f} tokens/s" for kernel, tokens in rates.items()
    )
    yield Result("speed", f"{name} tokens/s", None, max(rates.values()), None, "tokens/s", how)
    if share == share:
        yield at_least("speed", f"{name} MFU", share, BARS.get(name, 0.0), "of the peak", how)
    for peer in PEERS:
        against = f"{name} against {peer}"
        try:
            task, figures = first_fitting(peer, best, tuple(size for size in MICRO[name] if size <= best.micro_batch))
        except (NotAvailable, TimeoutError) as reason:  # the other peer is still measured
            yield Result("speed", against, None, detail=f"{peer}: {reason}")
            continue
        ratio = max(rates.values()) / rate(task, figures)
        detail = f"{peer}: {rate(task, figures):,.0f} tokens/s at micro-batch {task.micro_batch}"
        if device == "cpu":  # a rehearsal is no measurement
            yield Result("speed", against, None, ratio, None, "x", detail)
        else:
            yield at_least("speed", against, ratio, 1.0, "x", detail)


def autotuned(device: str, name: str) -> Iterator[Result]:
    """Gain of `performance.max_autotune` with the best micro-batch and attention kernel; it compiles for minutes."""
    task, found = search(device, name)
    kernel = min(found, key=lambda one: found[one]["wall"])
    try:
        tuned = measured(KERNELS[kernel], task)
    except TimeoutError as reason:
        raise NotAvailable(str(reason)) from reason
    if tuned is None:
        yield Result("speed", f"{name} autotuned", False, detail="the process ended; its error is above")
        return
    share = use(task, tuned)
    peak_share = f"{share:.3g} of the peak, " if share == share else ""
    detail = (
        f"{rate(task, tuned):,.0f} tokens/s, {peak_share}compiled in {tuned['compile']:.0f} s; "
        f"{kernel} {rate(task, found[kernel]):,.0f} tokens/s, micro-batch {task.micro_batch}"
    )
    gain = found[kernel]["wall"] / tuned["wall"]
    yield Result("speed", f"{name} autotuned", None, gain, None, "x the speed", detail)


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
    del one, other, out
    if device == "cuda":
        torch.cuda.empty_cache()  # for the contestants
    yield Result("speed", "matrix products", None, achieved / 1e12, None, "TFLOP/s", f"{size} x {size}, {dtype}")


def memory(device: str, name: str) -> Iterator[Result]:
    """Peak memory of the allocator against the simulated step from which `gpt2train plan` takes its memory."""
    shape = SHAPES[name][0]
    for label, parallel in (("", {}), (" full", {"activation_checkpointing": "full"})):
        task = Task(shape, MICRO[name][-1], 1 if device == "cpu" else 2, device, compile=False)
        found = measured("ours, full" if parallel else "ours", task)
        if found is None:
            yield Result("memory", f"{name}{label}", False, detail="out of memory")
            continue
        settings: RunConfig = build(RunConfig, layer(config_of(task), {"parallel": parallel}))
        layout = Layout.of(settings, 1)
        [kind] = all_kinds(settings, layout.world)
        formulas = peak(settings, shape, layout, pieces(settings, shape)[0], 0).device
        sizes = f"plan {kind.step.peak / 2**30:.2f} GiB, by formulas {formulas / 2**30:.2f} GiB"
        detail = f"{sizes}, measured {found['peak'] / 2**30:.2f} GiB, micro-batch {task.micro_batch}"
        error = abs(kind.step.peak / found["peak"] - 1)
        if device == "cpu":  # of which the resident memory is known, with all libraries
            yield Result("memory", f"{name}{label}", None, error, None, "relative", detail)
        else:
            yield at_most("memory", f"{name}{label}", error, PLAN_BOUND, "relative", detail)


def features(device: str, name: str) -> Iterator[Result]:
    """Cost or gain of some options, in time and memory, against the plain engine.

    Without fp8 on a CPU, most of which emulate its products: some take 300 s for a run of the smallest model.
    """
    task = Task(SHAPES[name][0], MICRO[name][-1], 1, device, compile=device == "cuda")
    plain = measured("ours", task)
    if plain is None:
        raise NotAvailable("out of memory")
    eight = ("ours, fp8 tensorwise", "ours, fp8 rowwise") if device == "cuda" and has_fp8(device) else ()
    for other in ("ours, documents", "ours, selective", "ours, full", "ours, muon", *eight):
        found = measured(other, task)
        if found is None:
            yield Result("features", f"{name} {other}", False, detail="the process ended; its error is above")
            continue
        detail = f"peak memory {found['peak'] / plain['peak']:.2f}x; {rate(task, found):,.0f} tokens/s"
        yield Result("features", f"{name} {other}", None, found["wall"] / plain["wall"], None, "x the time", detail)


def fp8(device: str) -> Iterator[Result]:
    """Rate of torch's own matrix product in 8 bits beside that in bfloat16, without the rounding of its factors."""
    if not has_fp8(device):
        raise NotAvailable("this card has no products in 8 bits")
    size, times = (8192, 50) if device == "cuda" else (128, 2)
    one = torch.randn(size, size, device=device).to(torch.bfloat16)
    other, scale = torch.randn_like(one), torch.ones((), device=device)
    small = one.to(torch.float8_e4m3fn), other.to(torch.float8_e4m3fn).t()

    def seconds(product: Callable[[], Tensor]) -> float:
        for _ in range(times):  # warm
            result = product()
        result[0, 0].item()
        started = time.perf_counter()
        for _ in range(times):
            result = product()
        result[0, 0].item()
        return time.perf_counter() - started

    wide = seconds(lambda: one @ other)
    narrow = seconds(
        lambda: torch._scaled_mm(small[0], small[1], scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    )
    achieved = 2 * size**3 * times / narrow / 1e12
    detail = f"{size} x {size}, {achieved:,.3g} TFLOP/s; of matrix products alone"
    yield Result("features", "fp8 products", None, narrow / wide, None, "x the time of bfloat16", detail)


def checks(device: str, names: list[str]) -> dict[str, Check]:
    """Measurements by "PART SHAPE" or "speed SHAPE autotuned"."""
    found: dict[str, Check] = {"speed products": partial(products, device), "features fp8": partial(fp8, device)}
    for name in names:
        if name not in found:
            part, shape, *tuned = name.split()
            function = autotuned if tuned else {"speed": speed, "memory": memory, "features": features}[part]
            found[name] = partial(function, device, shape)
    return {name: found[name] for name in names}


if __name__ == "__main__":
    given = list(dict.fromkeys(sys.argv[2:]))
    # A name that is given again is left out: the process died in it.
    run_checks(None, checks(sys.argv[1], given), {name for name in given if sys.argv.count(name) > 1})
