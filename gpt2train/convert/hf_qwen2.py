"""Models with biases of queries, keys and values alone, with a tokenizer that is not Qwen's: as Llama, not as Qwen2.

Qwen2 is the only class of `transformers` with these biases, but its `AutoTokenizer` opens every Qwen2 folder as Qwen's
tokenizer, whatever `tokenizer_config.json` says: another pattern, and NFC (5.23, `Qwen2Tokenizer` and
`MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS`). A Llama with biases of the whole attention, of which that of the output is
zero, computes the same. A field in `config.json` says that the model has no bias there.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tokenizers

from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import UserError
from gpt2train.model.shape import Shape

if TYPE_CHECKING:
    from gpt2train.model.lazy_weights import LazyTensor

FIELD = "gpt2train_attention_bias"  # in `config.json`
AS_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": True,
    "mlp_bias": False,
    FIELD: "qkv",
}
OUTPUT_BIAS = re.compile(r"model\.layers\.\d+\.self_attn\.o_proj\.bias")


def is_written_as_llama(shape: Shape, tokenizer: Tokenizer | None) -> bool:
    """Return True if a Qwen2 is saved as Llama: the tokenizer is not Qwen's, and Llama has heads of this size.

    Args:
        shape: shape of a Qwen2.
        tokenizer: tokenizer that is saved with the model, if any.
    """
    return tokenizer is not None and not is_qwen_tokenizer(tokenizer) and shape.hidden % shape.heads == 0


def is_qwen_tokenizer(tokenizer: Tokenizer) -> bool:
    """Return True if a tokenizer normalises and splits texts as Qwen's."""
    from gpt2train.convert.gguf_tokenizer import PATTERNS, pattern_of  # of GGUF files, which a Qwen2 alone asks for

    if not isinstance(tokenizer, tokenizers.Tokenizer):
        return False
    plain = json.loads(tokenizer.to_str())
    name, _ = PATTERNS.get(pattern_of(plain["pre_tokenizer"]) or "", ("", False))
    return name == "qwen2" and plain["normalizer"] == {"type": "NFC"} and plain["model"]["type"] == "BPE"


def zero_biases(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Sizes of the biases of zero that are stored for a Llama, by their names in the weights file."""
    return {f"model.layers.{layer}.self_attn.o_proj.bias": (shape.hidden,) for layer in range(shape.layers)}


def drop_zero_biases(tensors: "Mapping[str, LazyTensor]") -> "dict[str, LazyTensor]":
    """Remove the biases of the attention's output from the tensors of a weights file.

    Raises:
        UserError: one is not zero: another program has trained the model further.
    """
    for name, stored in tensors.items():
        if OUTPUT_BIAS.fullmatch(name) and not stored.is_zero():
            raise UserError(f"{name} is not zero, but config.json has {FIELD} = qkv; remove this field from it")
    return {name: stored for name, stored in tensors.items() if not OUTPUT_BIAS.fullmatch(name)}
