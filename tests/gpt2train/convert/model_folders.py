"""Weights in memory, to and from Hugging Face's names and model folders."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from torch import Tensor

from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.huggingface import imported, save_model
from gpt2train.convert.settings import Dtype
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
    return imported(in_memory(tensors), shape).read()


def write_model(
    folder: str | PathLike[str],
    weights: Mapping[str, Tensor],
    shape: Shape,
    tokenizer: str | PathLike[str],
    dtype: Dtype = "float32",
) -> None:
    """Write weights in memory as a model folder."""
    save_model(Path(folder), LazyWeights(shape, in_memory(weights)), Path(tokenizer), dtype)
