"""Scaled rotary positions: equal to transformers, also beyond the original length, and written back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.config.model import ModelSettings
from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.inference.generate import SamplingSettings, continue_tokens
from tests.gpt2train.convert.peers import difference, stirred
from tests.gpt2train.parallel.small_model_folder import write_tokenizer

transformers = pytest.importorskip("transformers")

VOCAB, CONTEXT, ORIGINAL = 300, 64, 16
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LLAMA3 = YARN | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN_ALL = YARN | {"factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with all fields": YARN_ALL | {"truncate": False},
    "yarn with an attention factor": YARN | {"attention_factor": 1.3},
}


def save_peer(scaling: dict[str, Any], folder: Path) -> Any:
    torch.manual_seed(1)
    stated = ORIGINAL if scaling["rope_type"] == "dynamic" else CONTEXT
    fields = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 72, "max_position_embeddings": stated}
    fields |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**fields, rope_parameters=scaling | {"rope_theta": 500.0})
    peer = stirred(transformers.LlamaForCausalLM(config))
    peer.save_pretrained(folder)
    return peer


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_logits_are_those_of_transformers_and_the_scaling_is_written_back(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    peer = save_peer(scaling, tmp_path / "theirs")
    assert read_model(tmp_path / "theirs").shape.context == CONTEXT
    for length in (ORIGINAL - 3, ORIGINAL, CONTEXT - 5, CONTEXT):
        assert difference(tmp_path / "theirs", peer, length) <= 1e-5, length
    save_model(tmp_path / "ours", open_model(tmp_path / "theirs"), write_tokenizer(tmp_path / "tokenizer", VOCAB))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.config.rope_parameters == peer.config.rope_parameters
    assert again.config.max_position_embeddings == peer.config.max_position_embeddings
    assert read_model(tmp_path / "ours").shape == read_model(tmp_path / "theirs").shape
    # As written before version 5 of transformers: `rope_scaling` with `type`, the base beside it. If both tables are
    # there, that one is read: users add it by hand, for longer texts.
    file = tmp_path / "theirs/config.json"
    config = json.loads(file.read_text())
    older = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
    for other in (None, {"rope_type": "default", "rope_theta": 9.0}, {"rope_type": "linear", "factor": 9.0}):
        edited = {"rope_theta": 500.0, "rope_scaling": older, "rope_parameters": other}
        file.write_text(json.dumps(config | edited))
        assert transformers.AutoConfig.from_pretrained(tmp_path / "theirs").rope_parameters["rope_theta"] == 500.0
        assert read_model(tmp_path / "theirs").shape == read_model(tmp_path / "ours").shape


@pytest.mark.parametrize("kind", ["llama3", "dynamic", "yarn"])
def test_greedy_tokens_beyond_the_original_length_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    peer = save_peer(SCALINGS[kind], tmp_path)
    peer.generation_config.eos_token_id = None
    prompt = torch.randint(VOCAB, (1, 9), generator=torch.Generator().manual_seed(3))
    theirs = peer.generate(prompt, max_new_tokens=40, do_sample=False, pad_token_id=0)[0, 9:].tolist()
    settings = SamplingSettings(temperature=0, max_new_tokens=40)
    assert continue_tokens(read_model(tmp_path), prompt.tolist(), settings)[0].tokens == theirs


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ("{", "rope_scaling: not JSON"),
        ("[1]", "a JSON object expected"),
        ('{"rope_type": "ntk"}', "rope_type is 'ntk', but only default, linear, dynamic, llama3, yarn are supported"),
        ('{"rope_type": "linear", "factor": 0}', "rope_scaling: factor: input should be greater than 0"),
        ('{"rope_type": "dynamic", "factor": 2}', "rope_type dynamic needs original_max_position_embeddings"),
        (json.dumps(YARN | {"original_max_position_embeddings": 10**30}), "embeddings: input should be less than"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_wrong_setting_is_refused(scaling: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSettings.model_validate({"family": "llama", "options": {"rope_scaling": scaling}})
