"""Models with biases of queries, keys and values alone: as Llama, and as Qwen2 with a tokenizer that is Qwen's."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.data.template import encode_prompts
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.errors import UserError
from tests.gpt2train.convert.export_models import passages, write_model, write_tokenizer

transformers = pytest.importorskip("transformers", minversion="5")

OPTIONS = {"kv_heads": 2, "attention_bias": "qkv"}
BIAS = "model.layers.1.self_attn.o_proj.bias"
TEXTS = ["We'LL see 1234567 cafe\u0301s:\n\n  d'été\u3000東京"]  # Qwen's: contractions in capitals, digits apart, NFC


@pytest.mark.parametrize(("algorithm", "name"), [("bpe", "Llama"), ("qwen2", "Qwen2")])
def test_transformers_has_our_ids_and_logits(algorithm: str, name: str, tmp_path: Path, open_data: Path) -> None:
    texts = passages(open_data)
    shape = write_model(tmp_path / "m", write_tokenizer(tmp_path / "t", algorithm, texts), "llama", OPTIONS)
    model, ours = read_model(tmp_path / "m"), load_tokenizer(tmp_path / "m")
    assert model.shape == shape  # a run with the same options can begin from the folder
    peer, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert type(peer).__name__ == f"{name}ForCausalLM" and not any(report.values())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    wanted = [*texts, *TEXTS]
    ids = encode_prompts(ours, wanted)
    assert [theirs.encode(text) for text in wanted] == ids
    tokens = torch.tensor([ids[-1]])
    logits = model(tokens)[..., : shape.vocab]
    assert torch.allclose(logits, peer(tokens).logits, rtol=1e-5, atol=1e-5)

    save_model(tmp_path / "again", open_model(tmp_path / "m"), tmp_path / "m")
    for file in (tmp_path / "m").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_bias_that_another_program_has_trained_is_kept(tmp_path: Path, open_data: Path) -> None:
    write_model(tmp_path, open_data / "bpe", "llama", OPTIONS)
    stored = load_file(tmp_path / "model.safetensors")
    stored[BIAS][3] = 1
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"layers\.1.* is not zero.*; remove this field") as caught:
        open_model(tmp_path)
    assert "\n" not in str(caught.value)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"gpt2train_attention_bias": "q"}))
    with pytest.raises(UserError, match="gpt2train_attention_bias is 'q', but only 'qkv' is supported"):
        open_model(tmp_path)
    del config["gpt2train_attention_bias"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_model(tmp_path)
    assert dict(model.shape.options)["attention_bias"] == "all"
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.arange(16)[None]
    assert torch.allclose(model(tokens)[..., : model.shape.vocab], peer(tokens).logits, rtol=1e-5, atol=1e-5)
