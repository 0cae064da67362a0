"""Models in the form of llama.cpp's GGUF files: architecture, metadata and tensors; `gguf` is not imported.

The keys are those of the specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), the names of the
tensors those of `llama-arch.cpp`. What an architecture of llama.cpp does not compute is refused, not dropped.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpt2train.convert.hf_gpt2 import split_heads
from gpt2train.convert.hf_layout import PADDED
from gpt2train.convert.hf_llama import model_type_of, own_options
from gpt2train.errors import UserError
from gpt2train.model import gpt2_family, llama_family, t5_family
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights
from gpt2train.model.llama_family import LlamaOptions
from gpt2train.model.rope_scaling import RopeScaling, parse_rope_scaling
from gpt2train.model.rotary import scaled_frequencies
from gpt2train.model.shape import Shape

Metadata = dict[str, str | bool | int | float]

T5_DISTANCE = 128  # max_distance, a constant in llama.cpp
WITH_DIVISORS = ("llama", "arcee")  # architectures that read DIVISORS
DIVISORS = "rope_freqs.weight"  # of the frequencies, float32 [head_dim / 2]
ATTENTION = "rope.scaling.attn_factor"
TOP = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "lm_head": "output",
    "encoder_norm": "enc.output_norm",
    "encoder_bias": "enc.blk.0.attn_rel_b",
    "decoder_bias": "dec.blk.0.attn_rel_b",
}
BLOCK = {
    "ln_1": "attn_norm",
    "attn.qkv": "attn_qkv",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "attn.proj": "attn_output",
    "ln_cross": "cross_attn_norm",
    "cross.q": "cross_attn_q",
    "cross.k": "cross_attn_k",
    "cross.v": "cross_attn_v",
    "cross.proj": "cross_attn_o",
    "ln_2": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@dataclass(frozen=True)
class GGUFModel:
    """Model in llama.cpp's form."""

    architecture: str  # name of the architecture, `general.architecture`
    metadata: Metadata  # keys of the architecture, with its name as the prefix
    tensors: dict[str, LazyTensor]  # tensors by llama.cpp's names, in the model's order


def gguf_model(weights: LazyWeights) -> GGUFModel:
    """Return a model in llama.cpp's form.

    Raises:
        UserError: no architecture of llama.cpp computes the model.
    """
    shape = weights.shape
    forms = {"gpt2": _gpt2, "llama": _llama, "t5": _t5}
    if shape.family not in forms:
        raise UserError(f"llama.cpp has no architecture for the model family {shape.family}; GGUF cannot be written")
    return forms[shape.family](weights)


def _gpt2(weights: LazyWeights) -> GGUFModel:
    """GPT-2; biases that a model does not have are written as zeros, which change nothing."""
    shape = weights.shape
    chosen = gpt2_family.options_of(shape)
    if chosen.activation != "gelu_new":
        raise refused(f"activation = {chosen.activation}", "its GPT-2 has gelu_new alone")
    if shape.heads * shape.head_dim != shape.hidden:
        raise refused(f"head_dim = {shape.head_dim}", "its GPT-2 has heads of hidden / heads")
    complete = replace(shape, options=tuple(chosen.model_copy(update={"bias": True}).model_dump().items()))
    zeros = {
        name: LazyTensor(size, lambda dtype, size=size: torch.zeros(size, dtype=dtype))  # type: ignore[misc]
        for name, size in sizes(complete).items()
    }

    def form(name: str, tensor: Tensor) -> Tensor:
        return split_heads(tensor, shape.heads) if ".qkv." in name else tensor

    return GGUFModel(
        "gpt2",
        {
            "context_length": shape.context,
            "embedding_length": shape.hidden,
            "block_count": shape.layers,
            "feed_forward_length": chosen.inner,
            "attention.head_count": shape.heads,
            "attention.layer_norm_epsilon": 1e-5,
        },
        _tensors(replace(weights, tensors={**zeros, **weights.tensors}), form),
    )


def _llama(weights: LazyWeights) -> GGUFModel:
    """Llama, Qwen2, Qwen3 or Arcee, by the options; biases of queries, keys and values exist in each."""
    shape = weights.shape
    chosen = llama_family.options_of(shape)
    for option in own_options(chosen):
        raise refused(option, "none of its architectures of this kind has it")
    if chosen.activation == "relu2":
        if chosen.qk_norm:
            raise refused("activation = relu2 with qk_norm", "no architecture has both")
        architecture = "arcee"
    elif chosen.qk_norm:
        architecture = "qwen3"
    else:
        square = shape.heads * chosen.head_dim == shape.hidden
        # A llama with biases computes the same, and more scalings of rotary positions.
        plain = square and not chosen.rope_scaling
        architecture = "qwen2" if model_type_of(shape) == "qwen2" and plain else "llama"
    if architecture != "llama" and chosen.attention_bias == "all":
        raise refused("attention_bias = all", f"its {architecture} has no bias of the attention's output")
    if architecture != "llama" and chosen.mlp_bias:
        raise refused("mlp_bias = true", f"its {architecture} has none")
    rotated = {"attn.q": shape.heads, "attn.k": chosen.kv_heads} if architecture in WITH_DIVISORS else {}

    def form(name: str, tensor: Tensor) -> Tensor:
        heads = rotated.get(name.split(".", 2)[-1].rpartition(".")[0])
        return tensor if heads is None else interleave_halves(tensor, heads)

    rope_keys, divisors = rope_form(architecture, chosen)
    return GGUFModel(
        architecture,
        {
            "vocab_size": shape.vocab,
            "context_length": shape.context,
            "embedding_length": shape.hidden,
            "block_count": shape.layers,
            "feed_forward_length": chosen.inner,
            "attention.head_count": shape.heads,
            "attention.head_count_kv": chosen.kv_heads,
            "attention.key_length": chosen.head_dim,
            "attention.value_length": chosen.head_dim,
            "attention.layer_norm_rms_epsilon": chosen.norm_eps,
            "rope.dimension_count": chosen.head_dim,
            "rope.freq_base": chosen.rope_theta,
            **rope_keys,
        },
        {**_tensors(weights, form), **divisors},
    )


def rope_form(architecture: str, chosen: LlamaOptions) -> tuple[Metadata, dict[str, LazyTensor]]:
    """Keys and tensors of scaled rotary positions, the keys without the prefix of the architecture.

    | architecture | linear | llama3 | yarn |
    |---|---|---|---|
    | `llama`, `arcee` | tensor of divisors | tensor | tensor, and a factor of queries and keys |
    | `qwen3` | keys `rope.scaling.…` | refused | keys; refused with other bounds of the ramp than the default ones |

    `dynamic` is refused: the frequencies of llama.cpp do not follow from the length of a text. llama.cpp has keys for
    the bounds of yarn's ramp (`yarn_beta_fast`), but none of these architectures reads them.

    Raises:
        UserError: the architecture does not compute the scaling.
    """
    scaling = parse_rope_scaling(chosen.rope_scaling)
    if scaling is None:
        return {}, {}
    if scaling.rope_type == "dynamic":
        raise refused("rope_scaling of the kind dynamic", "its frequencies do not follow from the length of a text")
    if architecture not in WITH_DIVISORS:
        return _keys(architecture, scaling), {}
    _, factor = scaled_frequencies(chosen.head_dim, chosen.rope_theta, scaling, 0)

    def read(dtype: torch.dtype) -> Tensor:
        plain, scaled = (scaled_frequencies(chosen.head_dim, chosen.rope_theta, by, 0)[0] for by in (None, scaling))
        return (plain / scaled).to(dtype)

    tensor = LazyTensor((chosen.head_dim // 2,), read)
    return {} if factor == 1.0 else {ATTENTION: factor}, {DIVISORS: tensor}


def refused(option: str, reason: str) -> UserError:
    """Error for an option of a model that llama.cpp does not compute."""
    return UserError(f"the model has {option}, which llama.cpp cannot compute: {reason}; serve it by gpt2train serve")


def _keys(architecture: str, scaling: RopeScaling) -> Metadata:
    """Keys by which an architecture scales the frequencies by itself."""
    found: Metadata = {"rope.scaling.type": scaling.rope_type, "rope.scaling.factor": scaling.factor}
    if scaling.rope_type == "linear":
        return found
    if scaling.rope_type != "yarn":
        raise refused(f"rope_scaling of the kind {scaling.rope_type}", f"its {architecture} has linear and yarn alone")
    for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0), ("truncate", True)):
        value = getattr(scaling, name)
        if value not in (None, default):
            raise refused(f"rope_scaling with {name} = {str(value).lower()}", f"its {architecture} has {default}")
    found["rope.scaling.original_context_length"] = scaling.original_max_position_embeddings or 0
    _, factor = scaled_frequencies(4, 10_000.0, scaling, 0)
    own = 1.0 if scaling.factor <= 1 else 0.1 * math.log(scaling.factor) + 1.0  # which llama.cpp multiplies with it
    return found if factor == own else found | {ATTENTION: factor / own}


def _t5(weights: LazyWeights) -> GGUFModel:
    """T5; the division of the output by sqrt(hidden), which llama.cpp does not do, is put into the last norm."""
    shape = weights.shape
    chosen = t5_family.options_of(shape)
    if chosen.max_distance != T5_DISTANCE:
        raise refused(f"max_distance = {chosen.max_distance}", f"its T5 has {T5_DISTANCE}")
    decoder = shape.layers - chosen.encoder_layers
    if decoder > chosen.encoder_layers:
        blocks = f"{decoder} blocks in the decoder and {chosen.encoder_layers} in the encoder"
        raise refused(blocks, "its cache has a place for each block of the encoder")

    def form(name: str, tensor: Tensor) -> Tensor:
        return tensor * shape.hidden**-0.5 if name == "ln_f.weight" and chosen.tied else tensor

    return GGUFModel(
        "t5",
        {
            "context_length": shape.context,
            "embedding_length": shape.hidden,
            "block_count": chosen.encoder_layers,
            "decoder_block_count": decoder,
            "feed_forward_length": chosen.inner,
            "attention.head_count": shape.heads,
            "attention.key_length": chosen.head_dim,
            "attention.value_length": chosen.head_dim,
            "attention.layer_norm_epsilon": chosen.norm_eps,
            "attention.layer_norm_rms_epsilon": chosen.norm_eps,
            "attention.relative_buckets_count": chosen.buckets,
        },
        _tensors(weights, form),
    )


def interleave_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorder rows [head, (first, second), half] -> [head, half, (first, second)] in dimension 0.

    llama.cpp rotates adjacent pairs of a head in its Llama, in place of the two halves.
    """
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def gguf_name(name: str, shape: Shape) -> str:
    """Return llama.cpp's name of a parameter."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        found = f"dec.{TOP[module]}" if shape.family == "t5" and module == "ln_f" else TOP[module]
        return f"{found}.{kind}"
    _, number, part = module.split(".", 2)
    if shape.family != "t5":
        return f"blk.{number}.{BLOCK[part]}.{kind}"
    first = t5_family.options_of(shape).encoder_layers
    stack, block = ("dec", int(number) - first) if int(number) >= first else ("enc", int(number))
    return f"{stack}.blk.{block}.{'attn_o' if part == 'attn.proj' else BLOCK[part]}.{kind}"


def _tensors(weights: LazyWeights, form: Callable[[str, Tensor], Tensor]) -> dict[str, LazyTensor]:
    """Tensors by llama.cpp's names, without the padding of the vocabulary."""
    shape = weights.shape

    def converted(name: str, stored: LazyTensor) -> LazyTensor:
        if name not in PADDED:
            return LazyTensor(stored.size, lambda dtype: form(name, stored.read(dtype)))
        return LazyTensor((shape.vocab, *stored.size[1:]), lambda dtype: stored.read(dtype)[: shape.vocab])

    return {gguf_name(name, shape): converted(name, stored) for name, stored in weights.tensors.items()}
