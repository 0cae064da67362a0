"""Settings of the model's shape, and of the training objective."""

from operator import not_
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from gpt2train.model.families import MODELS
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.model.shape import PADDING, Option, Shape
from gpt2train.settings import NaturalNumber, Settings, validated


class ModelSettings(Settings):
    """Shape of the model. The vocabulary size comes from the tokenizer of the data."""

    # Left out of a run's files for a GPT-2, so that files and fingerprints of older runs stay the same.
    family: Annotated[str, AfterValidator(MODELS.known)] = Field("gpt2", exclude_if=lambda family: family == "gpt2")
    """Model family: gpt2, llama, t5, or one that a plug-in adds."""
    layers: int = Field(12, ge=1, le=10_000)
    """Transformer blocks."""
    heads: int = Field(12, ge=1, le=2**16)
    """Attention heads; must divide `hidden`, unless the family has an option for the size of a head."""
    hidden: int = Field(768, ge=1, le=2**18)
    """Width of the residual stream."""
    context: int = Field(1024, ge=2, le=2**24)
    """Length of a training sample in tokens, and the context length of the model unless `max_positions` is larger."""
    max_positions: NaturalNumber = Field(0, exclude_if=not_)
    """Rows of the position embedding, the context length of the trained model, if other than `context` (Megatron-LM's
    `--max-position-embeddings`). Rows above `context` are not trained. 0: `context`."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on embeddings, attention and both residual branches, as published; 0 is best for few epochs."""
    labels: NaturalNumber = Field(0, exclude_if=not_)
    """Classes of a sequence classifier, whose output layer takes the place of the output projection. 0: language
    model."""
    # Last, since the values of some follow from the fields above.
    options: dict[str, Option] = Field({}, exclude_if=not_)
    """Settings that only the family has: docs/train/models.md has those of gpt2 and llama, docs/train/t5.md those of
    t5."""

    @field_validator("options")
    @classmethod
    def _complete(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Check the options against the family's own settings model, and add its defaults."""
        given = info.data
        if not {"family", "layers", "heads", "hidden", "context", "max_positions"} <= given.keys():  # reported
            return options
        family = MODELS[given["family"]]
        chosen = validated(family.options, options, f"family {given['family']}").model_dump(mode="json")
        shape = Shape(
            vocab=PADDING,
            layers=given["layers"],
            heads=given["heads"],
            hidden=given["hidden"],
            context=given["max_positions"] or given["context"],
            family=given["family"],
            options=tuple(chosen.items()),
        )
        return dict(family.complete(shape).options)

    def shape(self, vocab: int) -> Shape:
        """Sizes that determine the parameters of a model with a vocabulary of `vocab` tokens."""
        options = tuple(self.options.items())
        return Shape(vocab, self.layers, self.heads, self.hidden, self.positions, self.family, options, self.labels)

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelSettings":
        if self.hidden % self.heads and not self.options.get("head_dim"):
            raise ValueError(f"hidden {self.hidden} is not a multiple of heads {self.heads}")
        if self.heads % (kv_heads := MODELS[self.family].kv_heads(self.shape(PADDING))):
            raise ValueError(f"kv_heads {kv_heads} does not divide heads {self.heads}")
        return self

    @model_validator(mode="after")
    def _positions_suffice(self) -> "ModelSettings":
        if 0 < self.max_positions < self.context:
            raise ValueError(f"max_positions {self.max_positions} is below context {self.context}; raise it, or set 0")
        return self

    @property
    def positions(self) -> int:
        """Rows of the position embedding."""
        return self.max_positions or self.context


class ObjectiveSettings(Settings):
    """Objective of the training: its data and its loss."""

    name: Annotated[str, AfterValidator(OBJECTIVES.known)] = "next_token"
    """next_token, span_corruption for the family t5, classification or answers (docs/train/finetune.md), or one that a
    plug-in adds."""
    z_loss: float = Field(0.0, ge=0, le=1, exclude_if=not_)
    """Factor of a second term of the training loss, (log Z)^2, where Z is the sum of exp(logit) over the vocabulary. It
    keeps logits from drifting, above all in half precision; PaLM has 1e-4. It is logged as `z_loss` and is not part of
    `loss`, which stays comparable."""
    options: dict[str, Option] = Field({}, exclude_if=not_)
    """Settings that only this objective has; those of span_corruption are in docs/train/t5.md."""

    @field_validator("options")
    @classmethod
    def _complete(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Check the options against the objective's own settings model, and add its defaults."""
        if "name" not in info.data:  # reported
            return options
        name = info.data["name"]
        return validated(OBJECTIVES[name].options, options, f"objective {name}").model_dump(mode="json")
