"""The family llama: sizes, options, decoding, layouts, commands; value embeddings against a plain twin."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from gpt2train.cli import app
from gpt2train.command_line import run_command
from gpt2train.config import OptimizerSettings, RunConfig, TrainSettings, to_toml
from gpt2train.config.model import ModelSettings, ObjectiveSettings
from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.evaluate.scoring import score, score_shared
from gpt2train.evaluate.scoring_request import ScoringRequest
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.families import is_lookup, on_stage, parameter_count, used_beside
from gpt2train.model.init import initialise
from gpt2train.model.lazy_weights import empty_model
from gpt2train.model.llama_family import options_of
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import flops_per_token, read_metrics
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from gpt2train.training.adamw import is_decayed
from gpt2train.training.muon import is_orthogonalised
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.jobs import VOCAB, curve, make
from tests.gpt2train.models import lively
from tests.gpt2train.parallel.small_model_folder import write_tokenizer
from tests.gpt2train.serve.local_server import running

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


def test_options_that_follow_from_others_are_written_out() -> None:
    model = settings({}, hidden=96)
    assert model.options["kv_heads"] == 4 and model.options["head_dim"] == 24 and model.options["inner"] == 256
    assert settings({"activation": "relu2"}).options["inner"] == 128
    assert ModelSettings.model_validate(model.model_dump()) == model
    assert options_of(model.shape(VOCAB)).model_dump() == model.options


def test_a_width_that_cannot_be_split_and_a_z_loss_without_tokens_are_refused(tmp_path: Path) -> None:
    model = {"layers": 4, "heads": 4, "family": "llama", "options": {"inner": 47}}
    config = make(tmp_path, tmp_path / "run", model=model, parallel={"tp": 2})
    with pytest.raises(UserError, match=r"parallel.tp 2 does not divide the size 47 of blocks.0.gate.weight"):
        Layout.of(config, 2)
    with pytest.raises(UserError, match=r"--tp 2 does not divide the size 47 of blocks.0.gate.weight"):
        Layout.of_model(config.shape, 2, 1, 2)
    objective = {"name": "classification", "z_loss": 1e-4}
    with pytest.raises(ValidationError, match=r"objective.z_loss is for the prediction of tokens"):
        TrainSettings.model_validate({"model": {"labels": 2}, "objective": objective})


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


# Options that meet the values: heads of keys and values, their size and their bias.
WITH_EMBEDDINGS: dict[str, dict[str, Any]] = {
    "one": {"value_embeddings": 1},
    "two": {"value_embeddings": 2, "kv_heads": 2, "qk_norm": True, "attention_bias": "all"},
    "all": {"value_embeddings": 2, "kv_heads": 1, "head_dim": 6, "activation": "relu2", "tied": True},
}
LAYERS = {"one": 3, "two": 5, "all": 4}  # one block without a table, one of five, and none


def shape_of(name: str, **changes: Any) -> Shape:
    base = {"layers": LAYERS[name], "heads": 4, "hidden": 32, "context": 24, "dropout": 0.0, "family": "llama"}
    return ModelSettings.model_validate(base | {"options": WITH_EMBEDDINGS[name]} | changes).shape(VOCAB)


@pytest.fixture(scope="module", params=WITH_EMBEDDINGS)
def model(request: pytest.FixtureRequest) -> CausalLM:
    return lively(shape_of(request.param))


def twin(weights: dict[str, Tensor], shape: Shape, tokens: list[int], documents: list[int]) -> Tensor:
    """Logits of one text, token by token and head by head, by the formulas."""
    options, layers, head = dict(shape.options), shape.layers, shape.head_dim
    number, kv_heads = int(options["value_embeddings"]), int(options["kv_heads"])

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weights[f"{name}.weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(()))

    def rotated(x: Tensor, position: int) -> Tensor:
        angles = position / 10_000 ** (torch.arange(0, head, 2) / head)
        a, b = x.chunk(2)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()))

    x = weights["wte.weight"][tokens]
    for layer in range(layers):
        block, h = f"blocks.{layer}", norm(x, f"blocks.{layer}.ln_1")
        value = linear(h, f"{block}.attn.v")
        table = layer if layer < number else layer - (layers - number) if layer >= layers - number else None
        if table is not None:
            value = value + weights[f"values.{table}.weight"][tokens]
        query, key = linear(h, f"{block}.attn.q"), linear(h, f"{block}.attn.k")
        rows = []
        for at in range(len(tokens)):
            seen, heads = [other for other in range(at + 1) if documents[other] == documents[at]], []
            for number_of_head in range(shape.heads):
                own = slice(number_of_head * head, (number_of_head + 1) * head)
                start = number_of_head // (shape.heads // kv_heads) * head
                shared = slice(start, start + head)
                q, k = query[at, own], key[seen, shared]
                if options["qk_norm"]:
                    q, k = norm(q, f"{block}.attn.q_norm"), norm(k, f"{block}.attn.k_norm")
                k = torch.stack([rotated(one, other) for one, other in zip(k, seen, strict=True)])
                weight = (k @ rotated(q, at) / math.sqrt(head)).softmax(0)
                heads.append(weight @ value[seen, shared])
            rows.append(torch.cat(heads))
        x = x + linear(torch.stack(rows), f"{block}.attn.proj")
        h = norm(x, f"{block}.ln_2")
        if options["activation"] == "swiglu":
            h = F.silu(linear(h, f"{block}.gate")) * linear(h, f"{block}.up")
        else:
            h = linear(h, f"{block}.up").relu().square()
        x = x + linear(h, f"{block}.down")
    return norm(x, "ln_f") @ weights["wte.weight" if options["tied"] else "lm_head.weight"].T


def test_the_logits_are_those_of_a_plain_twin(model: CausalLM) -> None:
    tokens, documents = [5, 7, 5, 299, 0, 7], [1, 1, 1, 2, 2, 2]
    weights = dict(model.state_dict())
    for numbers, given in (([0] * 6, {}), (documents, {"documents": torch.tensor([documents])})):
        expected, found = twin(weights, model.shape, tokens, numbers), model(torch.tensor([tokens]), **given)[0]
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    without = {name: w * 0 if name.startswith("values.") else w for name, w in weights.items()}
    assert (twin(without, model.shape, tokens, [0] * 6) - twin(weights, model.shape, tokens, [0] * 6)).abs().max() > 0.1


def test_the_scores_of_a_tree_are_those_of_each_text_and_of_its_logits(model: CausalLM) -> None:
    start = [5, 6, 7, 8]
    requests = [ScoringRequest((*start, *end), len(end)) for end in ((9, 10), (9, 11), (12,), (13, 14, 15))]
    for request, found, alone in zip(requests, score_shared(model, requests), score(model, requests), strict=True):
        ids = torch.tensor([request.tokens])
        logits = model(ids[:, :-1])[0, :, :VOCAB].log_softmax(-1).gather(1, ids[0, 1:, None])[-request.scored :, 0]
        assert found.log_probs == pytest.approx(logits.tolist(), abs=1e-5)
        assert found.log_probs == pytest.approx(alone.log_probs, abs=1e-5) and found.greedy == alone.greedy


def test_files_of_a_run_without_them_do_not_name_them(tmp_path: Any) -> None:
    texts = [
        to_toml(make(tmp_path, tmp_path / "run", model={"family": "llama", "options": options}))
        for options in ({}, {"value_embeddings": 0}, {"value_embeddings": 1})
    ]
    assert texts[0] == texts[1] and "value_embeddings" not in texts[0] and "value_embeddings = 1" in texts[2]


def test_tables_are_looked_up_and_never_multiplied() -> None:
    shape, plain = shape_of("two"), shape_of("two", options=WITH_EMBEDDINGS["two"] | {"value_embeddings": 0})
    assert parameter_count(shape) - parameter_count(plain) == 2 * shape.padded_vocab * 2 * shape.head_dim
    assert flops_per_token(shape) == flops_per_token(plain)
    for name, parameter in empty_model(shape).named_parameters():
        if name.startswith("values."):
            assert is_lookup(name, shape) and not is_orthogonalised(name, parameter)
            assert is_decayed(name, parameter, OptimizerSettings())
            assert not is_decayed(name, parameter, OptimizerSettings(decay_embeddings=False))


def test_a_stage_has_the_tables_of_its_blocks() -> None:
    shape = shape_of("two")
    assert used_beside("values.1.weight", shape) == (1, 4) and used_beside("wte.weight", shape) == (0,)
    found = {}
    for start, stop in ((0, 2), (2, 3), (3, 4), (4, 5)):
        part = empty_model(shape).keep_layers(range(start, stop))
        found[start] = [name for name, _ in part.named_parameters() if name.startswith("values.")]
        assert part.reads_ids == bool(found[start])
        assert all(on_stage(name, shape, part.layers) for name in found[start])
    assert found == {0: ["values.0.weight", "values.1.weight"], 2: [], 3: ["values.0.weight"], 4: ["values.1.weight"]}


def test_stages_one_after_the_other_are_the_model(model: CausalLM) -> None:
    shape, tokens = model.shape, torch.tensor([[5, 7, 5, 299, 0, 7]])
    x = tokens
    for layers in (range(1), range(1, shape.layers - 1), range(shape.layers - 1, shape.layers)):
        part = empty_model(shape).keep_layers(layers).eval()
        part.load_state_dict({name: model.state_dict()[name] for name in part.state_dict()}, assign=True)
        if part.reads_ids and not part.has_embeddings:
            with pytest.raises(ValueError, match="read the token ids, which were not given"):
                part(x)
        x = part(x, ids=tokens)
    assert torch.equal(x, model(tokens))


@pytest.mark.exhaustive
def test_a_compiled_model_has_the_same_gradients() -> None:
    shape, tokens = shape_of("two"), torch.tensor([[5, 7, 5, 299, 0, 7]])
    plain, whole, by_block = (initialise(build_model(shape), 1) for _ in range(3))
    torch._dynamo.reset()
    whole.compile(backend="aot_eager", fullgraph=True)
    for block in by_block.blocks.values():
        block.compile(backend="aot_eager", fullgraph=True)
    for model in (plain, whole, by_block):
        model(tokens, tokens.flip(1)).backward()
    for one, *others in zip(*(model.named_parameters() for model in (plain, whole, by_block)), strict=True):
        for _, other in others:
            assert torch.allclose(one[1].grad, other.grad, atol=1e-6), one[0]


def test_a_classifier_has_them() -> None:
    model = lively(replace(shape_of("one"), labels=3))
    before = model(torch.tensor([[5, 6, 7]]))
    model.get_parameter("values.0.weight")[6] += 1
    assert before.shape == (1, 3) and not torch.equal(before, model(torch.tensor([[5, 6, 7]])))


ENTRIES = 280
FAMILIES = {
    "qwen3": {"kv_heads": 2, "head_dim": 12, "qk_norm": True},
    "own": {"kv_heads": 2, "activation": "relu2", "qk_norm": True, "tied": True},
    "values": {"kv_heads": 2, "value_embeddings": 1},
}
MISSING = {"own": "activation = relu2, qk_norm = true", "values": "value_embeddings = 1"}  # in transformers


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each model, with weights large enough that continuations differ."""
    root = tmp_path_factory.mktemp("llama")
    tokenizer = write_tokenizer(root / "tokenizer", ENTRIES)
    for name, options in FAMILIES.items():
        settings = ModelSettings(family="llama", layers=2, heads=4, hidden=32, context=64, options=options)
        model = lively(settings.shape(ENTRIES))
        write_model(root / name, dict(model.state_dict()), model.shape, tokenizer)
    return root


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code = run_command(app, list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def greedy(folder: Path, prompt: str, count: int) -> list[int]:
    model, ids = read_model(folder), encode_ordinary(load_tokenizer(folder), [prompt])[0]
    for _ in range(count):
        with torch.no_grad():
            ids = [*ids, int(model(torch.tensor([ids]))[0, -1, :ENTRIES].argmax())]
    return ids[-count:]


@pytest.mark.parametrize("name", FAMILIES)
def test_conversion_to_a_checkpoint_and_back_is_exact(
    name: str, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "convert", folders / name, tmp_path / "checkpoint", "--to", "gpt2train")
    run(capsys, "merge", tmp_path / "checkpoint", "--output", tmp_path / "merged")
    back = ["convert", str(tmp_path / "checkpoint"), str(tmp_path / "back"), "--to", "huggingface"]
    assert run_command(app, back) == (2 if name in MISSING else 0)
    if name in MISSING:
        assert f"{MISSING[name]}, which no class of transformers has" in capsys.readouterr().err
    for folder in ("merged",) if name in MISSING else ("back", "merged"):
        for file in ("model.safetensors", "config.json"):
            assert (tmp_path / folder / file).read_bytes() == (folders / name / file).read_bytes()
    assert run_command(app, ["convert", str(folders / name), str(tmp_path / "m"), "--to", "megatron"]) == 2
    assert "gpt2 only, not llama" in capsys.readouterr().err


@pytest.mark.parametrize("name", FAMILIES)
def test_generated_and_served_tokens_are_the_most_likely_ones(
    name: str, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", folders / name, "--prompt", "the tin", "--temperature", "0", "--max-new-tokens", "8", "--json"]
    answer = json.loads(run(capsys, "generate", *flags))
    expected = greedy(folders / name, "the tin", 8)
    tokenizer = load_tokenizer(folders / name)
    assert answer["text"] == tokenizer.decode(expected)
    with running(LocalDecoder(read_model(folders / name), 4), words=tokenizer) as server:
        body = {"prompt": ["the tin", "on"], "max_tokens": 8, "temperature": 0}
        found: httpx.Response = server.client.post("/v1/completions", json=body)
        assert found.status_code == 200, found.text
        assert found.json()["choices"][0]["text"] == answer["text"]
