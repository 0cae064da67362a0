"""A model's weights, read one at a time: what every format is read into and written from.

Nobody needs the whole model in memory to turn one format into another: a format gives the size of each tensor and how
to get it, under this project's names and in its layouts, and the writer of another asks for one after the other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt2train.checkpoint.format import Dtype
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.shape import Shape

DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Stored:
    """A tensor that lies somewhere."""

    size: tuple[int, ...]
    """Known without reading it."""
    read: Callable[[torch.dtype], Tensor]
    """Gets it, whole, on the CPU."""


@dataclass(frozen=True)
class Weights:
    """A model: its sizes, and each parameter by this project's name."""

    shape: Shape
    tensors: Mapping[str, Stored]

    def read(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """All of them, in memory."""
        return {name: stored.read(dtype) for name, stored in self.tensors.items()}


def empty_model(shape: Shape) -> GPT2:
    """A model without memory behind its parameters."""
    with torch.device("meta"):
        return GPT2(shape)


def sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name -> size of every parameter; the token embedding with its padding."""
    return {name: tuple(parameter.shape) for name, parameter in empty_model(shape).named_parameters()}


def in_memory(tensors: Mapping[str, Tensor]) -> dict[str, Stored]:
    """Tensors that are here already, as ones that could lie anywhere."""
    return {name: Stored(tuple(tensor.shape), tensor.to) for name, tensor in tensors.items()}


def pad_vocabulary(rows: Tensor, total: int) -> Tensor:
    """Repeat the last row until there are `total`.

    A padded row takes part in Megatron-LM's softmax. One of zeros would have the logit 0, which in a trained GPT-2 is
    far above those of real tokens (OpenAI's lie around -35 and lower); a copy has the logit of a token that is rare.
    """
    missing = total - len(rows)
    return rows if missing <= 0 else torch.cat((rows, rows[-1:].expand(missing, -1)))


def check_sizes(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Compare names and sizes.

    Raises:
        UserError: names the first tensor that is missing, too many or of another size.
    """
    for name in sorted(expected.keys() - found.keys()):
        raise UserError(f"{what} has no tensor {name}; it belongs to another model or is incomplete")
    for name in sorted(found.keys() - expected.keys()):
        raise UserError(f"{what} has a tensor {name} that a GPT-2 of this size has not; it belongs to another model")
    for name, size in expected.items():
        if found[name] != size:
            raise UserError(f"{what}: {name} has the shape {found[name]}, but the sizes say {size}")
