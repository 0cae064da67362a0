"""Requirements of vLLM and SGLang on a model folder, from their published model code, on folders of every family.

Sources: vLLM 0.33.0, `vllm/model_executor/models/{gpt2,llama,qwen2,qwen3}.py` and `registry.py`; SGLang 0.5.23,
`sglang/srt/models/{gpt2,llama,qwen2,qwen3,arcee}.py`. Both read `config.json` by `AutoConfig`, the tokenizer by
`AutoTokenizer`, and every tensor of `*.safetensors`; an unexpected name, or a missing one, is an error. The names and
shapes are those with which transformers saves the model.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.data.template import encode_prompts
from gpt2train.data.tokenizer import load_tokenizer
from tests.gpt2train.convert.export_models import GQA, passages, write_model, write_tokenizer
from tests.gpt2train.convert.peers import difference

transformers = pytest.importorskip("transformers", minversion="5")

QKV = GQA | {"attention_bias": "qkv"}
BIASED = GQA | {"attention_bias": "all", "mlp_bias": True, "head_dim": 24, "tied": True}
# Kind -> tokenizer, family, options, and the architecture in both registries (Arcee: SGLang's; vLLM's is the class of
# transformers itself).
KINDS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt2": ("bpe", "gpt2", {"inner": 96}, "GPT2LMHeadModel"),
    "llama": ("sentencepiece_bpe", "llama", GQA, "LlamaForCausalLM"),
    "llama with biases": ("bpe", "llama", BIASED, "LlamaForCausalLM"),
    "llama with biases of queries, keys and values": ("bpe", "llama", QKV, "LlamaForCausalLM"),
    "qwen2": ("qwen2", "llama", QKV, "Qwen2ForCausalLM"),
    "qwen3": ("sentencepiece_unigram", "llama", GQA | {"qk_norm": True, "head_dim": 32}, "Qwen3ForCausalLM"),
    "arcee": ("bpe", "llama", GQA | {"activation": "relu2"}, "ArceeForCausalLM"),
}
HIDDEN_ACT = {"ArceeForCausalLM": "relu2"}  # of the others: silu
HARD = "We'LL see 1234567 cafe\u0301s:\n\n  d'été\u3000東京"  # Qwen's: contractions in capitals, digits apart, NFC


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_what_vllm_and_sglang_read(kind: str, tmp_path: Path, open_data: Path) -> None:
    algorithm, family, options, architecture = KINDS[kind]
    folder, texts = tmp_path / "m", passages(open_data)
    shape = write_model(folder, write_tokenizer(tmp_path / "t", algorithm, texts), family, options)
    assert read_model(folder).shape == shape  # a run with the same options can begin from the folder
    peer, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    config = peer.config
    assert config.architectures == [type(peer).__name__] == [architecture] and not any(report.values())
    assert config.dtype == torch.float32  # `--dtype auto` begins from it
    assert difference(folder, peer) <= 1e-5
    peer.save_pretrained(tmp_path / "theirs")
    file = "model.safetensors"
    assert (tmp_path / "theirs" / file).read_bytes() == (folder / file).read_bytes()
    save_model(tmp_path / "again", open_model(folder), folder)
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
    if family == "llama":
        assert config.hidden_act == HIDDEN_ACT.get(architecture, "silu")
        assert config.rope_parameters["rope_theta"] == 10_000 and config.rope_parameters["rope_type"] == "default"
        assert architecture != "Qwen2ForCausalLM" or options.get("head_dim", 16) == 16  # vLLM's does not read head_dim
    else:
        assert config.bos_token_id == config.eos_token_id and config.tie_word_embeddings
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert [tokenizer.encode(text) for text in [*texts, HARD]] == encode_prompts(load_tokenizer(folder), [*texts, HARD])
    assert len(tokenizer) <= config.vocab_size and tokenizer.eos_token_id == config.eos_token_id
    assert tokenizer.model_max_length == config.max_position_embeddings == 128
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == config.eos_token_id
