"""Registry of model families, and the sizes of their parameters; does not import torch.

A family is a class of models, such as GPT-2. Its specification names the class and gives the size of every parameter.
All else follows from the names of the parameters: tensor parallelism, initial values, weight decay, pipeline stages,
FLOPs and memory. The names are those of `gpt2train.model.causal_lm.CausalLM`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from gpt2train.model.gpt2_family import GPT2Options, drop_published, gpt2_saved, gpt2_sizes
from gpt2train.model.llama_family import LlamaOptions, complete_shape, llama_sizes, more_saved, options_of
from gpt2train.model.shape import Shape, Sizes, all_blocks
from gpt2train.plugins import NoOptions, Registry
from gpt2train.settings import Settings

__all__ = [
    "EMBEDDING",
    "HEAD",
    "MODELS",
    "ModelFamily",
    "Sizes",
    "all_blocks",
    "block_sizes",
    "is_embedding",
    "is_lookup",
    "is_residual",
    "is_tied",
    "on_stage",
    "parameter_count",
    "shard_dim",
    "sizes",
]

EMBEDDING, HEAD = "wte.weight", "lm_head.weight"
LAST_STAGE = ("ln_f.", "lm_head.")  # the other parameters outside the blocks are on the first pipeline stage


@dataclass(frozen=True)
class ModelFamily:
    """Specification of a model family.

    Classes are named as "module:Class" and imported on first use, since torch takes 1-2 s.

    Attributes:
        model: subclass of `gpt2train.model.causal_lm.CausalLM`, created with shape and dropout.
        sizes: function from the shape to the unsharded size of every parameter by name, in the model's order.
        residual: ends of the names of the linear layers that write to the residual stream. They are row-parallel, and
            their initial values are divided by sqrt(2 * layers); all other linear layers are column-parallel.
        options: settings model of the settings that only this family has.
        complete: function that gives the options of a shape that follow from others their values; raises ValueError if
            they do not fit. By default the shape is complete as it is.
        kv_heads: function from the shape to the number of heads of keys and values; by default all heads.
        more_saved: function from the shape to the numbers per token that a block saves for the backward pass besides
            the residual stream, outputs of norms and of column-parallel layers, and inputs of row-parallel layers; for
            the memory that `gpt2train plan` shows.
        layout: subclass of `gpt2train.convert.hf_layout.HFLayout`, the form of saved models; by default `config.json`
            and tensors under this project's names.
        decode_step: faster implementation of a decoding step, created with model and KV cache.
    """

    model: str
    sizes: Callable[[Shape], Sizes]
    residual: tuple[str, ...]
    options: type[Settings] = NoOptions
    complete: Callable[[Shape], Shape] = lambda shape: shape
    kv_heads: Callable[[Shape], int] = lambda shape: shape.heads
    more_saved: Callable[[Shape], int] = lambda shape: 0
    layout: str = "gpt2train.convert.hf_layout:HFLayout"
    decode_step: str | None = None


MODELS: Registry[ModelFamily] = Registry("model family")
MODELS.register(
    "gpt2",
    ModelFamily(
        model="gpt2train.model.gpt2:GPT2",
        sizes=gpt2_sizes,
        residual=("attn.proj", "down"),
        options=GPT2Options,
        complete=drop_published,
        more_saved=gpt2_saved,
        layout="gpt2train.convert.hf_gpt2:GPT2Layout",
        decode_step="gpt2train.inference.fast_decode_step:FastDecodeStep",
    ),
)
MODELS.register(
    "llama",
    ModelFamily(
        model="gpt2train.model.llama:Llama",
        sizes=llama_sizes,
        residual=("attn.proj", "down"),
        options=LlamaOptions,
        complete=complete_shape,
        kv_heads=lambda shape: options_of(shape).kv_heads,
        more_saved=more_saved,
        layout="gpt2train.convert.hf_llama:LlamaLayout",
    ),
)


@cache
def sizes(shape: Shape) -> Sizes:
    """Map the name of every parameter to its unsharded size; the token embedding includes its padding."""
    return MODELS[shape.family].sizes(shape)


def block_sizes(shape: Shape) -> Sizes:
    """Sizes of the parameters of one block, by their names in it."""
    return {name.removeprefix("blocks.0."): s for name, s in sizes(shape).items() if name.startswith("blocks.0.")}


def parameter_count(shape: Shape) -> int:
    """Number of parameters, including the padded vocabulary; a tied embedding counts once."""
    return sum(map(math.prod, sizes(shape).values()))


def is_tied(shape: Shape) -> bool:
    """Return True if the output projection is the token embedding itself."""
    return HEAD not in sizes(shape)


def is_residual(name: str, shape: Shape) -> bool:
    """Return True if a parameter belongs to a linear layer that writes to the residual stream."""
    return name.rpartition(".")[0].endswith(MODELS[shape.family].residual)


def is_embedding(name: str) -> bool:
    """Return True if a matrix is only looked up, or looked up and tied to the output: all those outside the blocks."""
    return not name.startswith(("blocks.", HEAD))


def is_lookup(name: str, shape: Shape) -> bool:
    """Return True if a parameter is an embedding that no matrix product reads."""
    return len(sizes(shape)[name]) > 1 and is_embedding(name) and not (name == EMBEDDING and is_tied(shape))


def on_stage(name: str, shape: Shape, *, first: bool, last: bool) -> bool:
    """Return True if a parameter outside the blocks is on the first, or last, pipeline stage.

    A tied token embedding is on both.
    """
    if name == EMBEDDING and is_tied(shape):
        return first or last
    return last if name.startswith(LAST_STAGE) else first


def shard_dim(name: str, shape: Shape) -> int | None:
    """Dimension of a parameter that tensor parallelism splits; None if it is replicated.

    Vocabulary and column-parallel layers are split by rows (0), row-parallel layers by columns (1).
    """
    if name in (EMBEDDING, HEAD):
        return 0
    module, _, kind = name.rpartition(".")
    if not name.startswith("blocks.") or len(sizes(shape)[f"{module}.weight"]) == 1:
        return None
    if is_residual(name, shape):
        return 1 if kind == "weight" else None
    return 0
