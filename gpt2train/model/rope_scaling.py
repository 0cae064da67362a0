"""Settings of scaled rotary positions, in the terms of `transformers`; does not import torch.

Sources: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation" (linear);
Peng et al. 2023, "YaRN" (dynamic NTK, yarn); Grattafiori et al. 2024, "The Llama 3 Herd of Models" (llama3).
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gpt2train.settings import Settings, validated

REQUIRED = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # of llama3


class RopeScaling(Settings):
    """Scaling of the rotary frequencies; the fields are those of `rope_parameters` in a `config.json`."""

    rope_type: Literal["linear", "dynamic", "llama3", "yarn"]
    """Kind of scaling."""
    factor: float = Field(gt=0)
    """Ratio of the new length to the original one."""
    original_max_position_embeddings: int | None = Field(None, ge=1, le=2**31 - 1)
    """Original length in tokens."""
    low_freq_factor: float | None = Field(None, gt=0)
    """llama3: original length over the wavelength above which frequencies are divided by `factor`."""
    high_freq_factor: float | None = Field(None, gt=0)
    """llama3: original length over the wavelength below which frequencies are kept."""
    beta_fast: float | None = Field(None, gt=0)
    """yarn: rotations within the original length from which frequencies are kept; 32 if missing."""
    beta_slow: float | None = Field(None, gt=0)
    """yarn: rotations up to which frequencies are divided by `factor`; 1 if missing."""
    attention_factor: float | None = Field(None, ge=0)
    """yarn: factor of queries and keys; 0.1 ln(factor) + 1 if missing."""
    mscale: float | None = None
    """yarn: with `mscale_all_dim`, the attention factor is (0.1 mscale ln(factor) + 1) over the same of the other."""
    mscale_all_dim: float | None = None
    """yarn: see `mscale`."""
    truncate: bool | None = None
    """yarn: round the bounds of the ramp to whole dimensions; true if missing."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = REQUIRED if self.rope_type == "llama3" else REQUIRED[2:] if self.rope_type != "linear" else ()
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"rope_type {self.rope_type} needs {name}")
        if self.rope_type == "llama3" and self.low_freq_factor == self.high_freq_factor:
            raise ValueError(f"low_freq_factor and high_freq_factor are both {self.low_freq_factor:g}")
        return self


def parse_rope_scaling(text: str) -> RopeScaling | None:
    """Parse the option `rope_scaling`, a JSON object; None if it is empty.

    Raises:
        ValueError: it is no JSON object, names an unknown kind of scaling, or a field is wrong.
    """
    if not text:
        return None
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(table, dict):
        raise ValueError("a JSON object expected")
    return rope_scaling_of(table)


def rope_scaling_of(table: Mapping[str, Any]) -> RopeScaling | None:
    """Scaling of a table `rope_parameters` or `rope_scaling`; None for the type `default`.

    Fields that have no effect on the kind of scaling are left out, as in `transformers`.

    Raises:
        ValueError: the kind of scaling is unknown, or a field is wrong.
    """
    kind = table.get("rope_type", table.get("type", "default"))
    if kind == "default":
        return None
    fields = {
        "linear": (),
        "dynamic": REQUIRED[2:],
        "llama3": REQUIRED,
        "yarn": (*REQUIRED[2:], *list(RopeScaling.model_fields)[5:]),
    }
    if not isinstance(kind, str) or kind not in fields:
        raise ValueError(f"rope_type is {str(kind)[:40]!r}, but only default, {', '.join(fields)} are supported")
    given = {name: table[name] for name in ("factor", *fields[kind]) if name in table}
    return validated(RopeScaling, {"rope_type": kind} | given, "rope_scaling")
