"""Requirements of vLLM and SGLang on a model folder, from their published model code, on folders of every family.

Sources: vLLM 0.33.0, `vllm/model_executor/models/{gpt2,llama,qwen2,qwen3}.py` and `registry.py`; SGLang 0.5.23,
`sglang/srt/models/{gpt2,llama,qwen2,qwen3,arcee}.py`. Both read `config.json` by `AutoConfig`, the tokenizer by
`AutoTokenizer`, and every tensor of `*.safetensors`; an unexpected name, or a missing one, is an error.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.gpt2train.convert.export_models import GQA, passages, write_model, write_tokenizer

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
# Attributes that the code reads without a default.
READ = {
    "GPT2LMHeadModel": (
        *("vocab_size", "hidden_size", "n_embd", "num_attention_heads", "num_hidden_layers", "n_inner"),
        *("max_position_embeddings", "layer_norm_epsilon", "activation_function", "tie_word_embeddings"),
    ),
    "LlamaForCausalLM": (
        *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
        *("num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "hidden_act", "rope_parameters"),
        *("tie_word_embeddings", "pad_token_id"),
    ),
}
HIDDEN_ACT = {"ArceeForCausalLM": "relu2"}  # of the others: silu
GPT2_ACTIVATIONS = ("gelu_new", "gelu", "relu")  # of vLLM; SGLang always computes gelu_new
# gpt2.py, asserts
MUST_BE_FALSE = ("add_cross_attention", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")


def gpt2_tensors(config: Any) -> dict[str, tuple[int, ...]]:
    """Tensors that `gpt2.py` loads, matrices as [in, out], each with its bias."""
    width, inner = config.hidden_size, config.n_inner if config.n_inner is not None else 4 * config.hidden_size
    linear = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width), "mlp.c_fc": (width, inner)}
    linear["mlp.c_proj"] = (inner, width)
    found = {"wte.weight": (config.vocab_size, width), "wpe.weight": (config.max_position_embeddings, width)}
    norms = ["ln_f"]
    for layer in range(config.num_hidden_layers):
        norms += [f"h.{layer}.ln_1", f"h.{layer}.ln_2"]
        for name, size in linear.items():
            found |= {f"h.{layer}.{name}.weight": size, f"h.{layer}.{name}.bias": size[1:]}
    found |= {f"{name}.{kind}": (width,) for name in norms for kind in ("weight", "bias")}
    return {f"transformer.{name}": size for name, size in found.items()}


def llama_tensors(config: Any, architecture: str) -> dict[str, tuple[int, ...]]:
    """Tensors that `llama.py`, `qwen2.py`, `qwen3.py` and `arcee.py` load, matrices as [out, in]."""
    width, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    qwen2 = architecture == "Qwen2ForCausalLM"
    head = width // heads if qwen2 else config.head_dim  # vLLM's Qwen2 does not read head_dim
    kv = config.num_key_value_heads * head
    qkv_bias = qwen2 or config.attention_bias
    output_bias = config.attention_bias if architecture in ("LlamaForCausalLM", "ArceeForCausalLM") else False
    mlp_bias = architecture == "LlamaForCausalLM" and config.mlp_bias
    linear = {
        "self_attn.q_proj": (heads * head, width, qkv_bias),
        "self_attn.k_proj": (kv, width, qkv_bias),
        "self_attn.v_proj": (kv, width, qkv_bias),
        "self_attn.o_proj": (width, heads * head, output_bias),
        "mlp.up_proj": (inner, width, mlp_bias),
        "mlp.down_proj": (width, inner, mlp_bias),
    }
    if architecture != "ArceeForCausalLM":
        linear["mlp.gate_proj"] = (inner, width, mlp_bias)
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, width)}
    found["model.norm.weight"] = (width,)
    for layer in range(config.num_hidden_layers):
        block = f"model.layers.{layer}."
        for name, (rows, columns, bias) in linear.items():
            found[f"{block}{name}.weight"] = (rows, columns)
            found |= {f"{block}{name}.bias": (rows,)} if bias else {}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{block}{norm}.weight"] = (width,)
        if architecture == "Qwen3ForCausalLM":
            found |= {f"{block}self_attn.{part}_norm.weight": (head,) for part in "qk"}
    return found | ({} if config.tie_word_embeddings else {"lm_head.weight": (config.vocab_size, width)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_what_vllm_and_sglang_read(kind: str, tmp_path: Path, open_data: Path) -> None:
    algorithm, family, options, architecture = KINDS[kind]
    folder = tmp_path / "m"
    write_model(folder, write_tokenizer(tmp_path / "t", algorithm, passages(open_data)), family, options)
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.architectures == [architecture]
    for name in READ["GPT2LMHeadModel" if family == "gpt2" else "LlamaForCausalLM"]:
        assert hasattr(config, name), name
    assert config.dtype == torch.float32  # `--dtype auto` begins from it
    with safe_open(folder / "model.safetensors", "pt") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    if family == "gpt2":
        assert not any(getattr(config, name) for name in MUST_BE_FALSE)
        assert config.activation_function in GPT2_ACTIVATIONS and config.tie_word_embeddings
        assert stored == gpt2_tensors(config)
    else:
        assert config.hidden_act == HIDDEN_ACT.get(architecture, "silu")
        assert config.rope_parameters["rope_theta"] == 10_000 and config.rope_parameters["rope_type"] == "default"
        assert config.num_attention_heads % config.num_key_value_heads == 0
        assert stored == llama_tensors(config, architecture)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) <= config.vocab_size
    assert tokenizer.eos_token_id == config.eos_token_id
    assert tokenizer.model_max_length == config.max_position_embeddings == 128
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == config.eos_token_id
