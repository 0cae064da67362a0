"""Small models for the tests, and their continuations as plain lists of tokens."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt2train.data.tokenizer import END_OF_TEXT, load_tokenizer, save_tokenizer
from gpt2train.data.tokenizer_reader import read_files, tables_of
from gpt2train.inference.decoder import OpenedModel
from gpt2train.inference.generate import BATCH, SamplingSettings, continue_tokens
from gpt2train.model.causal_lm import CausalLM, Shape, build_model
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE, soft_cap


def lively(shape: Shape, seed: int = 3, noise: float = 0.3, dropout: float = 0.0) -> CausalLM:
    """An untrained model with larger weights, whose continuations are not one token over and over."""
    model = initialise(build_model(shape, dropout), seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    return model.requires_grad_(False).eval()


def generate_tokens(
    model: OpenedModel,
    prompts: Sequence[Sequence[int]],
    end: int | None,
    settings: SamplingSettings,
    batch: int = BATCH,
) -> list[list[int]]:
    """Continue each prompt and return the new tokens; the last one is `end` if the model produced it."""
    return [sequence.tokens for sequence in continue_tokens(model, prompts, settings, end=end, batch=batch)]


def plain_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab: int | None = None,
    softcap: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Compute `chunked_cross_entropy` from all logits at once."""
    logits = soft_cap((hidden.flatten(0, -2) @ weight[:vocab].t()).float(), softcap)
    loss = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum")
    if not z_loss:
        return loss
    return torch.stack((loss, z_loss * (logits.logsumexp(1).square() * (targets.flatten() != IGNORE)).sum()))


def small_bpe(bpe: Path, folder: Path, merges: int = 4000) -> Path:
    """The first merges of GPT-2's BPE alone: the harness makes logits of every position, 83 GB in all at 50,257."""
    vocab, pairs = tables_of(read_files(bpe), str(bpe))
    first = {token: number for token, number in vocab.items() if number < 256 + merges}
    folder.mkdir(parents=True)
    save_tokenizer(folder, first | {END_OF_TEXT: len(first)}, pairs[:merges])
    return folder


def noisy_model(open_data: Path, folder: Path, context: int) -> tuple[Path, GPT2]:
    """The folder of a small tokenizer, and a model of two layers in evaluation mode."""
    bpe = small_bpe(open_data / "bpe", folder / "bpe")
    shape = Shape(vocab=load_tokenizer(bpe).get_vocab_size(), layers=2, heads=2, hidden=32, context=context)
    return bpe, lively(shape, noise=0.05)
