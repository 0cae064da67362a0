"""Weights in memory, to and from Hugging Face's names and model folders."""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from torch import Tensor

from gpt2train.convert.gguf_tokenizer import PATTERNS
from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.huggingface import imported, read_model, save_model
from gpt2train.convert.settings import Dtype
from gpt2train.data.tokenizer import END_OF_TEXT, TOKENIZER, save_tokenizer
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyWeights, check_sizes, in_memory
from gpt2train.model.shape import Shape


def to_huggingface(weights: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert weights to Hugging Face's names and layouts, without the padding of the vocabulary."""
    check_sizes({name: tuple(tensor.shape) for name, tensor in weights.items()}, sizes(shape), "the checkpoint")
    layout = layout_of(shape.family)
    pairs = layout.names(shape).items()
    return {theirs: layout.exported(ours, weights[ours], shape).contiguous() for ours, theirs in pairs}


def from_huggingface(tensors: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert weights to our names and layouts in float32."""
    return imported(in_memory(tensors), shape, "the model").read()


def write_model(
    folder: str | PathLike[str],
    weights: Mapping[str, Tensor],
    shape: Shape,
    tokenizer: str | PathLike[str],
    dtype: Dtype = "float32",
) -> None:
    """Write weights in memory as a model folder."""
    save_model(Path(folder), LazyWeights(shape, in_memory(weights)), Path(tokenizer), dtype)


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


def write_tokenizer(folder: Path, entries: int) -> Path:
    """Write a tokenizer of single letters and `<|endoftext|>`."""
    folder.mkdir()
    letters = [chr(0x100 + number) for number in range(entries - 1)]
    save_tokenizer(folder, {letter: number for number, letter in enumerate([*letters, END_OF_TEXT])}, [])
    return folder


def split_as_qwen(folder: Path) -> None:
    """Give a tokenizer Qwen's normaliser and pattern."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    pattern = next(pattern for pattern, (name, _) in PATTERNS.items() if name == "qwen2")
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.save(str(folder / TOKENIZER))
