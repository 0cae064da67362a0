"""Cost of a validation's sample text and of its bits per byte beside that of its loss and of the steps, in turn.

    python -m benchmarks.validations
    python -m benchmarks.validations --shape tiny --rounds 5

One process, 64 samples of 256 tokens and a text of 32 tokens, as with the preset tiny; times are of the processor. The
bytes of the validation set are counted at the first validation of a start alone. Shares of the training count the steps
between two validations too, with the preset's interval of 100 steps of 2,048 tokens.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.measurements import SHAPES, VOCAB
from benchmarks.pairs import machine
from gpt2train.config import RunConfig
from gpt2train.data.bpe_tables import save_tokenizer
from gpt2train.data.indexed import write_index
from gpt2train.data.tokenizer import END_OF_TEXT
from gpt2train.data.training_data import packed_data
from gpt2train.launch.rank_process import StopRequest
from gpt2train.parallel.mesh import DistContext, join
from gpt2train.settings import build
from gpt2train.training.engine import Engine
from gpt2train.training.validation import RunText, Validation, _bytes

INTERVAL, SAMPLES = 100, 64


def measure(folder: Path, shape: str, rounds: int, ctx: DistContext) -> dict[str, float]:
    """Median seconds of a step, of the loss of a validation, of its sample text and of a count of its bytes."""
    run = folder / shape
    (run / "tokenizer").mkdir(parents=True)
    letters = [chr(0x100 + number) for number in range(VOCAB - 1)]
    save_tokenizer(run / "tokenizer", {name: number for number, name in enumerate([*letters, END_OF_TEXT])}, [])
    length = (SAMPLES + 1) * SHAPES[shape]["context"] + 1
    np.random.default_rng(1).integers(0, VOCAB, length, dtype=np.uint16).tofile(run / "tokens.bin")
    write_index(run / "tokens.idx", [length], "<u2")
    settings = {
        "model": SHAPES[shape] | {"dropout": 0.0},
        "batch": {"micro_batch": 4, "global_batch": 8},
        "schedule": {"warmup": 1},
        "validation": {"samples": SAMPLES},
        "data": {"train": str(run / "tokens"), "valid": str(run / "tokens")},
    }
    more = {"steps": 10, "precision": "fp32", "device": "cpu", "vocab": VOCAB, "output": str(run)}
    config = build(RunConfig, settings, more)
    engine = Engine(config, ctx)
    train, data = (packed_data(config, part) for part in ("train", "valid"))
    assert data is not None and train is not None
    validation, text = Validation(engine, data, StopRequest()), RunText.of(config)
    batches = [data.batch(range(start, start + 4)) for start in range(0, SAMPLES, 4)]
    batch = next(iter(train.training_batches(engine.layout.batches, 0, 1, micro=4, rank=0, ranks=1)))

    def step() -> None:
        total = engine.accumulate(batch.micro_batches, batch.targets, 1)
        engine.update(engine.measure(total, batch.targets, 1.0, False), 1e-4)

    calls: dict[str, Callable[[], object]] = {
        "step": step,
        "loss": lambda: engine.evaluate(batches),
        "sample": lambda: validation._sample(),
        "count": lambda: [_bytes(batch, text.bytes) for batch in batches],
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            began = time.process_time()
            call()
            if turn:  # the first turn warms up
                times[name].append(time.process_time() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="by default all")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(machine())
    ctx = join("cpu")
    with tempfile.TemporaryDirectory() as name:
        for shape in [options.shape] if options.shape else SHAPES:
            found = measure(Path(name), shape, options.rounds, ctx)
            whole = found["loss"] + INTERVAL * found["step"]
            print(
                f"{shape}: step {1e3 * found['step']:.0f} ms, loss of a validation {1e3 * found['loss']:.0f} ms; "
                f"sample text {1e3 * found['sample']:.0f} ms, {found['sample'] / whole:.2%} of the training; "
                f"bytes {1e3 * found['count']:.2f} ms, once",
                flush=True,
            )


if __name__ == "__main__":
    main()
