"""Several documents in one sample: with masks and own positions each is computed as if alone."""

import pytest
import torch

from gpt2train.data.training_data import positions_within
from gpt2train.model.gpt2 import GPT2, Shape
from gpt2train.model.init import initialise
from gpt2train.model.loss import IGNORE

SHAPE = Shape(vocab=100, layers=2, heads=2, hidden=32, context=24)
LENGTHS = [[7, 1, 16], [24, 0, 0]]  # of the documents in each of two samples


@pytest.fixture(scope="module")
def model() -> GPT2:
    return initialise(GPT2(SHAPE), seed=3)


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(SHAPE.vocab, (2, SHAPE.context), generator=generator)
    documents = [torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)) for lengths in LENGTHS]
    return tokens, torch.stack(documents)


def test_masked_documents_with_their_own_positions_are_as_if_alone(model: GPT2) -> None:
    tokens, documents = sample()
    positions = torch.from_numpy(positions_within(documents.numpy()))
    together = model(tokens, positions=positions, documents=documents)
    for row in range(2):
        for number in range(3):
            here = documents[row] == number
            if here.any():
                alone = model(tokens[row : row + 1, here])[0]
                assert torch.allclose(together[row, here], alone, atol=1e-5)
    assert not torch.allclose(together[0, 8:], model(tokens)[0, 8:], atol=1e-2)  # without the mask it is another text


def test_gradients_do_not_cross_documents(model: GPT2) -> None:
    tokens, documents = sample()
    targets = torch.full_like(tokens, IGNORE)
    targets[0, 8:] = 5  # the third document alone
    used: dict[str, torch.Tensor] = {}
    hook = model.wte.register_forward_hook(lambda _, __, out: used.setdefault("x", out).retain_grad())
    model(tokens, targets, documents=documents).backward()
    hook.remove()
    gradient = used["x"].grad
    assert gradient is not None and gradient[0, 8:].abs().min() > 0
    assert not gradient[0, :8].any() and not gradient[1].any()
    model.zero_grad()
