"""AdamW on local parameter shards, with clipping, unscaling and skipping in one fused kernel."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gpt2train.config import OptimizerSettings
from gpt2train.model.families import is_embedding
from gpt2train.parallel.grad_norm import local

STATE = ("exp_avg", "exp_avg_sq")
FUSED = ("cpu", "cuda")  # devices whose fused kernel divides the gradients and skips; that of MPS ignores both


class AdamW:
    """AdamW (Loshchilov and Hutter 2019) by torch's fused kernel on plain tensors.

    The kernel gets local shards, not DTensors: AdamW is elementwise, DTensor dispatch took 1.8 to 4.2 ms a step on a
    CPU, tensors on different meshes cannot share a call, and torch 2.10 to 2.12 leak a record per parameter and step.
    The state exists from the start, so that checkpoints of all steps have the same tensors.

    Args:
        named: pairs of name and parameter. Each parameter must have a gradient at every step.
        settings: optimizer settings.
    """

    def __init__(self, named: Iterable[tuple[str, Tensor]], settings: OptimizerSettings) -> None:
        self.named = list(named)
        self._shards = [local(parameter.detach()) for _, parameter in self.named]
        self._moments = [{key: torch.zeros_like(p.detach()) for key in STATE} for _, p in self.named]
        self._steps = [torch.zeros((), device=shard.device) for shard in self._shards]
        decayed = [is_decayed(name, p, settings) for name, p in self.named]
        groups = [
            {
                "params": [s for s, decay in zip(self._shards, decayed, strict=True) if decay == decays],
                "weight_decay": settings.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]
        self.device = self._shards[0].device
        self._fused = self.device.type in FUSED
        # A learning rate tensor can be updated without a host sync. fused: 124M parameters in 191 ms on one CPU core,
        # against 693 ms for foreach and 1,071 ms for the plain loop.
        self._rate = torch.tensor(settings.lr, device=self.device)
        self._kernel = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self._rate if self._fused else settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            fused=self._fused,
            foreach=False,
        )
        for shard, moments, steps in zip(self._shards, self._moments, self._steps, strict=True):
            self._kernel.state[shard] = {"step": steps} | {key: local(value) for key, value in moments.items()}

    def step(self, gradients: Iterable[Tensor], rate: Tensor, divisor: Tensor, skip: Tensor) -> None:
        """Apply one update, or skip it; with a fused kernel without a host sync.

        Args:
            gradients: local shards, in the order of the parameters; they may be modified.
            rate: float32 scalar, learning rate.
            divisor: float32 scalar, divisor of the gradients: loss scale times clipping factor.
            skip: float32 scalar; 1 leaves parameters and state unchanged, whatever the gradients are.
        """
        for shard, gradient in zip(self._shards, gradients, strict=True):
            shard.grad = gradient
        if self._fused:
            # These two attributes are torch's documented contract with fused optimizers, which GradScaler uses.
            self._kernel.grad_scale, self._kernel.found_inf = divisor, skip  # type: ignore[attr-defined]
            self._rate.copy_(rate)
            self._kernel.step()
        elif not skip.item():
            for shard in self._shards:
                assert shard.grad is not None
                shard.grad.div_(divisor)
            for group in self._kernel.param_groups:
                group["lr"] = rate.item()
            self._kernel.step()
        for shard in self._shards:
            shard.grad = None

    def state(self) -> Mapping[str, Tensor]:
        """State by names that do not depend on the layout: `<name>.exp_avg`, `<name>.exp_avg_sq`, `<name>.step`."""
        found: dict[str, Tensor] = {}
        for (name, _), moments, steps in zip(self.named, self._moments, self._steps, strict=True):
            found |= {f"{name}.{key}": value for key, value in moments.items()} | {f"{name}.step": steps}
        return found


def is_decayed(name: str, parameter: Tensor, settings: OptimizerSettings) -> bool:
    """Return True if weight decay applies to a parameter: a matrix, or an embedding if `decay_embeddings` is set.

    T5's tables of relative positions are biases of the attention, one for each head.
    """
    is_matrix = parameter.dim() >= 2 and not name.endswith("_bias.weight")
    return is_matrix and (settings.decay_embeddings or not is_embedding(name))
