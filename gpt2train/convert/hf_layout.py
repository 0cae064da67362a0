"""Form of a saved model: the fields of `config.json`, and names and layouts of the tensors in the weights file.

Each model family has a layout. The one of this module, the default, keeps this project's names. The layout of a family
that `transformers` knows translates to its names (`gpt2train.convert.hf_gpt2`). A layout imports no torch, so that a
command reads `config.json` without it.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError

from gpt2train.config import ModelSettings
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import UserError
from gpt2train.model.families import EMBEDDING, HEAD, MODELS, is_value_table, sizes
from gpt2train.model.shape import Shape, pad_vocabulary
from gpt2train.plugins import load
from gpt2train.settings import explain

if TYPE_CHECKING:
    from torch import Tensor

    from gpt2train.model.lazy_weights import LazyTensor

MAX_LAYERS, MAX_SIZE = 10_000, 2**24  # larger than any model; a file with more is damaged
QUANTIZED = ("quantization_config", "quantization")  # fields of transformers and of MLX
PADDED = (EMBEDDING, HEAD)  # parameters with a row per token; saved without the padding of the vocabulary


class HFLayout:
    """Layout of a family that only this project knows.

    Args:
        family: name of the family.
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    """Values of `model_type` in a `config.json` of this family, the one that is written first, for one that
    `transformers` has; by default the name of the family."""
    description: ClassVar[str] = "a decoder"  # architecture in a few words, for the model card

    def __init__(self, family: str) -> None:
        self.family = family

    def in_transformers(self, shape: Shape) -> bool:
        """Return True if the package `transformers` loads the folder of a model."""
        return bool(self.model_types) and self.missing_in_transformers(shape) is None

    def missing_in_transformers(self, shape: Shape) -> str | None:
        """Return the option for which `convert --to huggingface` refuses a model; by default it writes every one."""
        return None

    def config(self, shape: Shape, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
        """Return the fields of `config.json` of a model that is saved with a tokenizer, if it is with one."""
        return {
            "model_type": self.family,
            "architectures": [load(MODELS[self.family].model).__name__],
            "vocab_size": shape.vocab,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "hidden_size": shape.hidden,
            "max_position_embeddings": shape.context,
            "family_options": dict(shape.options),
        }

    def token_fields(self, shape: Shape, tokenizer: Tokenizer) -> dict[str, int]:
        """Return further fields of `config.json` that name tokens, besides those that begin and end a text."""
        return {}

    def shape(self, config: dict[str, Any], file: Path) -> Shape:
        """Read the shape from the fields of `config.json`.

        Raises:
            UserError: a field is missing or wrong.
        """
        return self.checked_shape(
            config,
            file,
            config.get("family_options", {}),
            layers=size_of(file, config, "num_hidden_layers", MAX_LAYERS),
            heads=size_of(file, config, "num_attention_heads"),
            hidden=size_of(file, config, "hidden_size"),
            context=size_of(file, config, "max_position_embeddings"),
        )

    def checked_shape(self, config: dict[str, Any], file: Path, options: Any, **sizes: int) -> Shape:
        """Return the shape with these options and sizes, and with the vocabulary in the fields of `config.json`.

        Raises:
            UserError: a setting is wrong.
        """
        fields, vocab = {"family": self.family, "options": options, **sizes}, size_of(file, config, "vocab_size")
        try:
            return ModelSettings.model_validate(fields).shape(vocab)
        except ValidationError as error:
            raise UserError(explain(error, ModelSettings, str(file))) from error

    def names(self, shape: Shape) -> dict[str, str]:
        """Map our name of every parameter to its name in the weights file."""
        return {name: name for name in sizes(shape)}

    def sizes(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        """Map our name of every parameter to its size in the weights file."""
        return {name: (shape.vocab, *size[1:]) if _padded(name, shape) else size for name, size in sizes(shape).items()}

    def zeros(self, shape: Shape, tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
        """Map names to sizes of further tensors of the weights file, zeros: parameters that our model does not have."""
        return {}

    def exported(self, name: str, tensor: "Tensor", shape: Shape) -> "Tensor":
        """Convert a tensor, of our name, to the layout of the weights file, without the padding of the vocabulary."""
        return tensor[: shape.vocab] if _padded(name, shape) else tensor

    def imported(self, name: str, tensor: "Tensor", shape: Shape) -> "Tensor":
        """Convert one tensor of the weights file to our layout, with padded vocabulary; the inverse of `exported`."""
        return pad_vocabulary(tensor, shape.padded_vocab) if _padded(name, shape) else tensor

    def found(self, tensors: "Mapping[str, LazyTensor]", shape: Shape) -> "dict[str, LazyTensor]":
        """Rename and select the tensors of a weights file, of any version of its writer, to those of `names`.

        Raises:
            UserError: a tensor shows that the model is not of this family.
        """
        return dict(tensors)


def _padded(name: str, shape: Shape) -> bool:
    """Return True if a parameter has a row per token, and is saved without the padding of the vocabulary."""
    return name in PADDED or is_value_table(name, shape)


def size_of(file: Path, config: dict[str, Any], key: str, maximum: int = MAX_SIZE, default: int | None = None) -> int:
    """Read a size from `config.json`, a whole number from 1 to `maximum`; the default if it is missing or null.

    Raises:
        UserError: it is missing, without a default, or out of bounds.
    """
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 1 <= value <= maximum:
        problem = "is missing" if key not in config else f"is {repr(value)[:40]}"
        raise UserError(f"{file}: the size {key} {problem}; expected a whole number from 1 to {maximum:,}")
    return value


@cache
def layout_of(family: str) -> HFLayout:
    """Return the layout of a family."""
    layout: HFLayout = load(MODELS[family].layout)(family)
    return layout


def layout_of_config(config: dict[str, Any], file: Path) -> HFLayout:
    """Return the layout of the family that a `config.json` names.

    Raises:
        UserError: there is no such family, or the weights are quantized.
    """
    if quantized := next((key for key in QUANTIZED if config.get(key)), None):
        remedy = "take the model in float32, bfloat16 or float16"
        raise UserError(f"{file}: {quantized} says that the weights are quantized; {remedy}")
    # Files without a model type are those of OpenAI's published GPT-2.
    wanted = config.get("model_type", "gpt2")
    known: list[str] = []
    for layout in map(layout_of, MODELS):
        model_types = layout.model_types or (layout.family,)
        if wanted in model_types:
            return layout
        known += model_types
    raise UserError(f"{file}: model_type is {wanted!r}, but only {' or '.join(map(repr, known))} is supported")
