"""Checks of the engine on a GPU against the CPU in float32, or against its own plain form.

    python -m benchmarks.gpu.correctness DEVICE [--rehearse] [NAME to leave out …]

Bounds are on the loss of each of six steps, which begins at ln 500 = 6.2: 2e-4 in float32 (sums in another order),
0.05 in bfloat16 (8 bits of mantissa) and 0.01 in float16 (11 bits). Products in 8 bits (fp8, 3 or 2 bits of mantissa)
are compared with bfloat16: the loss within 0.05, the gradients of the first step within 20 % of their norm.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import sdpa_kernel

from benchmarks.gpu.processes import Check, run_checks
from benchmarks.gpu.result import NotAvailable, Result, at_most
from benchmarks.gpu.tiny import LLAMA, STEPS, VOCAB, difference, gradients, has_fp8, losses, on, twin
from gpt2train.checkpoint.staging import copy_to_cpu
from gpt2train.checkpoint.store import open_weights
from gpt2train.config import RunConfig, presets
from gpt2train.convert.huggingface import save_model
from gpt2train.data.indexed import bin_path, idx_path, write_index
from gpt2train.data.tokenizer import END_OF_TEXT, save_tokenizer
from gpt2train.inference.generate import continue_tokens
from gpt2train.inference.settings import SamplingSettings
from gpt2train.model.causal_lm import build_model
from gpt2train.model.init import initialise
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.settings import build
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from gpt2train.training.performance import KERNELS

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for bit-equality; read when cuBLAS starts

PART = "correctness"
BOUNDS = {"fp32": 2e-4, "bf16": 0.05, "fp16": 0.01}
FP8_GRADIENTS = 0.2  # measured on a CPU: 0.06 to 0.09
LENGTHS = {"cpu": (64, 192), "cuda": (64, 128, 192, 1_024)}  # of attention
HANG_REHEARSED = 4.0  # seconds after which the check that hangs in a rehearsal is ended
SAME = 2e-5  # two forms of the same float32 computation


@cache
def on_cpu(name: str | None, family: str, steps: int) -> list[float]:
    """Losses of a twin on the CPU in float32."""
    return losses(twin(name, family=LLAMA if family == "llama" else None), "cpu", steps)


def precisions(device: str, name: str | None, family: str) -> Iterator[Result]:
    """Compare a twin in each precision with the CPU in float32."""
    for precision, bound in BOUNDS.items():
        config = twin(name, {"precision": precision}, family=LLAMA if family == "llama" else None)
        found = difference(losses(config, device, STEPS[device]), on_cpu(name, family, STEPS[device]))
        yield at_most(PART, f"{name or family} {precision}", found, bound, "nats", "loss against the CPU in float32")


def compiled(device: str, family: str) -> Iterator[Result]:
    """Compare compiled with eager, in float32 and bfloat16; in a rehearsal bfloat16 alone, with one layer."""
    for precision in ("bf16",) if device == "cpu" else ("fp32", "bf16"):
        plain = {"precision": precision}
        layers = {"layers": 1} if device == "cpu" else {}
        model = (LLAMA if family == "llama" else {}) | layers
        eager = losses(twin(None, plain, family=model), device, STEPS[device])
        fast = losses(twin(None, plain, {"performance": {"compile": "on"}}, family=model), device, STEPS[device])
        bound = SAME if precision == "fp32" else BOUNDS["bf16"]
        yield at_most(PART, f"compiled {family} {precision}", difference(fast, eager), bound, "nats", "against eager")


def fp8(device: str, recipe: str, family: str) -> Iterator[Result]:
    """Compare products in 8 bits with bfloat16, in loss and gradients, and compiled with eager."""
    if not has_fp8(device):
        raise NotAvailable("this card has no products in 8 bits")
    model = LLAMA if family == "llama" else {}

    def config(**performance: Any) -> RunConfig:
        return twin(None, {"precision": "bf16", "performance": performance}, family=model)

    steps, name = STEPS[device], f"fp8 {recipe} {family}"
    half, eager = losses(config(), device, steps), losses(config(fp8=recipe), device, steps)
    yield at_most(PART, f"{name} loss", difference(eager, half), BOUNDS["bf16"], "nats", "against bfloat16")
    exact, rough = (gradients(one, device) for one in (config(), config(fp8=recipe)))
    gap = ((rough - exact).norm() / exact.norm()).item()
    yield at_most(PART, f"{name} gradients", gap, FP8_GRADIENTS, "relative", "against bfloat16, over all parameters")
    if device == "cuda":
        compiled = losses(config(fp8=recipe, compile="on"), device, steps)
        yield at_most(PART, f"{name} compiled", difference(compiled, eager), BOUNDS["bf16"], "nats", "against eager")


def attention(device: str, kernel: str, name: str = "", fault: float = 1.0) -> Iterator[Result]:
    """Compare an attention kernel in bfloat16 with the plain one in float32, forward and backward.

    Lengths of all kinds of tiles; masks of two documents; logits near -120, at which some kernels lose rows whose
    softmax is masked (cuDNN 9.15 and newer: NaN with a mask where length % 128 == 64); two heads of keys and values
    for eight of queries; a single query, as in generation.

    Args:
        device: "cpu" or "cuda".
        kernel: one of `KERNELS`.
        name: name of the results.
        fault: factor of the output, of a rehearsal.
    """
    name = name or f"attention {kernel}"
    cases: dict[str, Callable[[int], tuple[float, str]]] = {
        "causal": lambda length: _gap(device, kernel, length, fault=fault),
        "documents": lambda length: _gap(device, kernel, length, masked=True, fault=fault),
        "documents, logits of -120": lambda length: _gap(device, kernel, length, masked=True, shift=31.0, fault=fault),
        "causal, 2 kv heads": lambda length: _gap(device, kernel, length, kv_heads=2, fault=fault),
        "one query, 2 kv heads": lambda length: _gap(device, kernel, length, kv_heads=2, queries=1, fault=fault),
    }
    for label, gap in cases.items():
        found: list[tuple[float, str]] = []
        try:
            found += [gap(length) for length in LENGTHS[device]]
        except RuntimeError as error:
            if not any(words in str(error) for words in ("No available kernel", "No viable backend")):
                raise
            yield Result(PART, f"{name} {label}", None, detail="this kernel does not support it here")
            continue
        worst, where = max(found, key=lambda one: math.inf if math.isnan(one[0]) else one[0])
        result = at_most(PART, f"{name} {label}", worst, 0.02, "relative", f"against math in float32; {where}")
        if kernel == "cudnn" and "documents" in label and not result.ok:  # `fast_kernels` never gives it a mask
            result = replace(result, ok=None, detail=f"{result.detail}; the engine never uses it with a mask")
        yield result


def _gap(
    device: str,
    kernel: str,
    length: int,
    masked: bool = False,
    shift: float = 0.0,
    kv_heads: int = 8,
    queries: int = 0,
    fault: float = 1.0,
) -> tuple[float, str]:
    """Largest relative error of output and gradients of a kernel, and where it is; NaN if there is one.

    Args:
        device: "cpu" or "cuda".
        kernel: one of `KERNELS`.
        length: length of keys and values.
        masked: mask of two documents in place of a causal one.
        shift: added to the first number of each query and subtracted from that of each key, so that the logits are
            near -shift² / 8; in this number the gradients cancel, and are not compared.
        kv_heads: heads of keys and values, for 8 of queries.
        queries: length of the queries, for a forward pass alone; 0 for that of the keys.
        fault: factor of the output.
    """
    generator = torch.Generator().manual_seed(length)
    sizes = [
        (2, heads, size or length, 64) for heads, size in ((8, queries), (kv_heads, 0), (kv_heads, 0), (8, queries))
    ]
    q, k, v, g = (torch.randn(size, generator=generator) for size in sizes)
    if shift:
        q[..., 0], k[..., 0] = shift, -shift
    inputs = [x.to(on(device).device, torch.bfloat16) for x in (q, k, v, g)]
    mask = torch.ones(length, length, dtype=torch.bool, device=inputs[0].device).tril()
    mask[length // 2 :, : length // 2] = False

    def run(backend: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        query, key, value = (x.to(dtype, copy=True).requires_grad_() for x in inputs[:3])
        with sdpa_kernel([backend]):
            y = fault * torch.nn.functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask if masked else None,
                is_causal=not masked and queries == 0,
                enable_gqa=kv_heads < 8,
            )
            if queries == 0:
                y.backward(inputs[3].to(dtype))
        return [y, *(x.grad[..., 1:] for x in (query, key, value) if x.grad is not None)]

    found = run(KERNELS[kernel], torch.bfloat16)
    fault = 1.0
    exact = run(KERNELS["math"], torch.float32)
    gaps = {
        what: ((a.float() - b).norm() / b.norm()).item()
        for what, a, b in zip(("output", "gradient of q", "of k", "of v"), found, exact, strict=False)
    }
    what = max(gaps, key=lambda one: math.inf if math.isnan(gaps[one]) else gaps[one])
    return gaps[what], f"worst: {what} at length {length}"


def variants(device: str) -> Iterator[Result]:
    """Compare activation checkpointing, offload and document masks with the plain run of the same numbers."""
    steps = STEPS[device]
    plain = losses(twin(), device, steps)
    for mode in ("selective", "full"):
        found = losses(twin(None, {"parallel": {"activation_checkpointing": mode}}), device, steps)
        yield at_most(PART, f"activation checkpointing {mode}", difference(found, plain), SAME, "nats", "against none")
    for zero in (0, 3):
        for placement in ("all", "optimizer", "auto"):
            parallel = {"zero": zero, "cpu_offload": True, "offload_placement": placement}
            found = losses(twin(None, {"parallel": parallel}), device, steps)
            name = f"offload {placement} zero {zero}"
            yield at_most(PART, name, difference(found, plain), SAME, "nats", "against no offload")
    documents = {"documents": {"mask_documents": True}}
    for precision in ("fp32", "bf16"):
        config = twin(None, documents, {"precision": precision})
        gap = difference(losses(config, device, steps), losses(twin(None, documents), "cpu", steps))
        yield at_most(PART, f"document masks {precision}", gap, BOUNDS[precision], "nats", "against the CPU")


def write_tokens(prefix: Path) -> None:
    """Write token files of learnable documents."""
    generator = np.random.Generator(np.random.Philox(3))
    lengths = generator.integers(40, 400, size=60)
    tokens = (generator.integers(1, 4, size=int(lengths.sum())).cumsum() % VOCAB).astype("<u2")
    bin_path(prefix).write_bytes(tokens.tobytes())
    write_index(idx_path(prefix), lengths, "<u2")


def resumed(device: str, precision: str) -> Iterator[Result]:
    """Compare an interrupted run with an uninterrupted one, bit for bit, in torch's deterministic mode.

    With `warn_only` the backward passes of flash and memory-efficient attention stay as they are, and cuDNN's is used.
    """
    torch.use_deterministic_algorithms(True, warn_only=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_tokens(Path(folder) / "train")
            base = {
                "precision": precision,
                "data": {"train": f"{folder}/train"},
                "checkpoints": {"interval": 3},
                "logging": {"tensorboard": False},
                "device": device,
                "model": {"dropout": 0.1},
                "schedule": {"decay_steps": 6},
            }
            ends = {"whole": (6,), "resumed": (3, 6)}
            weights = {}
            for name, steps in ends.items():
                for count in steps:
                    config = twin(None, base, {"steps": count, "output": f"{folder}/{name}"})
                    train(config, on(device))
                weights[name] = stored(config)
    finally:
        torch.use_deterministic_algorithms(False)
    unequal = [name for name, tensor in weights["whole"].items() if not torch.equal(tensor, weights["resumed"][name])]
    yield at_most(PART, f"resume {precision}", len(unequal), 0, "tensors", "that differ from an uninterrupted run")


def staged(device: str) -> Iterator[Result]:
    """Compare the CPU copies that a checkpoint is written from with the tensors, which training changes meanwhile."""
    generator = torch.Generator().manual_seed(2)
    sizes = dict.fromkeys(("weights", "exp_avg", "exp_avg_sq"), 1 << (16 if device == "cpu" else 24))
    copies: dict[str, torch.Tensor] = {}
    unequal = 0
    for _ in range(2):  # the second time into the memory of the first
        values = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
        state = {name: value.clone().to(on(device).device) for name, value in values.items()}
        copies = copy_to_cpu(state, copies)
        for tensor in state.values():
            tensor.add_(1)
        unequal += sum(not torch.equal(copies[name], value) for name, value in values.items())
    pinned = sum(copy.is_pinned() for copy in copies.values())
    detail = f"that differ from their copies; {pinned} of {len(copies)} in pinned memory"
    yield at_most(PART, "checkpoint staging", unequal, 0, "tensors", detail)


def stored(config: RunConfig) -> dict[str, torch.Tensor]:
    """Weights of a run's newest checkpoint."""
    checkpoint = newest_checkpoint(config.output)
    assert checkpoint is not None
    return open_weights(checkpoint).read()


def generation(device: str, family: str) -> Iterator[Result]:
    """Compare greedy tokens with those of the CPU, one prompt alone and eight in a batch."""
    shape = twin(None, family=LLAMA if family == "llama" else None).shape
    model = initialise(build_model(shape), 1).requires_grad_(False).eval()
    settings = SamplingSettings(temperature=0, max_new_tokens=24)
    prompts = [[(7 * row + place) % VOCAB for place in range(4 + row)] for row in range(8)]
    expected = [list(sequence.tokens) for sequence in continue_tokens(model, prompts, settings)]
    model.to(on(device).device)
    for label, given in (("alone", prompts[:1]), ("in a batch", prompts)):
        found = [list(sequence.tokens) for sequence in continue_tokens(model, given, settings)]
        unequal = sum(one != other for one, other in zip(found, expected, strict=False))
        yield at_most(PART, f"greedy {family} {label}", unequal, 0, "prompts", "whose tokens differ from the CPU's")


def served(device: str) -> Iterator[Result]:
    """Compare the texts that the real server answers, on the device and on the CPU."""
    for package in ("cyclopts", "fastapi", "uvicorn", "prometheus_client", "opentelemetry", "pyarrow", "orjson"):
        if importlib.util.find_spec(package) is None:
            raise NotAvailable(f"{package} is not installed")
    from tokenizers.pre_tokenizers import ByteLevel

    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))} | {END_OF_TEXT: 256}
    shape = build(RunConfig, twin().model_dump(), {"vocab": len(letters)}).shape
    weights = dict(initialise(build_model(shape), 1).named_parameters())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer").mkdir()
        save_tokenizer(Path(folder) / "tokenizer", letters, [])
        save_model(Path(folder) / "model", LazyWeights(shape, in_memory(weights)), Path(folder) / "tokenizer")
        texts = {place: answers(Path(folder) / "model", place) for place in dict.fromkeys(("cpu", device))}
    expected, found = texts["cpu"], texts[device]
    if not all(expected):
        raise RuntimeError("a text that the server answered is empty")
    unequal = sum(one != other for one, other in zip(found, expected, strict=True))
    yield at_most(PART, "served texts", unequal, 0, "prompts", "whose greedy texts differ from the CPU's")


def answers(model: Path, device: str) -> list[str]:
    """Greedy texts of some prompts by `gpt2train serve` on a device."""
    command = [sys.executable, "-m", "gpt2train", "serve", "--model", str(model), "--device", device, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        first = server.stdout.readline()
        if not first:
            raise RuntimeError(f"the server ended with {server.wait()}; its error is above")
        address = first.split()[-1].rstrip(",")
        body = {"prompt": ["Once", "A longer prompt than that"], "max_tokens": 16, "temperature": 0}
        request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as reply:
            return [choice["text"] for choice in json.load(reply)["choices"]]
    finally:
        server.terminate()
        server.wait(30)


def planted(fault: str) -> Iterator[Result]:
    """Fail in one way, for a rehearsal."""
    if fault == "crash":
        os._exit(9)
    if fault == "lost device":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    time.sleep(3_600)
    yield Result(PART, "never", True)


def checks(device: str, rehearsal: bool = False) -> dict[str, Check]:
    """All checks, those that find most first; in a rehearsal faults and one check of each kind."""
    found: dict[str, Check] = {}
    if rehearsal:
        found = {f"planted {fault}": partial(planted, fault) for fault in ("crash", "hang", "lost device")}
        name = "planted wrong kernel"
        found[name] = partial(attention, device, "flash", name, 1.05)
    for family in ("gpt2", "llama"):
        found[f"precisions {family}"] = partial(precisions, device, None, family)
        found[f"generation {family}"] = partial(generation, device, family)
    for kernel in KERNELS:
        found[f"attention {kernel}"] = partial(attention, device, kernel)
    found["variants"] = partial(variants, device)
    for precision in ("bf16",) if rehearsal else ("fp32", "bf16"):
        found[f"resume {precision}"] = partial(resumed, device, precision)
    found["staging"] = partial(staged, device)
    found["server"] = partial(served, device)
    for family in ("gpt2",) if rehearsal else ("gpt2", "llama"):
        found[f"compiled {family}"] = partial(compiled, device, family)
    twins: dict[str, str] = {}  # the first of the presets with equal twins
    for name in presets():
        if twins.setdefault(twin(name).model_dump_json(), name) == name:
            found[f"preset {name}"] = partial(precisions, device, name, "gpt2")
    for family in ("gpt2", "llama"):
        for recipe in ("tensorwise", "rowwise"):
            found[f"fp8 {recipe} {family}"] = partial(fp8, device, recipe, family)
    if rehearsal:
        for name in [name for name in found if name.startswith("preset ")][1:]:
            del found[name]
    return found


if __name__ == "__main__":
    arguments = set(sys.argv[2:])
    run_checks(
        PART,
        checks(sys.argv[1], "--rehearse" in arguments),
        arguments - {"--rehearse"},
        {"planted hang": HANG_REHEARSED},
    )
