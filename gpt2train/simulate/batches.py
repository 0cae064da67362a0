"""Batches of the shapes that a run's data have."""

import torch

from gpt2train.config import RunConfig
from gpt2train.data.batch import Batch
from gpt2train.model.families import MODELS
from gpt2train.model.objectives import OBJECTIVES


def empty_batch(config: RunConfig, samples: int) -> Batch:
    """Return a micro-batch of zeros, with the tensors that the objective's data have."""
    length, lengths = config.model.context, MODELS[config.model.family].lengths(config.shape)
    tokens, extra = torch.zeros(samples, length, dtype=torch.int64), {}
    targets = tokens.clone()
    if OBJECTIVES[config.objective.name].sequences > 1:
        targets = torch.zeros(samples, lengths[-1], dtype=torch.int64)
        extra["decoder_tokens"] = targets.clone()
        if config.objective.options.get("task") == "prefix":
            extra["lengths"] = torch.full((samples,), length)
    elif config.model.labels:
        targets = torch.zeros(samples, dtype=torch.int64)
        extra["lengths"] = torch.ones(samples, dtype=torch.int64)
    if config.documents.reset_positions:
        extra["positions"] = tokens.clone()
    if config.documents.mask_documents:
        extra["documents"] = tokens.clone()
    return Batch(tokens, targets, extra)
