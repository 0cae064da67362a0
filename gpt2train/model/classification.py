"""Scores of a classification: counts from which accuracy and F1 of a whole validation set follow."""

import torch
from torch import Tensor

from gpt2train.model.device import sum_dtype
from gpt2train.model.loss import IGNORE


def class_counts(logits: Tensor, targets: Tensor, **extra: Tensor) -> Tensor:
    """Count, for each class, the samples that are right, that were predicted to be of it, and that are of it.

    Logits are [samples, labels], targets int64 [samples]; those of -100 do not count.

    Returns:
        [3 * labels] in `sum_dtype`: the three counts of all classes, one after the other.
    """
    labels, kept = logits.shape[-1], targets != IGNORE
    # Weights of 0 and 1 in place of a selection, whose size would depend on the data.
    dtype = sum_dtype(logits.device)
    weight, predicted, actual = kept.to(dtype), logits.argmax(-1), targets.clamp_min(0)
    counts = torch.zeros(3, labels, dtype=dtype, device=logits.device)
    counts[0].index_add_(0, actual, weight * (predicted == actual))
    counts[1].index_add_(0, predicted, weight)
    counts[2].index_add_(0, actual, weight)
    return counts.flatten()
