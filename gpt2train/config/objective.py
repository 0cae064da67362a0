"""Settings of the training objective."""

from operator import not_
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from gpt2train.model.objectives import OBJECTIVES
from gpt2train.model.shape import Option
from gpt2train.settings import Settings, validated


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
