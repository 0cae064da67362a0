"""`gpt2train export` of an encoder-decoder: llama.cpp's library gives the same tokens and writes the same greedily."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.inference.generate import Generation, SamplingSettings, generate
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.t5_family import options_of
from tests.gpt2train.convert.export_models import export_folder, passages, read_gguf, write_model, write_tokenizer
from tests.gpt2train.convert.llama_cpp_t5_peer import ask

V1_1: dict[str, Any] = {"activation": "gated-gelu", "tied": False, "head_dim": 24, "inner": 96}
# Tokenizer, blocks and options.
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "t5": ("sentencepiece_unigram", 4, {}),
    "t5, byte-level BPE": ("bpe with sentinels", 4, {}),
    "t5 1.1": ("bpe with sentinels", 5, V1_1 | {"encoder_layers": 3}),
}
LONG = " ".join(f"article {number}," for number in range(40))


def check_greedy(folder: Path, file: Path, sentinels: bool) -> None:
    """Check that llama.cpp gives the tokens of prompts, and the greedy tokens of the decoder, of a model folder.

    It computes GELU by a table of float16: logits of T5 1.1 differ by up to 0.03 standard deviations, so that of two
    tokens that are as close the other one may be the likelier there. With ReLU they differ by 1e-5.
    """
    prompts = ["Article 1. All human beings", "Everyone has the right to life.", LONG]
    prompts += ["All <extra_id_0> are born <extra_id_1> equal."] if sentinels else []
    model = read_model(folder)
    ours = generate(model, load_tokenizer(folder), prompts, SamplingSettings(max_new_tokens=64, temperature=0))
    assert len(ours[2].prompt_tokens) > 128  # beyond it, all positions have the same bias
    tokens, likeliest = ask(file, prompts, [answer.tokens for answer in ours])
    assert tokens == [list(answer.prompt_tokens) for answer in ours]
    assert any(len(set(answer.tokens)) > 8 and len(answer.tokens) == 64 for answer in ours)
    gelu = options_of(model.shape).activation == "gated-gelu"
    for answer, theirs in zip(ours, likeliest, strict=True):
        assert list(answer.tokens) == theirs or gelu
        assert lag(model, answer, theirs) < 0.05


def lag(model: CausalLM, answer: Generation, tokens: list[int]) -> float:
    """Largest difference of the model's logit of a token to that of the one written, in standard deviations."""
    inputs = torch.tensor([[options_of(model.shape).start_id, *answer.tokens[:-1]]])
    with torch.no_grad():
        logits = model(torch.tensor([answer.prompt_tokens]), decoder_tokens=inputs)[0]
    written, other = (logits.gather(1, torch.tensor(ids)[:, None]) for ids in (answer.tokens, tokens))
    return float((written - other).max() / logits.std())


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("t5", marks=pytest.mark.exhaustive), "t5, byte-level BPE", "t5 1.1"])
def test_llama_cpp_writes_what_a_t5_does(name: str, tmp_path: Path, open_data: Path) -> None:
    kind, layers, options = MODELS[name]
    tokenizer = write_tokenizer(tmp_path / "t", kind, passages(open_data))
    write_model(tmp_path / "m", tokenizer, "t5", options, layers=layers, context=256)
    export_folder(tmp_path / "m", tmp_path / "m.gguf")
    assert read_gguf(tmp_path / "m.gguf")[0]["general.architecture"] == "t5"
    check_greedy(tmp_path / "m", tmp_path / "m.gguf", kind != "sentencepiece_unigram")
