"""Scaled rotary positions in the form of llama.cpp's GGUF files; `gguf` is not imported.

| architecture | linear | llama3 | yarn |
|---|---|---|---|
| `llama`, `arcee` | tensor of divisors | tensor | tensor, and a factor of queries and keys |
| `qwen3` | keys `rope.scaling.…` | refused | keys; refused with other bounds of the ramp than the default ones |

`dynamic` is refused: the frequencies of llama.cpp do not follow from the length of a text. llama.cpp has keys for the
bounds of yarn's ramp (`yarn_beta_fast`), but none of these architectures reads them.
"""

import math

import torch

from gpt2train.errors import UserError
from gpt2train.model.lazy_weights import LazyTensor
from gpt2train.model.llama_family import LlamaOptions
from gpt2train.model.rope_scaling import RopeScaling, parse_rope_scaling
from gpt2train.model.rotary import scaled_frequencies

Metadata = dict[str, str | bool | int | float]

WITH_DIVISORS = ("llama", "arcee")  # architectures that read DIVISORS
DIVISORS = "rope_freqs.weight"  # of the frequencies, float32 [head_dim / 2]
ATTENTION = "rope.scaling.attn_factor"


def rope_form(architecture: str, chosen: LlamaOptions) -> tuple[Metadata, dict[str, LazyTensor]]:
    """Keys and tensors of scaled rotary positions, the keys without the prefix of the architecture.

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

    def read(dtype: torch.dtype) -> torch.Tensor:
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
