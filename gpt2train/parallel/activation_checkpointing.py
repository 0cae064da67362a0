"""Activation checkpointing: recompute activations of a block in the backward pass instead of storing them.

In units of the width of the residual stream, a block of GPT-2 stores 16 activations per token: inputs of both
norms (2), outputs of both norms (2), queries, keys and values (3), output of attention (1), input and output of GELU
(8).

    none        16
    selective   10      recomputes norms and GELU, but no matrix product
    full         1      recomputes everything but the last product of the block

Backward needs the result of a block's last product for the mask of dropout alone: with dropout `selective` stores it
too (11). Under tensor parallelism it also recomputes the matrix product and the collective after attention, and with
dropout those at the end of the block. Of blocks without biases it stores only the results of attention. In 8 bits the
last product is always computed again, since what a product keeps in 8 bits is known only after it.
"""

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpt2train.compat.torch import ATTENTION_OPERATORS
from gpt2train.compat.torch_fp8 import SCALED_PRODUCT, scaled_bias
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import last_product

# Products with a bias only, in 8 bits too: those without one are all-reduced in place under tensor parallelism, and a
# stored result would be reduced twice.
PRODUCTS = {torch.ops.aten.addmm.default}


def apply_activation_checkpointing(part: CausalLM, mode: str) -> None:
    """Apply activation checkpointing to every block, in place; after tensor parallelism, before compilation and FSDP.

    Dropout masks are reproduced, since the generator state is stored.
    """
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    for number, block in part.blocks.items():
        dropout = any(getattr(module, "p", 0) > 0 for module in block.modules())
        options["preserve_rng_state"] = dropout
        if mode == "selective":
            unused = None if dropout else _unused_product(block, last_product(part.shape, int(number)))
            policy = functools.partial(_policy, unused)
            options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, policy)
        block.forward = functools.partial(checkpoint, block.forward, **options)


def _unused_product(block: nn.Module, name: str) -> tuple[int, int] | None:
    """Size [inner, outer] of the weight of a block's last product, whose result backward does not need.

    A policy sees sizes and no names. It is None if another product of the block has the same size, and under tensor
    parallelism, where this product has no bias and so is never stored, and a part of another matrix may be as large.
    """
    weights = {other: weight for other, weight in block.named_parameters() if weight.dim() == 2}
    last = weights.pop(name, None)
    if last is None or isinstance(last, DTensor) or any(weight.shape == last.shape for weight in weights.values()):
        return None
    return last.shape[1], last.shape[0]


def _policy(
    unused: tuple[int, int] | None, context: Any, operator: Any, *arguments: Any, **keywords: Any
) -> CheckpointPolicy:
    """Store the results of attention and of matrix products, except of the one with a weight of size `unused`."""
    if operator in ATTENTION_OPERATORS:
        return CheckpointPolicy.MUST_SAVE
    if operator in PRODUCTS or (operator is SCALED_PRODUCT and scaled_bias(arguments, keywords) is not None):
        second = arguments[1] if operator is SCALED_PRODUCT else arguments[-1]
        return CheckpointPolicy.PREFER_RECOMPUTE if tuple(second.shape) == unused else CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
