"""Right gradients of autograd functions that `torch.compile` of torch 2.11 compiles."""

import torch
from torch import Tensor


def compiled_result(x: Tensor) -> Tensor:
    """Return the result of an autograd function's `forward` that was written in place.

    Compiled by torch 2.11, such a result has a gradient of zero, without an error; a view of it has the right one.
    """
    return x.view_as(x) if torch.compiler.is_compiling() else x
