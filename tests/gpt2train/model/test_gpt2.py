"""The model, its loss and its initial weights, against transformers."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from gpt2train.model.gpt2 import GPT2
from gpt2train.model.init import initial_value, initialise
from gpt2train.model.loss import IGNORE, chunked_cross_entropy, plain_cross_entropy
from gpt2train.model.shape import Shape

SHAPE = Shape(vocab=128, layers=3, heads=4, hidden=32, context=24)


def as_transformers(model: GPT2) -> GPT2LMHeadModel:
    """The same weights in Hugging Face's class."""
    shape = model.shape
    config = GPT2Config(
        vocab_size=shape.vocab,
        n_positions=shape.context,
        n_embd=shape.hidden,
        n_layer=shape.layers,
        n_head=shape.heads,
        attn_implementation="sdpa",
    )
    peer = GPT2LMHeadModel(config).eval()
    source, target = dict(model.named_parameters()), peer.transformer

    def copy(module: nn.Module, name: str, split_heads: bool = False) -> None:
        weight, bias = source[f"{name}.weight"].detach(), source[f"{name}.bias"].detach()
        if split_heads:  # rows [head, (q, k, v), size] -> [(q, k, v), head, size]
            order = torch.arange(3 * shape.hidden).view(shape.heads, 3, shape.head_dim).transpose(0, 1).flatten()
            weight, bias = weight[order], bias[order]
        linear = weight.dim() == 2
        module.weight.data.copy_(weight.t() if linear else weight)  # theirs are Conv1D: transposed
        module.bias.data.copy_(bias)

    target.wte.weight.data.copy_(source["wte.weight"].detach()[: shape.vocab])
    target.wpe.weight.data.copy_(source["wpe.weight"].detach())
    copy(target.ln_f, "ln_f")
    for i, block in enumerate(target.h):
        copy(block.ln_1, f"blocks.{i}.ln_1")
        copy(block.ln_2, f"blocks.{i}.ln_2")
        copy(block.attn.c_attn, f"blocks.{i}.attn.qkv", split_heads=True)
        copy(block.attn.c_proj, f"blocks.{i}.attn.proj")
        copy(block.mlp.c_fc, f"blocks.{i}.up")
        copy(block.mlp.c_proj, f"blocks.{i}.down")
    return peer


def noisy_model() -> GPT2:
    """Biases and scales away from 0 and 1, so that a mix-up shows."""
    model = initialise(GPT2(SHAPE), 5)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def test_logits_loss_and_gradient_equal_transformers() -> None:
    model = noisy_model()
    peer = as_transformers(model)
    tokens = torch.randint(0, SHAPE.vocab, (3, SHAPE.context), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), peer(tokens).logits, rtol=1e-5, atol=1e-5)
    expected = peer(tokens, labels=tokens).loss
    count = tokens[:, 1:].numel()
    loss = model(tokens[:, :-1], tokens[:, 1:]) / count
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(model.wte.weight.grad, peer.transformer.wte.weight.grad, rtol=1e-4, atol=1e-6)
    theirs = peer.transformer.h[0].mlp.c_fc.weight.grad.t()
    torch.testing.assert_close(model.blocks["0"].up.weight.grad, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("terms", [{}, {"softcap": 2.0}, {"z_loss": 0.01}, {"softcap": 3.0, "z_loss": 0.1}])
@pytest.mark.parametrize(("rows", "vocab"), [(1, None), (255, None), (256, 61), (700, 64)])
def test_chunked_loss_equals_the_plain_one(rows: int, vocab: int | None, terms: dict[str, float]) -> None:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 16, generator=generator)
    weight = torch.randn(64, 16, generator=generator)
    targets = torch.randint(0, vocab or 64, (rows,), generator=generator)
    targets[:: 3 if rows > 1 else 2] = IGNORE if rows > 1 else 3
    results = []
    for function in (chunked_cross_entropy, plain_cross_entropy):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = function(h, w, targets, vocab, **terms)
        (loss * 0.5).sum().backward()
        results.append((loss, h.grad, w.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        again = chunked_cross_entropy(hidden, weight, targets, vocab, **terms)
        torch.testing.assert_close(again, results[0][0].detach())


def test_chunked_loss_refuses_a_second_backward() -> None:
    hidden, weight = torch.randn(5, 16, requires_grad=True), torch.randn(64, 16, requires_grad=True)
    loss = chunked_cross_entropy(hidden, weight, torch.arange(5)) * 0.5
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_chunked_loss_under_autocast_is_close_to_fp32() -> None:
    model = noisy_model()
    tokens = torch.randint(0, SHAPE.vocab, (2, SHAPE.context), generator=torch.Generator().manual_seed(2))
    exact = model(tokens, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(tokens, tokens)
    rough.backward()
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    assert model.wte.weight.grad is not None and model.wte.weight.grad.dtype == torch.float32


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    model = initialise(GPT2(SHAPE), 7)
    for name, parameter in reversed(list(model.named_parameters())):
        assert torch.equal(parameter, initial_value(name, tuple(parameter.shape), SHAPE, 7))
    deeper = initialise(GPT2(Shape(vocab=128, layers=5, heads=4, hidden=32, context=24)), 7)
    assert torch.equal(model.blocks["1"].up.weight, deeper.blocks["1"].up.weight)
    assert not torch.equal(model.wpe.weight, initialise(GPT2(SHAPE), 8).wpe.weight)
    assert model.wte.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks["0"].down.weight.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.05)
