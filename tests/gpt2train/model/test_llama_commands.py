"""The commands on models of the family llama: convert, generate, serve and evaluate."""

import json
from pathlib import Path

import httpx
import pytest
import torch

from gpt2train.cli import app
from gpt2train.command_line import run_command
from gpt2train.config.model import ModelSettings
from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.inference.decoder import LocalDecoder
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.models import lively
from tests.gpt2train.parallel.small_model_folder import write_tokenizer
from tests.gpt2train.serve.local_server import running

VOCAB = 280
MODELS = {
    "qwen3": {"kv_heads": 2, "head_dim": 12, "qk_norm": True},
    "own": {"kv_heads": 2, "activation": "relu2", "qk_norm": True, "tied": True},
    "values": {"kv_heads": 2, "value_embeddings": 1},
}
MISSING = {"own": "activation = relu2, qk_norm = true", "values": "value_embeddings = 1"}  # in transformers


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each model, with weights large enough that continuations differ."""
    root = tmp_path_factory.mktemp("llama")
    tokenizer = write_tokenizer(root / "tokenizer", VOCAB)
    for name, options in MODELS.items():
        settings = ModelSettings(family="llama", layers=2, heads=4, hidden=32, context=64, options=options)
        model = lively(settings.shape(VOCAB))
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
            ids = [*ids, int(model(torch.tensor([ids]))[0, -1, :VOCAB].argmax())]
    return ids[-count:]


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", MODELS)
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
