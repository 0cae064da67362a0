"""Norms whose parameters have a lower precision than their input, as FSDP gathers them.

The input is the float32 residual stream. A CPU refuses such a LayerNorm, and an RMSNorm loses its fused kernel. On a
GPU, autocast casts the parameters of LayerNorm likewise.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.model.rms_norm import RMSNorm, rms_norm


def widened(parameter: Tensor, x: Tensor) -> Tensor:
    """Return the parameter in the wider of its own dtype and that of the input; no copy if it has that dtype."""
    return parameter.to(torch.promote_types(parameter.dtype, x.dtype))


def use_half_precision_norms(model: nn.Module) -> None:
    """Let the LayerNorm and RMSNorm modules of a model take parameters in half precision, in place."""
    kinds = {nn.LayerNorm: _LayerNorm, nn.RMSNorm: _RMSNorm, RMSNorm: _RMSNorm}
    for module in model.modules():
        module.__class__ = kinds.get(type(module), type(module))


class _LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else widened(self.weight, x)
        bias = None if self.bias is None else widened(self.bias, x)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class _RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        weight = widened(self.weight, x)
        return rms_norm(x, weight, self.eps)
