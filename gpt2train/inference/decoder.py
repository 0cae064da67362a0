"""Batched decoder with a KV cache, used by generation, scoring and the server.

A `Decoder` takes tokens and returns logits. It does not sample, has no tokenizer, and does not know when a sequence
ends.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import MODELS, context_length
from gpt2train.model.shape import Shape
from gpt2train.plugins import load

DecodeStep = Callable[[Sequence[int]], Tensor]
SCORED_ROWS = 1024  # rows of logits in memory at a time: 206 MB in float32 at a vocabulary of 50,257


class Decoder(Protocol):
    """Rows of sequences. Logits are float32 [rows, vocab] on the CPU, without the padding of the vocabulary."""

    shape: Shape
    rows: int
    """Maximum number of sequences."""
    context: int
    """Maximum number of tokens per sequence."""

    @property
    def lengths(self) -> Sequence[int]:
        """Current number of tokens of each row."""

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Append a row per non-empty prompt and return the logits after its last token, [prompts, vocab]."""

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row, in order, and return the logits after it, [rows, vocab]."""

    def select(self, sources: Sequence[int]) -> None:
        """Replace row i by the former row `sources[i]`; rows not listed are dropped, rows listed twice are copied."""

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits after every token of one sequence, [tokens, vocab]; the rows do not change."""


class DistributedModel(Protocol):
    """Model distributed over several processes, which creates its own decoders."""

    shape: Shape

    def decoder(self, rows: int, context: int | None = None) -> Decoder:
        """Create an empty decoder for `rows` sequences of up to `context` tokens."""


OpenedModel: TypeAlias = CausalLM | DistributedModel


def decoder_of(model: OpenedModel, rows: int, context: int | None = None) -> Decoder:
    """Create an empty decoder for `rows` sequences of up to `context` tokens, for a local or a distributed model."""
    return LocalDecoder(model, rows, context) if isinstance(model, CausalLM) else model.decoder(rows, context)


class LocalDecoder:
    """Decoder of a model on one device, or of one process's share of a model.

    Args:
        model: the model, in evaluation mode. On a process that shares it, its methods communicate, and the logits are
            those of the whole model on rank 0.
        rows: maximum number of sequences.
        context: maximum number of tokens per sequence; None for all that the model reads and writes.
        whole: True for a model on one device, which takes the faster step of its family.
    """

    def __init__(self, model: CausalLM, rows: int, context: int | None = None, whole: bool = True) -> None:
        self.model, self.shape, self.rows = model, model.shape, rows
        self.context = min(context or context_length(self.shape), context_length(self.shape))
        self.cache = model.new_cache(rows, self.context)
        decode_step = MODELS[self.shape.family].decode_step
        self.decode_step: DecodeStep | None = load(decode_step)(model, self.cache) if whole and decode_step else None

    @property
    def lengths(self) -> Sequence[int]:
        return self.cache.lengths

    @torch.inference_mode()
    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        tokens, lengths = padded(prompts).to(self.cache.device), [len(prompt) for prompt in prompts]
        return self.model.logits(self.model.prefill(tokens, lengths, self.cache)).cpu()

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        if self.decode_step is not None:
            return self.decode_step(tokens).float().cpu()
        added = torch.tensor(tokens, device=self.cache.device)
        return self.model.logits(self.model.step(added, self.cache)).cpu()

    def select(self, sources: Sequence[int]) -> None:
        self.cache.select(sources)

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        return self.model.logits(self.model.hidden(torch.tensor([tokens], device=self.cache.device))[0]).cpu()


@torch.inference_mode()
def score_targets(
    model: CausalLM,
    sequences: Sequence[Sequence[int]],
    rows: Sequence[int],
    positions: Sequence[int],
    targets: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Score as `gpt2train.evaluate.scoring_request.DistributedScorer.score` defines.

    Args:
        model: model in this process, or one process's share of it; the results are on rank 0.
        sequences: input token ids.
        rows: index of each target's sequence.
        positions: position in the sequence after which each target follows.
        targets: token ids to score.
    """
    device = next(model.parameters()).device
    hidden = model.hidden(padded(sequences).to(device))[rows, positions]
    log_probs, greedy = model.log_probs(hidden, torch.tensor(targets, device=device), chunk=SCORED_ROWS)
    return log_probs.cpu(), greedy.cpu()


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Token ids [rows, longest], int64, padded on the right."""
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for row, numbers in enumerate(rows):
        tokens[row, : len(numbers)] = torch.tensor(numbers)
    return tokens
