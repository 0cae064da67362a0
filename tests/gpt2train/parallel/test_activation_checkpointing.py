"""Activation checkpointing: the same numbers, dropout included, and the saved tensors of each mode."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.parallel.activation_checkpointing import apply_activation_checkpointing

SHAPE = Shape(vocab=128, layers=4, heads=4, hidden=64, context=64)
SAMPLES = 4


def model_with(mode: str, dropout: float) -> GPT2:
    model = initialise(GPT2(SHAPE, dropout), 1)
    apply_activation_checkpointing(model, mode)
    return model


def loss_of(model: GPT2) -> torch.Tensor:
    tokens = torch.randint(SHAPE.vocab, (SAMPLES, SHAPE.context + 1), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(3)  # of dropout
    return model(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputation_gives_the_same_numbers(mode: str, dropout: float) -> None:
    plain, checkpointed = model_with("none", dropout), model_with(mode, dropout)
    assert [name for name, _ in checkpointed.named_parameters()] == [name for name, _ in plain.named_parameters()]
    losses = [loss_of(model) for model in (plain, checkpointed)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    for (name, one), other in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-6, msg=name)
    with torch.no_grad():
        assert torch.equal(loss_of(checkpointed.eval()), loss_of(plain.eval()))


def saved_floats(mode: str) -> float:
    """Memory that a forward keeps for its backward, in floats per token and block, as multiples of the width."""
    model = model_with(mode, 0.0)
    loss_of(model).backward()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = loss_of(model)
    left = sum(event.self_cpu_memory_usage for event in seen.key_averages())
    assert loss.requires_grad  # and so all that it needs is still there
    return left / (4 * SAMPLES * SHAPE.context * SHAPE.layers * SHAPE.hidden)


def test_each_mode_saves_the_documented_tensors() -> None:
    # The last norm and the loss keep 2 to 3 units for all blocks together, the statistics of norms and attention some.
    none, selective, full = (saved_floats(mode) for mode in ("none", "selective", "full"))
    assert 16 <= none < 17.5
    assert 10 <= selective < 11.5
    assert 1 <= full < 2.5
