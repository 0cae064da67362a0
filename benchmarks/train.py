"""Training steps: ours beside GPT2LMHeadModel or LlamaForCausalLM of `transformers`, each in its own process, in turn.

    python -m benchmarks.train --preset tiny                           CPU, float32, one thread
    python -m benchmarks.train --preset 124m --micro-batch 4 --rounds 2
    python -m benchmarks.train --device cuda --preset 345m --compile   bfloat16 autocast

Same shape, batch, dtype and optimizer (fused AdamW, clipping), no dropout. The row `products` is the floor: as many
FLOPs as a step has by the usual formula (6N + 12LHQT), done as plain matrix products on this machine. MFU takes that
formula and the maker's dense bfloat16 peak (989 TFLOP/s for an H200). Expected: not slower than transformers, at half
its peak memory at most.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any, cast

from benchmarks.pairs import compare, machine, table
from benchmarks.trainer import CONTESTANTS, DEFAULT, OUT_OF_MEMORY, Task
from gpt2train.model.families import parameter_count
from gpt2train.model.llama_family import complete_shape
from gpt2train.model.shape import Shape
from gpt2train.monitoring.gpu_peaks import PEAKS
from gpt2train.monitoring.metrics import flops_per_token

# Published shapes and small ones; the number beside each is the micro-batch on a CPU and on a GPU.
SHAPES = {
    "tiny": (Shape(vocab=4096, layers=4, heads=4, hidden=192, context=256), 4, 256),
    "llama-tiny": (
        complete_shape(Shape(4096, 4, 4, 192, context=256, family="llama", options=(("kv_heads", 2),))),
        4,
        256,
    ),
    "6x384": (Shape(vocab=50257, layers=6, heads=6, hidden=384, context=256), 4, 256),
    "124m": (Shape(vocab=50257, layers=12, heads=12, hidden=768, context=1024), 2, 32),
    "345m": (Shape(vocab=50257, layers=24, heads=16, hidden=1024, context=1024), 1, 16),
    "1542m": (Shape(vocab=50257, layers=48, heads=25, hidden=1600, context=1024), 1, 8),
}


class Contestant:
    """A process that trains when asked to.

    Args:
        name: one of `benchmarks.trainer.CONTESTANTS`.
        task: what it does in a step.
        steps: steps of a call.
        threads: threads of the matrix products on a CPU.
        options: further arguments of `subprocess.Popen`.
    """

    command: Sequence[str] = (sys.executable, "-m", "benchmarks.trainer")

    def __init__(self, name: str, task: Task, steps: int, threads: int, **options: Any) -> None:
        command = [*self.command, name, task.to_json()]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TRANSFORMERS_VERBOSITY": "error"}
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, **options
        )
        self.name, self.steps, self.rounds = name, steps, list[dict[str, float]]()

    def __call__(self) -> None:
        """Make some steps and keep the figures that the process prints for them.

        Raises:
            MemoryError: the device has too little memory.
            SystemExit: the process has ended.
        """
        ask, answer = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        try:
            print(self.steps, file=ask, flush=True)
            figures = json.loads(answer.readline())
            if OUT_OF_MEMORY in figures:
                self.process.wait()
                raise MemoryError(f"{self.name}: {figures[OUT_OF_MEMORY]}")
            self.rounds.append(figures)
        except (OSError, json.JSONDecodeError) as error:
            raise SystemExit(f"{self.name} ended with exit code {self.process.wait()}; see its error above") from error

    def spent(self, clock: str) -> float:
        """Seconds so far, by `wall` or `cpu`."""
        return sum(result[clock] for result in self.rounds)

    def close(self) -> None:
        """End the process."""
        cast(IO[str], self.process.stdin).close()
        self.process.wait()


def main() -> None:
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="tiny", choices=SHAPES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--micro-batch", type=int, default=0, help="samples at once; 0: the preset's")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches of a step")
    parser.add_argument("--context", type=int, default=0, help="tokens of a sample; 0: the preset's")
    parser.add_argument("--steps", type=int, default=0, help="of one measured call; 0: 4 for tiny and on a GPU, else 1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the matrix products on a CPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile on both sides")
    parser.add_argument("--only", nargs="+", default=DEFAULT, choices=CONTESTANTS, help="the first is ours")
    options = parser.parse_args()

    shape, on_cpu, on_gpu = SHAPES[options.preset]
    on_device = on_gpu if options.device == "cuda" else on_cpu
    if options.context:
        shape = Shape(**(vars(shape) | {"context": options.context}))
    task = Task(shape, options.micro_batch or on_device, options.accumulation, options.device, options.compile)
    steps = options.steps or (4 if options.preset.endswith("tiny") or options.device == "cuda" else 1)

    print(machine())
    print(
        f"{options.preset}: {parameter_count(shape):,} parameters, context {shape.context}, "
        f"{task.micro_batch} x {task.accumulation} samples a step, {task.device}{', compiled' if task.compile else ''}"
    )
    contestants = {name: Contestant(name, task, steps, options.threads) for name in options.only}
    clock = "wall" if task.device == "cuda" else "cpu"  # a CPU is shared with others; a GPU's time is the wall's
    other = "cpu" if clock == "wall" else "wall"
    compare(
        f"training by {clock} time",
        "tokens",
        steps * task.tokens,
        contestants,
        options.rounds,
        lambda: sum(contestant.spent(clock) for contestant in contestants.values()),
    )
    print(f"the same by {other} time")
    table("tokens", steps * task.tokens, {n: [t[other] for t in c.rounds[1:]] for n, c in contestants.items()})
    summary(task, steps, contestants, clock)
    for contestant in contestants.values():
        contestant.close()


def summary(task: Task, steps: int, contestants: dict[str, Contestant], clock: str) -> None:
    """Print loss, peak memory and hardware use of each."""
    first = next(iter(contestants.values()))
    flops = flops_per_token(task.shape)
    print(f"{flops / 1e9:.4g} GFLOP a token (6N + 12LHQT)")
    for name, contestant in contestants.items():
        last, peak = contestant.rounds[-1], contestant.rounds[-1]["peak"]
        rate = flops * steps * task.tokens / statistics.median(result[clock] for result in contestant.rounds[1:])
        use = f", MFU {rate / PEAKS['H200']:.1%} of 989 TFLOP/s" if task.device == "cuda" else ""
        ratio = f" (ours = {first.rounds[-1]['peak'] / peak:.2f}x)" if contestant is not first else ""
        print(
            f"  {name:<28} loss {last['loss']:.4f}, peak memory {peak / 2**20:,.0f} MiB{ratio}, "
            f"{rate / 1e12:.4g} TFLOP/s{use}"
        )


if __name__ == "__main__":
    try:
        main()
    except MemoryError as error:
        sys.exit(f"error: {error}; give a smaller --micro-batch")
