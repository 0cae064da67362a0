"""Sample text that the model writes at each validation, on every layout.

Each token takes one forward of the whole sequence without a KV cache, in which all processes take part: for the few
tokens of a sample that is less work than an inference model beside the training would be, and it needs no memory for a
second copy of the weights. The noise of sampling comes from a generator of its own (Gumbel-max), so that training
computes the same numbers with and without samples, and the same text is drawn on every layout.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.config import RunConfig
from gpt2train.training.engine import Engine

DEFAULT_TOKENS = 32


def sample_length(config: RunConfig) -> int:
    """Tokens of a sample by the settings; 0 without samples."""
    tokens, parallel = config.validation.sample.tokens, config.parallel
    if tokens is not None:
        return tokens
    return 0 if parallel.zero == 3 or parallel.cpu_offload else DEFAULT_TOKENS


def write_sample(engine: Engine, prompt: Sequence[int], count: int) -> list[int]:
    """Sample the tokens that follow a prompt. Collective; the same tokens on every process.

    The prompt has at least one token. Fewer are written if the context ends before.
    """
    config, layout = engine.config, engine.layout
    settings, tokens = config.validation.sample, list(prompt)
    end = min(len(tokens) + count, config.model.context)
    length = min(-(-end // layout.tp) * layout.tp, config.model.context)  # slices of equal length (sequence parallel)
    source = (layout.pp - 1) * (engine.ctx.world // layout.pp)  # first process of the last pipeline stage
    generator = torch.Generator().manual_seed(settings.seed)
    head = engine.model_parts[-1]
    with engine.evaluating():
        while len(tokens) < end:
            # Causal attention: what is on the right of the last token has no effect on its logits.
            sequence = torch.tensor([tokens + [0] * (length - len(tokens))], device=engine.ctx.device)
            # Those of all positions would take 200 kB a token with GPT-2's vocabulary.
            last = len(tokens) - 1
            logits = engine.logits(sequence, lambda hidden, last=last: head.logits(hidden[:, last]))  # type: ignore[misc]
            chosen = torch.zeros(1, dtype=torch.int64)
            if logits is not None:
                chosen[0] = _draw(logits[0].cpu().double(), settings.temperature, generator)
            if engine.ctx.world > 1:
                dist.broadcast(chosen, source)
            tokens.append(int(chosen))
    return tokens[len(prompt) :]


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """Draw a token; logits are float64 [vocab]."""
    if temperature > 0:
        uniform = torch.rand(len(logits), dtype=torch.float64, generator=generator)
        # The largest is 0 at any temperature: a small one gives the most likely token, not the first infinite one.
        logits = (logits - logits.max()) / temperature - (-uniform.log()).log()
    return int(logits.argmax())
