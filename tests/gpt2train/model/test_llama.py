"""The family llama: sizes, options, decoding, and the losses of all layouts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError

from gpt2train.config import RunConfig, TrainSettings
from gpt2train.config.model import ModelSettings
from gpt2train.config.objective import ObjectiveSettings
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.families import is_tied, sizes
from gpt2train.model.init import initialise
from gpt2train.model.lazy_weights import empty_model
from gpt2train.model.llama_family import options_of
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from tests.gpt2train.jobs import VOCAB, curve, make
from tests.gpt2train.models import lively

# Each option has another value than by default in one of them.
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"kv_heads": 2, "inner": 48, "qk_norm": True, "attention_bias": "all", "mlp_bias": True},
    "relu2": {"kv_heads": 2, "head_dim": 12, "activation": "relu2", "tied": True, "attention_bias": "qkv"},
    "llama": {},
    "capped": {"logit_softcap": 3.0, "embedding_norm": True, "rope_scaling": '{"rope_type": "linear", "factor": 2}'},
}
Z_LOSS = {"capped": 0.01}


def settings(options: dict[str, Any], **changes: Any) -> ModelSettings:
    base = {"layers": 4, "heads": 4, "hidden": 32, "context": 16, "dropout": 0.0}
    return ModelSettings.model_validate(base | {"family": "llama", "options": options} | changes)


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_sizes_are_those_of_the_model_in_its_order(options: dict[str, Any]) -> None:
    shape = settings(options).shape(VOCAB)
    model = empty_model(shape)
    assert list(sizes(shape).items()) == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert is_tied(shape) == options.get("tied", False)


def test_options_that_follow_from_others_are_written_out() -> None:
    model = settings({}, hidden=96)
    assert model.options["kv_heads"] == 4 and model.options["head_dim"] == 24 and model.options["inner"] == 256
    assert settings({"activation": "relu2"}).options["inner"] == 128
    assert ModelSettings.model_validate(model.model_dump()) == model
    assert options_of(model.shape(VOCAB)).model_dump() == model.options
    assert settings({"head_dim": 6}, heads=6, hidden=32).shape(VOCAB).head_dim == 6


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"kv_heads": 3}, {}, "kv_heads 3 does not divide heads 4"),
        ({}, {"heads": 5}, "hidden 32 is not a multiple of heads 5; change one, or set head_dim"),
        ({"head_dim": 7}, {}, "a head has the size 7; rotary positions need an even one"),
        ({"activation": "gelu"}, {}, "activation"),
        ({"norm": 1}, {}, "unknown setting 'norm'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(options, **changes)


def test_a_width_that_tensor_parallelism_cannot_split_is_refused(tmp_path: Path) -> None:
    model = {"layers": 4, "heads": 4, "family": "llama", "options": {"inner": 47}}
    config = make(tmp_path, tmp_path / "run", model=model, parallel={"tp": 2})
    with pytest.raises(UserError, match=r"parallel.tp 2 does not divide the size 47 of blocks.0.gate.weight"):
        Layout.of(config, 2)
    with pytest.raises(UserError, match=r"--tp 2 does not divide the size 47 of blocks.0.gate.weight"):
        Layout.of_model(config.shape, 2, 1, 2)


def check_steps(model: CausalLM, steps: int) -> None:
    """Check that decoding steps with the cache have the logits of whole passes."""
    decoder, texts = LocalDecoder(model, rows=2), [[5, 6, 7], [9]]
    logits = decoder.add(texts)
    for _ in range(steps):
        new = logits.argmax(1).tolist()
        texts, logits = [[*text, token] for text, token in zip(texts, new, strict=True)], decoder.step(new)
        whole = torch.stack([decoder.logits(text)[-1] for text in texts])
        assert torch.allclose(logits, whole, atol=1e-5), (logits - whole).abs().max()


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_a_step_with_the_cache_has_the_logits_of_a_whole_pass(options: dict[str, Any]) -> None:
    check_steps(lively(settings(options).shape(VOCAB), noise=0.1), 6)


def test_the_norm_of_the_embedding_is_that_of_its_rows() -> None:
    normed, plain = (build_model(settings({"embedding_norm": on}).shape(VOCAB)) for on in (True, False))
    weights = initialise(normed, 3).state_dict()
    rows = weights["wte.weight"]
    plain.load_state_dict(weights | {"wte.weight": rows / (rows.square().mean(1, keepdim=True) + 1e-5).sqrt()})
    ids = torch.arange(12)[None]
    torch.testing.assert_close(normed(ids), plain(ids), atol=1e-6, rtol=0)


def run_of(tokens: Path, output: Path, name: str, parallel: dict[str, Any], **changes: Any) -> RunConfig:
    model = {"layers": 4, "heads": 4, "family": "llama", "options": MODELS[name]}
    batch = {"micro_batch": 1, "global_batch": 16}
    objective = {"z_loss": Z_LOSS.get(name, 0.0)}
    return make(tokens, output, model=model, batch=batch, parallel=parallel, objective=objective, **changes)


def train_alone(config: RunConfig) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(config, join("cpu"))
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)


def test_a_run_with_an_option_is_not_continued_without_it(tokens: Path, tmp_path: Path) -> None:
    """Files leave out what is off."""
    whole = run_of(tokens, tmp_path / "whole", "capped", {}, steps=4)
    train_alone(whole)
    for name in MODELS["capped"]:
        options = {key: value for key, value in whole.model.options.items() if key != name}
        changes: dict[str, Any] = {
            "model": whole.model.model_copy(update={"options": options}),
            "checkpoints": whole.checkpoints.model_copy(update={"init_from": whole.output}),
            "output": str(tmp_path / name),
        }
        for update in (changes, changes | {"output": whole.output}):
            with pytest.raises(UserError, match=rf"another model\.options\.{name} \(.* there, off now\)"):
                train_alone(whole.model_copy(update=update))


@pytest.mark.exhaustive
def test_the_z_loss_is_apart_from_the_loss(tokens: Path, tmp_path: Path) -> None:
    config = run_of(tokens, tmp_path / "with", "capped", {}, steps=4)
    plain = config.model_copy(update={"objective": ObjectiveSettings(), "output": str(tmp_path / "without")})
    for run in (config, plain):
        train_alone(run)
    with_z, without = curve(config.output), curve(plain.output)
    assert with_z[0] == without[0] and with_z[1] != without[1]
    data = packed_data(config, "train")
    batch = data.batch(range(16))
    model = initialise(build_model(config.shape), config.seed)
    with torch.no_grad():
        logits = model(batch.tokens)[..., :VOCAB]
    assert logits.abs().max() < 3.0
    expected = 0.01 * logits.logsumexp(-1).square().mean().item()
    assert curve(config.output, "z_loss")[0] == pytest.approx(expected, rel=1e-5)
    assert "z_loss" not in read_metrics(plain.output)[0]


def test_a_z_loss_without_predicted_tokens_is_refused() -> None:
    objective = {"name": "classification", "z_loss": 1e-4}
    with pytest.raises(ValidationError, match=r"objective.z_loss is for the prediction of tokens"):
        TrainSettings.model_validate({"model": {"labels": 2}, "objective": objective})
