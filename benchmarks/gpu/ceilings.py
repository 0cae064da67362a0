"""Rates that the card itself reaches: copies, matrix products of the presets' shapes, attention by each kernel.

    python -m benchmarks.gpu.ceilings DEVICE [NAME to leave out …]

A throttled card, or one that others use, shows here: about 790 TFLOP/s of 8,192³ were seen on an H100 and on an H200,
copies of 3.0 and 4.3 TB/s.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.processes import Check, run_checks
from benchmarks.gpu.result import NotAvailable, Result
from benchmarks.gpu.tiny import has_fp8
from gpt2train.training.performance import KERNELS

PART = "ceilings"
TIMES = {"cpu": 1, "cuda": 10}
LIMIT = 25.0  # seconds of a check, while all others wait
ROWS = 16_384  # tokens of a micro-batch
CHUNKS = (2_048, 8_192, 16_384)  # rows of logits at a time


def seconds(work: Callable[[], object], device: str) -> float:
    """Median time of a call."""
    times = TIMES[device]
    for _ in range(min(3, times)):
        work()
    if device == "cpu":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)) / 1e3


def copies(device: str) -> Iterator[Result]:
    """Rate of copies within the device's memory, read and written."""
    one = torch.empty(2 ** (30 if device == "cuda" else 20), dtype=torch.uint8, device=device)
    other = torch.empty_like(one)
    rate = 2 * one.numel() / seconds(lambda: other.copy_(one), device) / 1e12
    detail = ""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        detail = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free, cuDNN {torch.backends.cudnn.version()}"
    yield Result(PART, "copy", None, rate, None, "TB/s", detail)


def product(device: str, m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """TFLOP/s of a product of [m, k] and [k, n]."""
    one, other = torch.randn(m, k, device=device).bfloat16(), torch.randn(k, n, device=device).bfloat16()
    if dtype == torch.bfloat16:
        taken = seconds(lambda: one @ other, device)
    else:
        left, right = one.to(dtype), other.t().contiguous().to(dtype).t()  # in the order of memory that it needs
        scale = torch.ones((), device=device)
        taken = seconds(
            lambda: torch._scaled_mm(left, right, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16), device
        )
    return 2 * m * n * k / taken / 1e12


def products(device: str) -> Iterator[Result]:
    """Large products in bfloat16 and in 8 bits."""
    size = 8_192 if device == "cuda" else 128
    yield Result(PART, f"product {size}^3", None, product(device, size, size, size), None, "TFLOP/s")
    if not has_fp8(device):
        raise NotAvailable("this card has no products in 8 bits")
    found = product(device, size, size, size, torch.float8_e4m3fn)
    yield Result(PART, f"product {size}^3 fp8", None, found, None, "TFLOP/s")


def shapes(device: str, hidden: int) -> Iterator[Result]:
    """Products of the blocks of a preset."""
    rows = ROWS if device == "cuda" else 64
    for label, m, k, n in (
        ("qkv", rows, hidden, 3 * hidden),
        ("proj", rows, hidden, hidden),
        ("up", rows, hidden, 4 * hidden),
        ("down", rows, 4 * hidden, hidden),
        ("up, gradient of weight", 4 * hidden, rows, hidden),
    ):
        yield Result(PART, f"{hidden} {label}", None, product(device, m, k, n), None, "TFLOP/s")


def head(device: str, hidden: int, vocab: int = 50_304) -> Iterator[Result]:
    """Products of the output projection, by the rows of a chunk."""
    for rows in CHUNKS if device == "cuda" else (64,):
        for label, m, k, n in (
            ("", rows, hidden, vocab),
            (", gradient of input", rows, vocab, hidden),
            (", gradient of weight", vocab, rows, hidden),
        ):
            yield Result(PART, f"{hidden} head {rows}{label}", None, product(device, m, k, n), None, "TFLOP/s")


def attention(device: str, batch: int, heads: int) -> Iterator[Result]:
    """Causal attention of heads of 64 in bfloat16, forward and backward, by each kernel on the interleaved q, k, v."""
    length = 1_024 if device == "cuda" else 64
    qkv = torch.randn(batch, length, heads, 3, 64, device=device).bfloat16().requires_grad_()
    grad = torch.randn(batch, heads, length, 64, device=device).bfloat16()
    flops = 3.5 * 4 * batch * heads * length * length * 64 / 2

    def both() -> None:
        query, key, value = qkv.transpose(1, 2).unbind(3)
        y = scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(y, (query, key, value), grad)

    for name, kernel in KERNELS.items():
        if name == "math":
            continue
        label = f"attention {batch} x {heads} {name}"
        try:
            with sdpa_kernel([kernel]):
                taken = seconds(both, device)
        except RuntimeError as error:
            yield Result(PART, label, None, detail=str(error).splitlines()[0])
            continue
        yield Result(PART, label, None, flops / taken / 1e12, None, "TFLOP/s", f"{taken * 1e3:.2f} ms")


def checks(device: str) -> dict[str, Check]:
    """All measurements; a rehearsal makes one of each kind."""
    found: dict[str, Check] = {"copies": partial(copies, device), "products": partial(products, device)}
    presets = ((768, 32, 12), (1_024, 16, 16), (1_600, 8, 25)) if device == "cuda" else ((64, 2, 2),)
    for hidden, batch, heads in presets:
        found[f"attention {heads}"] = partial(attention, device, batch, heads)
        found[f"products {hidden}"] = partial(shapes, device, hidden)
    found["head"] = partial(head, device, presets[0][0])
    return found


if __name__ == "__main__":
    where = sys.argv[1]
    torch.ones(2, 2, device=where) @ torch.ones(2, 2, device=where)  # the start of the device is no part of a turn
    every = checks(where)
    run_checks(PART, every, set(sys.argv[2:]), dict.fromkeys(every, LIMIT), ask=True)
