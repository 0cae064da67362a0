"""Activation checkpointing: recompute activations of a block in the backward pass instead of storing them.

In units of the width of the residual stream, a block of GPT-2 stores 16 activations per token: inputs of both
norms (2), outputs of both norms (2), queries, keys and values (3), output of attention (1), input and output of GELU
(8).

    none        16
    selective   10      recomputes norms and GELU, but no matrix product
    full         1      recomputes everything, a third more FLOPs in total

Under tensor parallelism `selective` also recomputes the matrix product and the collective after attention. Of blocks
without biases it stores only the results of attention. In 8 bits it also recomputes the last product of a block, since
what a product keeps in 8 bits is known only after it.
"""

import functools
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpt2train.compat.torch import ATTENTION_OPERATORS
from gpt2train.compat.torch_fp8 import SCALED_PRODUCT, scaled_bias
from gpt2train.model.causal_lm import CausalLM

# Products with a bias only, in 8 bits too: those without one are all-reduced in place under tensor parallelism, and a
# stored result would be reduced twice.
PRODUCTS = {torch.ops.aten.addmm.default}


def apply_activation_checkpointing(part: CausalLM, mode: str) -> None:
    """Apply activation checkpointing to every block, in place; after tensor parallelism, before compilation and FSDP.

    Dropout masks are reproduced, since the generator state is stored.

    Args:
        part: the model, or one pipeline stage.
        mode: "none", "selective" or "full".
    """
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
    for block in part.blocks.values():
        options["preserve_rng_state"] = any(getattr(module, "p", 0) > 0 for module in block.modules())
        block.forward = functools.partial(checkpoint, block.forward, **options)


def _policy(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    """Store the results of attention and of matrix products, except the last one, which backward does not need."""
    if operator in ATTENTION_OPERATORS:
        return CheckpointPolicy.MUST_SAVE
    if operator in PRODUCTS or (operator is SCALED_PRODUCT and scaled_bias(arguments, keywords) is not None):
        second = arguments[1] if operator is SCALED_PRODUCT else arguments[-1]
        inner, outer = second.shape  # only the block's last product narrows
        return CheckpointPolicy.MUST_SAVE if outer >= inner else CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.PREFER_RECOMPUTE
