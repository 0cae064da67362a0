"""A small model trained on some last words; a model with fresh weights would predict none of them."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from gpt2train.convert.huggingface import write_model
from gpt2train.data.tokenizer import END_OF_TEXT, load_tokenizer, read_tables, save_tokenizer
from gpt2train.evaluate.lambada import openai_pairs
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise

BATCH = 64


def small_bpe(bpe: Path, folder: Path, merges: int = 4000) -> Path:
    """The first merges of GPT-2's BPE alone: the harness makes logits of every position, 83 GB in all at 50,257."""
    vocab, pairs = read_tables(bpe)
    first = {token: number for token, number in vocab.items() if number < 256 + merges}
    folder.mkdir(parents=True)
    save_tokenizer(folder, first | {END_OF_TEXT: len(first)}, pairs[:merges])
    return folder


def learn_last_words(passages: Sequence[str], bpe: Path, steps: int = 30, context: int = 128) -> GPT2:
    """Train on the targets of the passages alone, until some are right and some are not."""
    tokenizer = load_tokenizer(bpe)
    shape = Shape(vocab=tokenizer.get_vocab_size(), layers=1, heads=2, hidden=32, context=context)
    model = initialise(GPT2(shape), 3)
    pairs = [p for p in openai_pairs(tokenizer, passages) if len(p.context) + len(p.target) <= context]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        some = [pairs[i % len(pairs)] for i in range(step * BATCH, (step + 1) * BATCH)]
        tokens = torch.zeros(BATCH, max(len(p.context) + len(p.target) for p in some), dtype=torch.int64)
        rows, places = [], []
        for row, pair in enumerate(some):
            ids = pair.context + pair.target
            tokens[row, : len(ids)] = torch.tensor(ids)
            places += range(len(pair.context), len(ids))
            rows += [row] * len(pair.target)
        hidden = model.hidden(tokens)[rows, [place - 1 for place in places]]
        F.cross_entropy(F.linear(hidden, model.wte.weight), tokens[rows, places]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.requires_grad_(False).eval()


def write(model: GPT2, folder: Path, bpe: Path) -> Path:
    """The model as a folder that transformers loads."""
    write_model(folder, dict(model.state_dict()), model.shape, bpe)
    return folder
