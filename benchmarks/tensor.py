"""What tensor parallelism costs in computing: ours, torch's own, and one process that does all of the work.

    python -m benchmarks.tensor [--processes 2] [--size small|wide]

CPU seconds of all processes together, for forward, backward and a fused AdamW step in fp32: what is above one process
is the price of being cut. Sending is no part of it, since processes on one machine hardly send. Expected: less than
torch's `parallelize_module`.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.pairs import compare, machine
from benchmarks.peers import torch_tensor_parallel
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.shape import Shape
from gpt2train.parallel.grad_norm import align_grad_placements
from gpt2train.parallel.mesh import join
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel

# Sizes, and samples of a step: overheads show in one, products fill the other.
SIZES = {
    "small": (Shape(vocab=1024, layers=4, heads=4, hidden=128, context=64), 8),
    "wide": (Shape(vocab=50257, layers=6, heads=6, hidden=384, context=256), 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run(*SIZES[options.size], options.rounds)
        return
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    sys.exit(subprocess.run([*torchrun, "-m", "benchmarks.tensor", *sys.argv[1:]], env=environment).returncode)


def run(shape: Shape, samples: int, rounds: int) -> None:
    """Measure on the processes of a torchrun job; the first one prints."""
    place = join("cpu")
    mesh = init_device_mesh("cpu", (place.world,), mesh_dim_names=("tp",))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, shape.vocab, (samples, shape.context + 1), generator=generator)

    def processor_seconds() -> float:
        total = torch.tensor(time.process_time(), dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()

    def contestant(prepare: Callable[[GPT2], object], backward: Callable[[GPT2, Tensor, Tensor], object]) -> Callable:
        model = initialise(GPT2(shape), 5)
        prepare(model)
        # A group for each kind of tensor: a fused step cannot mix them, and torch's plan leaves some as they are.
        kinds: dict[type, list[Tensor]] = {}
        for parameter in model.parameters():
            kinds.setdefault(type(parameter.data), []).append(parameter)
        optimizer = torch.optim.AdamW([{"params": group} for group in kinds.values()], lr=1e-4, fused=True)

        def step() -> None:
            backward(model, tokens[:, :-1], tokens[:, 1:])
            align_grad_placements(list(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()

        return step

    def ours(model: GPT2, tokens: Tensor, targets: Tensor) -> None:
        model(tokens, targets).backward()

    whole = contestant(lambda model: None, ours)
    contestants = {
        "ours": contestant(lambda model: apply_tensor_parallel(model, mesh, False), ours),
        "ours, sequence parallel": contestant(lambda model: apply_tensor_parallel(model, mesh, True), ours),
        "torch's parallelize_module": contestant(
            lambda model: torch_tensor_parallel.parallelize(model, mesh), torch_tensor_parallel.backward
        ),
        "one process": lambda: whole() if place.is_rank0 else None,
    }
    with contextlib.ExitStack() as stack:
        if place.is_rank0:
            print(machine())
        else:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))  # noqa: PTH123
        title = f"a step of {shape.layers} x {shape.hidden}, vocabulary {shape.vocab}, cut in {place.world}"
        compare(title, "tokens", samples * shape.context, contestants, rounds, clock=processor_seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
