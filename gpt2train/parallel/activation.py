"""Activation checkpointing: what of a block is computed again in the backward pass instead of being kept.

Counted in floats of the width of the residual stream, a block keeps 16 a token: what goes into both norms (2), the
norms' outputs (2), queries, keys and values (3), what attention gives (1), and both sides of the GELU (8).

    none        16
    selective   10      norms and GELU again, no matrix product
    full         1      everything again, a third more FLOPs in all

Under tensor parallelism `selective` does the product and the communication behind attention again as well.
"""

import functools
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpt2train.model.gpt2 import GPT2, Block

_aten = torch.ops.aten
# With a bias, that is: the sum over tensor-parallel processes is made in the memory of a product without one, and what
# was kept would be summed twice.
PRODUCTS = {_aten.addmm.default}
ATTENTION = {
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_fused_attention_overrideable.default,
}


def apply_activation_checkpointing(part: GPT2, mode: str) -> None:
    """Let every block of a part keep less, in place; after tensor parallelism, before compilation and FSDP.

    Dropout repeats: the state of the random numbers is kept along.

    Args:
        mode: "none", "selective" or "full".
    """
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _what_to_keep)
    for block in cast(Iterable[Block], part.blocks.values()):
        options["preserve_rng_state"] = block.drop.p > 0
        block.forward = functools.partial(checkpoint, block.forward, **options)  # type: ignore[method-assign]


def _what_to_keep(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    """Results of matrix products and of attention. Of the product that narrows, the block's last, nobody needs it."""
    if operator in ATTENTION:
        return CheckpointPolicy.MUST_SAVE
    if operator in PRODUCTS:
        inner, outer = arguments[-1].shape  # the second factor
        return CheckpointPolicy.MUST_SAVE if outer >= inner else CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.PREFER_RECOMPUTE
