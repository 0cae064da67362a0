"""How fast prompts are continued: ours and `transformers.generate`, key-value cache on both, and the floor.

    python -m benchmarks.generate [--shape tiny|124m|345m|llama-tiny|llama-135m] [--batch 1 8] [--prompt 32]
                                  [--new 128] [--threads 1] [--device cpu|cuda] [--dtype float32|bfloat16] [--rounds 5]

The same random weights, greedy, no end before the last token. `floor` reads every weight once a token: a product of
one row with a matrix as large as all of them, which nothing that runs token by token beats at batch 1. Expected: at the
tiny shapes, which pay for Python and small kernels, 1.5 times the tokens of theirs or more; at 124M not less.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.pairs import compare, machine
from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.tensor_files import DTYPES
from gpt2train.inference.generate import continue_tokens
from gpt2train.inference.settings import SamplingSettings
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.init import initialise
from gpt2train.model.llama_family import complete_shape
from gpt2train.model.shape import Shape

SHAPES = {
    "tiny": Shape(vocab=4096, layers=4, heads=4, hidden=192, context=256),
    "124m": Shape(vocab=50257, layers=12, heads=12, hidden=768, context=1024),
    "345m": Shape(vocab=50257, layers=24, heads=16, hidden=1024, context=1024),
    "llama-tiny": complete_shape(
        Shape(4096, layers=4, heads=4, hidden=192, context=256, family="llama", options=(("kv_heads", 2),))
    ),
    "llama-135m": complete_shape(  # SmolLM2-135M
        Shape(
            49152,
            layers=30,
            heads=9,
            hidden=576,
            context=1024,
            family="llama",
            options=(("kv_heads", 3), ("inner", 1536), ("tied", True)),
        )
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape, dtype = SHAPES[options.shape], DTYPES[options.dtype]
    model = initialise(build_model(shape), 1).requires_grad_(False).eval()
    theirs = transformers_model(model, shape).to(options.device, dtype)
    model.to(options.device, dtype)
    where = torch.cuda.get_device_name() if options.device == "cuda" else machine()
    print(f"{where}, {options.threads} threads, torch {torch.__version__}, {options.dtype}")
    for batch in options.batch:
        generator = torch.Generator().manual_seed(batch)
        prompts = torch.randint(0, shape.vocab, (batch, options.prompt), generator=generator)
        settings = SamplingSettings(temperature=0, max_new_tokens=options.new)
        made: dict[str, list[list[int]]] = {}
        contestants: dict[str, Callable[[], Any]] = {
            "ours": partial(keep, made, "ours", partial(continue_ours, model, prompts.tolist(), settings)),
            "transformers": partial(
                keep, made, "theirs", partial(continue_theirs, theirs, prompts.to(options.device), options.new)
            ),
            "floor": floor(model, options.new),
        }
        title = f"{options.shape}, batch {batch}, prompt {options.prompt}, new {options.new}"
        # One thread is timed by the CPU: on a machine where others work too, the wall clock measures them.
        clock = time.process_time if options.device == "cpu" and options.threads == 1 else time.perf_counter
        compare(title, "tokens", batch * options.new, contestants, options.rounds, clock)
        pairs = list(zip(made["ours"], made["theirs"], strict=True))
        same = sum(a == b for left, right in pairs for a, b in zip(left, right, strict=True))
        print(f"  {same:,} of {batch * options.new:,} tokens are the same")


def keep(made: dict[str, list[list[int]]], name: str, call: Callable[[], list[list[int]]]) -> None:
    """Call, and keep what it made."""
    made[name] = call()


def continue_ours(model: CausalLM, prompts: list[list[int]], settings: SamplingSettings) -> list[list[int]]:
    """Our greedy continuation of prompts that run together."""
    return [one.tokens for one in continue_tokens(model, prompts, settings, batch=len(prompts))]


def transformers_model(model: CausalLM, shape: Shape) -> Any:
    """Their model of the same weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    layout, weights = layout_of(shape.family), model.state_dict()
    config = AutoConfig.for_model(**layout.config(shape), bos_token_id=0, eos_token_id=0)
    theirs = AutoModelForCausalLM.from_config(config)
    named = {their: layout.exported(our, weights[our], shape) for our, their in layout.names(shape).items()}
    theirs.load_state_dict(named, strict=False)
    theirs.tie_weights()
    return theirs.requires_grad_(False).eval()


def continue_theirs(model: Any, ids: torch.Tensor, new: int) -> list[list[int]]:
    """Their greedy continuation; no token ends it."""
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        use_cache=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    return made[:, ids.shape[1] :].tolist()


def floor(model: CausalLM, new: int) -> Callable[[], object]:
    """Read as many bytes as the weights have, once for every token of a row."""
    weight = model.wte.weight
    numbers = sum(p.numel() for name, p in model.named_parameters() if name != "wpe.weight")
    matrix = torch.zeros(numbers // 1024, 1024, dtype=weight.dtype, device=weight.device)
    vector = torch.zeros(1024, dtype=weight.dtype, device=weight.device)

    def read() -> None:
        for _ in range(new):
            matrix.mv(vector)
        if weight.is_cuda:
            torch.cuda.synchronize()

    return read


if __name__ == "__main__":
    main()
