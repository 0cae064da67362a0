"""Lazy weights of a model, the common representation of all formats.

A format's reader returns the size of each tensor and a function that reads it, under this project's names and in its
layouts; a format's writer requests one tensor after the other. The whole model is never in memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt2train.errors import UserError
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.shape import Shape


@dataclass(frozen=True)
class LazyTensor:
    """Tensor that is read on request."""

    size: tuple[int, ...]
    """Size of the tensor, known without reading it."""
    read: Callable[[torch.dtype], Tensor]
    """Function that reads the whole tensor to the CPU."""

    def equals(self, other: "LazyTensor") -> bool:
        """Return True if two tensors have the same size and values."""
        return self is other or (self.size == other.size and self.read(torch.float32).equal(other.read(torch.float32)))

    def read_within(self, name: str, dtype: torch.dtype) -> Tensor:
        """Read the whole tensor in a data type that has all of its numbers.

        Args:
            name: name of the tensor, for error messages.
            dtype: data type.

        Raises:
            UserError: a number is beyond the range of the data type, and would become infinite.
        """
        found = self.read(dtype)
        if dtype == torch.float16 and found.isinf().any() and not self.read(torch.float32).isinf().any():
            raise beyond_half(name)
        return found

    def is_zero(self) -> bool:
        """Return True if all values are zero."""
        return not self.read(torch.float32).count_nonzero()


@dataclass(frozen=True)
class LazyWeights:
    """Model whose parameters are read on request, by this project's names."""

    shape: Shape
    tensors: Mapping[str, LazyTensor]
    labels: tuple[str, ...] = ()
    """Names of the classes of a classifier, if they are known."""

    def read(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Read all parameters into memory."""
        return {name: stored.read(dtype) for name, stored in self.tensors.items()}


def empty_model(shape: Shape) -> CausalLM:
    """Create a model on the meta device, without memory for its parameters."""
    with torch.device("meta"):
        return build_model(shape)


def in_memory(tensors: Mapping[str, Tensor]) -> dict[str, LazyTensor]:
    """Wrap tensors in memory as lazy tensors."""
    return {name: LazyTensor(tuple(tensor.shape), tensor.to) for name, tensor in tensors.items()}


def beyond_half(name: str) -> UserError:
    """Return the error of a tensor with numbers that float16 does not have."""
    largest = torch.finfo(torch.float16).max
    return UserError(f"{name} has numbers above {largest:,.0f}, the largest of float16; take bfloat16 or float32")


def check_sizes(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Raise a UserError for the first tensor that is missing, unexpected or of another size."""
    for name in sorted(expected.keys() - found.keys()):
        raise UserError(f"{what} has no tensor {name}; it belongs to another model or is incomplete")
    for name in sorted(found.keys() - expected.keys()):
        raise UserError(f"{what} has a tensor {name} that a model of this size lacks; it belongs to another model")
    for name, size in expected.items():
        if found[name] != size:
            raise UserError(f"{what}: {name} has the shape {found[name]}; expected {size}")
