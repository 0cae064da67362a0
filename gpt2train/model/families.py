"""Registry of model families, and the sizes of their parameters; does not import torch.

A family is a class of models, such as GPT-2. Its specification names the class and gives the size of every parameter.
All else follows from the names of the parameters: tensor parallelism, initial values, weight decay, pipeline stages,
FLOPs and memory. The names are those of `gpt2train.model.causal_lm.CausalLM`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache

from gpt2train.errors import UserError
from gpt2train.model import gpt2_family, llama_family, t5_family
from gpt2train.model.shape import Shape, Sizes
from gpt2train.plugins import NoOptions, Registry
from gpt2train.settings import Settings

EMBEDDING, HEAD = "wte.weight", "lm_head.weight"
SCORE = "score.weight"  # output layer of a sequence classifier, in place of the output projection
LAST_STAGE = ("ln_f.", "lm_head.", "score.")  # the other parameters outside the blocks are on the first pipeline stage


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
        saved_in_float32: function from the shape to the numbers per token that a block saves in float32 whatever the
            precision, besides the residual stream.
        inner_dropout: function from the shape to the width at which dropout follows the activation of the MLP.
        layout: subclass of `gpt2train.convert.hf_layout.HFLayout`, the form of saved models; by default `config.json`
            and tensors under this project's names.
        decode_step: faster implementation of a decoding step, created with model and KV cache.
        first_blocks: function from the shape to the numbers of the blocks that begin a run of equal ones, in a model of
            several sequences one run for each of them; by default all blocks are equal.
        used_beside: function from the shape to the numbers of the blocks beside which each parameter outside the blocks
            is used: every pipeline stage with one of them has a copy. By default, and where a parameter is missing,
            `ln_f` and `lm_head` are used beside the last block and the others beside the first one, a tied token
            embedding beside both.
        encoder_readers: ends of the names of the linear layers of the decoder's blocks that read the encoder's output.
        head_tables: embeddings outside the blocks with a column per attention head, which tensor parallelism splits.
        value_tables: start of the names of the embeddings outside the blocks that are added to values: a row per token
            of the vocabulary, and `head_dim` columns per head of keys and values, which tensor parallelism splits.
        initial_std: function from name and shape to the standard deviation of the initial values of a matrix; by
            default, and where it returns None, that of GPT-2 (`gpt2train.model.init`).
        lengths: function from the shape to the lengths of the sequences of a sample, in a model of several; by default
            the context length.
        flops_per_sample: function from the shape to the FLOPs of forward and backward of a sample, in a model of which
            not all parameters see all tokens.
        independent_length: function from the shape to the longest input, in tokens, for which the logits of a text do
            not depend on the length of a batch; longer texts are scored beside those of their own length.
    """

    model: str
    sizes: Callable[[Shape], Sizes]
    residual: tuple[str, ...]
    options: type[Settings] = NoOptions
    complete: Callable[[Shape], Shape] = lambda shape: shape
    kv_heads: Callable[[Shape], int] = lambda shape: shape.heads
    more_saved: Callable[[Shape], int] = lambda shape: 0
    saved_in_float32: Callable[[Shape], int] = lambda shape: 0
    inner_dropout: Callable[[Shape], int] = lambda shape: 0
    layout: str = "gpt2train.convert.hf_layout:HFLayout"
    decode_step: str | None = None
    first_blocks: Callable[[Shape], tuple[int, ...]] = lambda shape: (0,)
    used_beside: Callable[[Shape], Mapping[str, Collection[int]]] | None = None
    encoder_readers: tuple[str, ...] = ()
    head_tables: tuple[str, ...] = ()
    value_tables: str | None = None
    initial_std: Callable[[str, Shape], float | None] = lambda name, shape: None
    lengths: Callable[[Shape], tuple[int, ...]] = lambda shape: (shape.context,)
    flops_per_sample: Callable[[Shape], int] | None = None
    independent_length: Callable[[Shape], int] = lambda shape: shape.context


MODELS: Registry[ModelFamily] = Registry("model family")
MODELS.register(
    "gpt2",
    ModelFamily(
        model="gpt2train.model.gpt2:GPT2",
        sizes=gpt2_family.gpt2_sizes,
        residual=("attn.proj", "down"),
        options=gpt2_family.GPT2Options,
        complete=gpt2_family.drop_published,
        more_saved=gpt2_family.gpt2_saved,
        layout="gpt2train.convert.hf_gpt2:GPT2Layout",
        decode_step="gpt2train.inference.fast_decode_step:FastDecodeStep",
    ),
)
MODELS.register(
    "llama",
    ModelFamily(
        model="gpt2train.model.llama:Llama",
        sizes=llama_family.llama_sizes,
        residual=("attn.proj", "down"),
        options=llama_family.LlamaOptions,
        complete=llama_family.complete_shape,
        kv_heads=lambda shape: llama_family.options_of(shape).kv_heads,
        more_saved=llama_family.more_saved,
        saved_in_float32=llama_family.head_norms,
        independent_length=llama_family.independent_length,
        used_beside=llama_family.used_beside,
        value_tables=llama_family.VALUE_TABLES,
        initial_std=llama_family.initial_std,
        layout="gpt2train.convert.hf_llama:LlamaLayout",
        decode_step="gpt2train.inference.fast_decode_step:FastLlamaStep",
    ),
)
MODELS.register(
    "t5",
    ModelFamily(
        model="gpt2train.model.t5:T5",
        sizes=t5_family.t5_sizes,
        residual=t5_family.RESIDUAL,
        options=t5_family.T5Options,
        complete=t5_family.complete_shape,
        more_saved=t5_family.more_saved,
        inner_dropout=t5_family.inner_dropout,
        layout="gpt2train.convert.hf_t5:T5Layout",
        first_blocks=t5_family.first_blocks,
        used_beside=t5_family.used_beside,
        encoder_readers=t5_family.ENCODER_READERS,
        head_tables=t5_family.HEAD_TABLES,
        initial_std=t5_family.initial_std,
        lengths=t5_family.sequence_lengths,
        flops_per_sample=t5_family.flops_per_sample,
    ),
)


@cache
def sizes(shape: Shape) -> Sizes:
    """Map the name of every parameter to its unsharded size; the token embedding includes its padding."""
    found = MODELS[shape.family].sizes(shape)
    if not shape.labels:
        return found
    return {name: size for name, size in found.items() if name != HEAD} | {SCORE: (shape.labels, shape.hidden)}


@cache
def block_sizes(shape: Shape, block: int = 0) -> Sizes:
    """Sizes of the parameters of one block, by their names in it."""
    start = f"blocks.{block}."
    return {name.removeprefix(start): size for name, size in sizes(shape).items() if name.startswith(start)}


def parameter_count(shape: Shape) -> int:
    """Number of parameters, including the padded vocabulary; a tied embedding counts once."""
    return sum(map(math.prod, sizes(shape).values()))


def context_length(shape: Shape) -> int:
    """Tokens that a model reads and writes at most: its context length, or with several sequences their sum."""
    return sum(MODELS[shape.family].lengths(shape))


def check_decoder_alone(shape: Shape, source: object) -> None:
    """Check that a model is a decoder alone, which predicts each token of a text from those before it.

    Raises:
        UserError: it has an encoder too; the message begins with `source`.
    """
    if len(MODELS[shape.family].lengths(shape)) > 1:
        raise UserError(
            f"{source} has an encoder and a decoder ({shape.family}), and no probability of a text by itself; use "
            "gpt2train generate"
        )


def check_language_model(shape: Shape, source: object) -> None:
    """Raise a UserError for a sequence classifier, which predicts no tokens."""
    if shape.labels:
        raise UserError(f"{source} is a classifier of {shape.labels} classes and predicts no tokens; give another")


def is_tied(shape: Shape) -> bool:
    """Return True if the output projection is the token embedding itself; a sequence classifier has none."""
    return not shape.labels and HEAD not in sizes(shape)


def is_residual(name: str, shape: Shape) -> bool:
    """Return True if a parameter belongs to a linear layer that writes to the residual stream."""
    return name.rpartition(".")[0].endswith(MODELS[shape.family].residual)


def last_product(shape: Shape, block: int = 0) -> str:
    """Name within a block of the weight of its last product; empty if none writes to the residual stream."""
    matrices = [name for name, size in block_sizes(shape, block).items() if len(size) > 1]
    return next((name for name in reversed(matrices) if is_residual(name, shape)), "")


def is_embedding(name: str) -> bool:
    """Return True if a matrix is only looked up, or looked up and tied to the output: all those outside the blocks."""
    return not name.startswith(("blocks.", HEAD, SCORE))


def is_lookup(name: str, shape: Shape) -> bool:
    """Return True if a parameter is an embedding that no matrix product reads."""
    return len(sizes(shape)[name]) > 1 and is_embedding(name) and not (name == EMBEDDING and is_tied(shape))


def is_value_table(name: str, shape: Shape) -> bool:
    """Return True if a parameter, or the module that has it, is an embedding that is added to values."""
    start = MODELS[shape.family].value_tables
    return start is not None and name.startswith(start)


def used_beside(name: str, shape: Shape) -> Collection[int]:
    """Numbers of the blocks beside which a parameter outside the blocks is used."""
    given = MODELS[shape.family].used_beside
    if given is not None and name in (blocks := given(shape)):
        return blocks[name]
    last = shape.layers - 1
    if name == EMBEDDING and is_tied(shape):
        return 0, last
    return (last,) if name.startswith(LAST_STAGE) else (0,)


def on_stage(name: str, shape: Shape, layers: Collection[int]) -> bool:
    """Return True if a parameter outside the blocks is on the pipeline stage of these layers; several stages may be."""
    return any(block in layers for block in used_beside(name, shape))


def shard_dim(name: str, shape: Shape, tp: int = 1) -> int | None:
    """Dimension of a parameter that tensor parallelism of a degree splits; None if it is replicated.

    Vocabulary and column-parallel layers are split by rows (0), row-parallel layers and tables with a column per head
    by columns (1). Such a table is replicated if the degree does not divide the heads, but that of values is not: it
    has as many rows as the vocabulary.
    """
    if name in (EMBEDDING, HEAD):
        return 0
    if is_value_table(name, shape):
        return 1
    module, _, kind = name.rpartition(".")
    if module in MODELS[shape.family].head_tables:
        return None if shape.heads % tp else 1
    if not name.startswith("blocks.") or len(sizes(shape)[f"{module}.weight"]) == 1:
        return None
    if is_residual(name, shape):
        return 1 if kind == "weight" else None
    return 0
