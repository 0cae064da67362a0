"""`gpt2train export` of scaled rotary positions: llama.cpp continues as the model does."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.inference.generate import SamplingSettings, generate
from tests.gpt2train.convert.export_models import (
    GQA,
    PROMPTS,
    check_continuation,
    export_folder,
    passages,
    read_gguf,
    write_model,
    write_tokenizer,
)
from tests.gpt2train.convert.llama_cpp_peer import ask

pytest.importorskip("gguf", reason="needs the extra gguf")

ORIGINAL = {"original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, **ORIGINAL}
YARN_ALL = {**YARN, "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.0}
QWEN3: dict[str, Any] = {**GQA, "qk_norm": True, "head_dim": 32}
QWEN2: dict[str, Any] = {**GQA, "attention_bias": "qkv"}
# Model -> architecture of llama.cpp, options, and scaling.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama, linear": ("llama", GQA, LINEAR),
    "llama, llama3": ("llama", GQA, LLAMA3),
    "llama, yarn": ("llama", GQA, YARN_ALL),
    "llama, yarn that is not rounded": ("llama", {}, {**YARN, "attention_factor": 0.8, "truncate": False}),
    "arcee, llama3": ("arcee", {**GQA, "activation": "relu2"}, LLAMA3),
    "qwen2, yarn": ("llama", QWEN2, YARN),
    "qwen3, linear": ("qwen3", QWEN3, LINEAR),
    "qwen3, yarn": ("qwen3", QWEN3, {**YARN, "attention_factor": 0.8}),
}
FAST = {"llama, llama3", "qwen3, yarn"}
CASES = [pytest.param(name, marks=() if name in FAST else pytest.mark.exhaustive) for name in MODELS]


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_continues_beyond_the_original_length(name: str, tmp_path: Path, open_data: Path) -> None:
    architecture, options, scaling = MODELS[name]
    tokenizer = write_tokenizer(tmp_path / "t", "bpe", passages(open_data))
    scaled = {**options, "rope_theta": 500.0, "rope_scaling": json.dumps(scaling)}
    write_model(tmp_path / "m", tokenizer, "llama", scaled)
    assert export_folder(tmp_path / "m", tmp_path / "m.gguf", kind="f32") == ()
    assert read_gguf(tmp_path / "m.gguf")[0]["general.architecture"] == architecture
    settings = SamplingSettings(max_new_tokens=64, temperature=0)
    model = read_model(tmp_path / "m")
    ours = generate(model, load_tokenizer(tmp_path / "m"), PROMPTS, settings)
    _, continued = ask(tmp_path / "m.gguf", (), [answer.prompt_tokens for answer in ours])
    for answer, theirs in zip(ours, continued, strict=True):
        check_continuation(model, answer, theirs)
    assert any(len(set(answer.tokens)) > 4 for answer in ours)
