"""Half-precision copies of the weights of linear layers, made once a step.

Autocast casts every weight in every micro-batch, and the gradients of the weights back to float32: with their addition
24 bytes of traffic a parameter, in place of 10. Of several processes FSDP gathers the weights in half precision.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from gpt2train.compat.torch import copy_tensors


class HalfWeights:
    """Copies of the weights and biases of a model's linear layers inside the blocks."""

    def __init__(self, blocks: nn.Module, dtype: torch.dtype) -> None:
        self._places = [
            (module, name, parameter, nn.Parameter(parameter.detach().to(dtype)))
            for module in blocks.modules()
            if isinstance(module, nn.Linear)
            for name, parameter in module.named_parameters(recurse=False)
        ]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model compute with copies of its present weights in a block, in forward and backward."""
        with torch.no_grad():
            copy_tensors([copy for *_, copy in self._places], [weight for *_, weight, _ in self._places])
        for module, name, _, copy in self._places:
            setattr(module, name, copy)
        try:
            yield
        finally:
            for module, name, weight, _ in self._places:
                setattr(module, name, weight)

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the gradients of the copies to those of the weights, in float32, after each micro-batch."""
        for _, _, weight, copy in self._places:
            if copy.grad is None:
                continue
            if weight.grad is None:
                weight.grad = copy.grad.to(weight.dtype)
            else:
                weight.grad += copy.grad
            copy.grad = None
