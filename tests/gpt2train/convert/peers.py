"""Models of transformers beside ours: weights away from their initial values, changed configs, distances of logits."""

import json
from pathlib import Path
from typing import Any

import torch

from gpt2train.convert.huggingface import read_model


def stirred(peer: Any, noise: float = 0.1) -> Any:
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return peer.eval()


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def difference(folder: Path, peer: Any, length: int = 64) -> float:
    """Largest difference of a logit, in standard deviations of the logits."""
    vocab = peer.config.vocab_size
    tokens = torch.randint(vocab, (3, length), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = read_model(folder)(tokens)[..., :vocab], peer(tokens).logits
    return float((ours - theirs).abs().max() / theirs.std())
