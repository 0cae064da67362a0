"""Layout of `T5ForConditionalGeneration` of `transformers`: T5 and T5 1.1.

There the output is divided by sqrt(d_model) if the head is tied. `transformers` 5 writes `tie_word_embeddings` = true
for every T5, and `scale_decoder_outputs` = false for those with a head of their own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2train.convert.hf_layout import MAX_LAYERS, HFLayout, size_of
from gpt2train.data.tokenizer import Tokenizer, padding_id
from gpt2train.errors import UserError
from gpt2train.model.families import EMBEDDING, HEAD, sizes
from gpt2train.model.shape import Shape
from gpt2train.model.t5_family import options_of

if TYPE_CHECKING:
    from gpt2train.model.lazy_weights import LazyTensor

SHARED = "shared.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # of the shared token embedding
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # in the published files of T5
TOP = {
    EMBEDDING: SHARED,
    HEAD: HEAD,
    "encoder_bias.weight": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "decoder_bias.weight": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "encoder_norm.weight": "encoder.final_layer_norm.weight",
    "ln_f.weight": "decoder.final_layer_norm.weight",
}
PARTS = {"q": "q", "k": "k", "v": "v", "proj": "o"}
# Names that transformers reads as those of T5.
ALIASES = {"hidden_size": "d_model", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
ALIASES |= {"head_dim": "d_kv"}


class T5Layout(HFLayout):
    """Layout of `T5ForConditionalGeneration`."""

    model_types = ("t5",)
    description = "an encoder and a decoder with relative position biases and RMSNorm"

    def config(self, shape: Shape, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
        """Return the fields of `config.json` that describe the architecture."""
        chosen = options_of(shape)
        return {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "vocab_size": shape.vocab,
            "d_model": shape.hidden,
            "d_kv": chosen.head_dim,
            "d_ff": chosen.inner,
            "num_layers": chosen.encoder_layers,
            "num_decoder_layers": shape.layers - chosen.encoder_layers,
            "num_heads": shape.heads,
            "relative_attention_num_buckets": chosen.buckets,
            "relative_attention_max_distance": chosen.max_distance,
            "feed_forward_proj": chosen.activation,
            "layer_norm_epsilon": chosen.norm_eps,
            "tie_word_embeddings": chosen.tied,
            "initializer_factor": 1.0,
            # Positions are relative, so that transformers has no limit; these are the lengths of the training.
            "n_positions": shape.context,
            "decoder_context": chosen.decoder_context,
        }

    def token_fields(self, shape: Shape, tokenizer: Tokenizer) -> dict[str, int]:
        """Return the fields of `config.json` that name tokens: the one with which the decoder begins, and padding."""
        padding = padding_id(tokenizer)
        start = options_of(shape).start_id
        return {"decoder_start_token_id": padding if start < 0 else start, "pad_token_id": padding}

    def shape(self, config: dict[str, Any], file: Path) -> Shape:
        """Read the shape as `HFLayout` does; a value that the model does not implement is a `UserError` too."""
        config = {ALIASES.get(key, key): value for key, value in config.items()}
        activation = config.get("feed_forward_proj", "relu")
        if activation not in ("relu", "gated-gelu"):
            stated = f"feed_forward_proj is {str(activation)[:40]!r}"
            raise UserError(f"{file}: {stated}, but only 'relu' and 'gated-gelu' are supported")
        encoder = size_of(file, config, "num_layers", MAX_LAYERS)
        decoder = size_of(file, config, "num_decoder_layers", default=encoder)
        context = size_of(file, config, "n_positions", default=512)
        options = {
            "encoder_layers": encoder,
            "decoder_context": size_of(file, config, "decoder_context", default=context),
            "head_dim": size_of(file, config, "d_kv"),
            "inner": size_of(file, config, "d_ff"),
            "activation": activation,
            "tied": bool(config.get("tie_word_embeddings", True) and config.get("scale_decoder_outputs", True)),
            "start_id": _start_id(config, file),
            "buckets": size_of(file, config, "relative_attention_num_buckets", default=32),
            "max_distance": size_of(file, config, "relative_attention_max_distance", default=128),
            "norm_eps": config.get("layer_norm_epsilon", 1e-6),
        }
        heads, hidden = size_of(file, config, "num_heads"), size_of(file, config, "d_model")
        sizes = {"layers": encoder + decoder, "heads": heads, "hidden": hidden, "context": context}
        return self.checked_shape(config, file, options, **sizes)

    def names(self, shape: Shape) -> dict[str, str]:
        """Map our name of every parameter to its name in the weights file."""
        return {name: TOP.get(name) or _in_block(name, shape) for name in sizes(shape)}

    def found(self, tensors: "Mapping[str, LazyTensor]", shape: Shape) -> "dict[str, LazyTensor]":
        """Skip copies of the token embedding, and add a head that the file leaves out since it equals the embedding.

        Raises:
            UserError: a stored copy differs from the token embedding.
        """
        theirs = {name: stored for name, stored in tensors.items() if name != UNUSED}
        tied = HEAD not in sizes(shape)
        for name in (*COPIES, *((HEAD,) if tied else ())):
            if name not in theirs:
                continue
            copy = theirs.pop(name)
            shared = theirs.setdefault(SHARED, copy)
            if not copy.equals(shared):
                remedy = "set tie_word_embeddings to false in config.json" if name == HEAD else "use the original file"
                raise UserError(f"{name} differs from {SHARED}, but the embedding of a T5 is shared; {remedy}")
        if not tied and HEAD not in theirs and SHARED in theirs:
            theirs[HEAD] = theirs[SHARED]
        return theirs


def _in_block(name: str, shape: Shape) -> str:
    """Name of a parameter of a block in the weights file."""
    _, number, rest = name.split(".", 2)
    chosen = options_of(shape)
    decoder = int(number) >= chosen.encoder_layers
    stack, layer = ("decoder", int(number) - chosen.encoder_layers) if decoder else ("encoder", int(number))
    module, _, kind = rest.rpartition(".")
    attention, _, part = module.partition(".")
    mlp = 2 if decoder else 1
    gated = chosen.activation == "gated-gelu"
    theirs = {
        "ln_1": "0.layer_norm",
        "ln_cross": "1.layer_norm",
        "ln_2": f"{mlp}.layer_norm",
        "gate": f"{mlp}.DenseReluDense.wi_0",
        "up": f"{mlp}.DenseReluDense.{'wi_1' if gated else 'wi'}",
        "down": f"{mlp}.DenseReluDense.wo",
        "attn": f"0.SelfAttention.{PARTS.get(part)}",
        "cross": f"1.EncDecAttention.{PARTS.get(part)}",
    }[attention]
    return f"{stack}.block.{layer}.layer.{theirs}.{kind}"


def _start_id(config: dict[str, Any], file: Path) -> int:
    """Token with which the decoder begins: by default the padding, which is 0 if the file does not name it."""
    value = config.get("decoder_start_token_id", config.get("pad_token_id", 0))
    if value is None:
        return -1
    if type(value) is not int or value < 0:
        raise UserError(f"{file}: decoder_start_token_id is {str(value)[:40]}; expected a token id")
    return value
