"""Folders of Llama and its relatives, T5 and T5 1.1: read, written back, exported, refused if the model differs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from gpt2train.config.model import ModelSettings
from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.inference.generate import Generation, SamplingSettings, continue_tokens, generate
from gpt2train.inference.prompts import encode_for
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.init import initialise
from gpt2train.model.t5 import T5
from gpt2train.model.t5_family import options_of
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.convert.llama_cpp_t5_peer import ask
from tests.gpt2train.convert.model_folders import (
    difference,
    edit,
    export_folder,
    passages,
    read_gguf,
    split_as_qwen,
    stirred,
    write_model,
    write_random,
    write_tokenizer,
    write_trained,
)
from tests.gpt2train.convert.test_hf_tokenizer import trained
from tests.gpt2train.jobs import VOCAB, curve, make

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 72, "max_position_embeddings": 64}
SIZES |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1}
BASE_100K = {"rope_type": "default", "rope_theta": 100_000.0}
TIED = {"tie_word_embeddings": True}
# Kind of model -> class of transformers without its ending, further fields of its config.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with biases, tied": (
        "Llama",
        TIED | {"attention_bias": True, "mlp_bias": True, "head_dim": 16, "rope_parameters": BASE_100K},
    ),
    "llama with all heads": ("Llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "qwen3": ("Qwen3", {"head_dim": 16, "rope_parameters": BASE_100K}),
    "qwen3 with biases, tied": ("Qwen3", TIED | {"head_dim": 12, "attention_bias": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", TIED),
    "arcee": ("Arcee", {"mlp_bias": True}),
    # Without a sliding window: null, or not smaller than the context.
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16, "rope_parameters": BASE_100K}),
    "mistral with all heads, tied": ("Mistral", TIED | {"sliding_window": 64, "num_key_value_heads": 4}),
}
T5_VOCAB = 150
T5_SIZES = {"vocab_size": T5_VOCAB, "d_model": 48, "d_kv": 8, "d_ff": 72, "num_heads": 4, "decoder_start_token_id": 0}
T5_SIZES |= {"num_layers": 2, "num_decoder_layers": 3}
T5_SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
T5_KINDS: dict[str, dict[str, Any]] = {
    "relu, tied": {},
    "gated, untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "relu, untied": {"tie_word_embeddings": False, "num_decoder_layers": 2},
    "gated, tied": {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 32},
}
V1_1: dict[str, Any] = {"activation": "gated-gelu", "tied": False, "head_dim": 24, "inner": 96}
# Tokenizer, blocks and options.
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "t5": ("sentencepiece_unigram", 4, {}),
    "t5, byte-level BPE": ("bpe with sentinels", 4, {}),
    "t5 1.1": ("bpe with sentinels", 5, V1_1 | {"encoder_layers": 3}),
}
LONG = " ".join(f"article {number}," for number in range(40))


def save_peer(kind: str, folder: Path, **more: Any) -> Any:
    name, fields = KINDS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**SIZES | fields)
    peer = stirred(getattr(transformers, f"{name}ForCausalLM")(config))
    peer.save_pretrained(folder, **more)
    return peer


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_transformers_is_read_and_written_back(kind: str, tmp_path: Path) -> None:
    peer = save_peer(kind, tmp_path / "theirs")
    assert difference(tmp_path / "theirs", peer) <= 1e-5
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    if KINDS[kind][0] == "Qwen2":  # with another tokenizer it is written as a Llama
        split_as_qwen(tokenizer)
    save_model(tmp_path / "ours", open_model(tmp_path / "theirs"), tokenizer)
    written, read = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert written.keys() == read.keys()
    assert all(torch.equal(written[name], read[name]) for name in read)
    again, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    written_as = transformers.LlamaForCausalLM if "mistral" in kind else type(peer)
    assert type(again) is written_as and not any(report.values())
    if type(again) is type(peer):
        ours, theirs = again.config.to_dict(), peer.config.to_dict()
        own = {"_name_or_path", "dtype", "transformers_version", "rope_theta", "head_dim", "architectures"}
        assert {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)} <= own
    assert again.config.architectures == [written_as.__name__]
    assert difference(tmp_path / "ours", again) <= 1e-5
    assert "library_name: transformers" in (tmp_path / "ours/README.md").read_text()


def test_a_bias_that_another_program_has_trained_is_kept(tmp_path: Path) -> None:
    """Of a model with biases of queries, keys and values alone, which is written as a Llama."""
    save_peer("qwen2", tmp_path / "theirs")
    folder = tmp_path / "m"
    save_model(folder, open_model(tmp_path / "theirs"), write_tokenizer(tmp_path / "tokenizer", VOCAB))
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.1.self_attn.o_proj.bias"][3] = 1
    save_file(stored, folder / "model.safetensors")
    for field, message in (
        ("qkv", r"layers\.1.* is not zero.*; remove this field"),
        ("q", "gpt2train_attention_bias is 'q', but only 'qkv' is supported"),
    ):
        edit(folder, gpt2train_attention_bias=field)
        with pytest.raises(UserError, match=message) as caught:
            open_model(folder)
        assert "\n" not in str(caught.value)
    edit(folder, gpt2train_attention_bias=None)
    assert dict(read_model(folder).shape.options)["attention_bias"] == "all"
    assert difference(folder, transformers.AutoModelForCausalLM.from_pretrained(folder)) <= 1e-5


def test_a_mistral_with_a_sliding_window_is_refused(tmp_path: Path) -> None:
    save_peer("mistral", tmp_path)
    file = tmp_path / "config.json"
    plain = json.loads(file.read_text())
    assert plain["sliding_window"] is None  # so that transformers, which takes 4096 for a missing field, has none
    only = "but the context has 64 tokens, and only a window that contains it, or null, is supported"
    for window in (63, 0, True, "4096", [64]):
        file.write_text(json.dumps(plain | {"sliding_window": window}))
        with pytest.raises(UserError) as caught:
            open_model(tmp_path)
        assert f"{file}: sliding_window is {window}, {only}" in str(caught.value) and "\n" not in str(caught.value)
    del plain["sliding_window"]
    file.write_text(json.dumps(plain))
    open_model(tmp_path)  # 4096, more than the context
    file.write_text(json.dumps(plain | {"max_position_embeddings": 8192}))
    with pytest.raises(UserError, match="sliding_window is missing, which means 4096, but the context has 8192 tokens"):
        open_model(tmp_path)


def test_older_folders_are_read(tmp_path: Path) -> None:
    """Shards, `rope_theta` beside the sizes, missing fields, stored frequencies, a tied head that is stored."""
    peer = save_peer("llama with biases, tied", tmp_path / "theirs", max_shard_size="40KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    edit(tmp_path / "theirs", rope_parameters=None, rope_theta=100_000.0)
    assert difference(tmp_path / "theirs", peer) <= 1e-5

    peer = save_peer("llama with all heads", tmp_path / "first")
    shared = load_file(tmp_path / "first/model.safetensors")
    shared |= {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(6) for n in range(3)}
    save_file(shared, tmp_path / "first/model.safetensors")
    missing = dict.fromkeys(("rope_parameters", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias"))
    edit(tmp_path / "first", **missing, rope_scaling={"type": "default"})
    assert difference(tmp_path / "first", peer) <= 1e-5

    peer = save_peer("qwen2, tied", tmp_path / "tied")
    stored = load_file(tmp_path / "tied/model.safetensors")
    head = stored["model.embed_tokens.weight"].clone()
    save_file(stored | {"lm_head.weight": head}, tmp_path / "tied/model.safetensors")
    assert difference(tmp_path / "tied", peer) <= 1e-5
    save_file(stored | {"lm_head.weight": head + 1}, tmp_path / "tied/model.safetensors")
    with pytest.raises(UserError, match="tie_word_embeddings"):
        open_model(tmp_path / "tied")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope', but only default, linear, dynamic"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_type llama3 needs low_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "two"}}, "rope_scaling: factor"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "rope_type is "),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_scaling: factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": "x"}}, "original_"),
        ({"rope_scaling": "yarn"}, "rope_scaling is yarn; expected a table"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor in rope_parameters is '0.5'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is '0.5'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', but only 'silu' is supported"),
        ({"use_sliding_window": True}, "use_sliding_window is 'True'"),
        ({"layer_types": ["sliding_attention"]}, "layer_types is 'sliding_attention'"),
        ({"layer_types": 3}, "layer_types is 3; expected a list"),
        ({"num_key_value_heads": 3}, "kv_heads 3 does not divide heads 4"),
        ({"head_dim": 7}, "rotary positions need an even one"),
        ({"hidden_size": 50}, "hidden_size 50 is not divisible by num_attention_heads 4"),
        ({"intermediate_size": "64"}, "the size intermediate_size is '64'; expected a whole number"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config says that the weights are quantized"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization says that the weights are quantized"),
        ({"rms_norm_eps": "small"}, "norm_eps"),
        ({"intermediate_size": 64}, "gate_proj"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_peer("llama", tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(UserError, match=message) as caught:
        open_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [{}, {"mlp_bias": True}, {"tied": True}])  # of Qwen3, and of no class
def test_the_norm_of_the_embedding_is_in_the_rows_of_the_folder(more: dict[str, Any], tmp_path: Path) -> None:
    options = {"embedding_norm": True, "qk_norm": True, "norm_eps": 1e-3, **more}
    settings = ModelSettings(family="llama", layers=2, heads=4, hidden=32, context=16, options=options)
    model = initialise(build_model(settings.shape(VOCAB)), 1).eval()
    write_model(tmp_path / "m", dict(model.state_dict()), model.shape, write_tokenizer(tmp_path / "tokenizer", VOCAB))
    ids, ours = torch.arange(16)[None], read_model(tmp_path / "m")
    assert dict(ours.shape.options).get("embedding_norm", False) == ("tied" in more)
    with torch.no_grad():
        expected = model(ids)[..., :VOCAB]
        torch.testing.assert_close(ours(ids)[..., :VOCAB], expected, atol=1e-5, rtol=0)
        if not more:
            peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
            assert type(peer).__name__ == "Qwen3ForCausalLM"
            torch.testing.assert_close(peer(ids).logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"activation": "relu2", "qk_norm": True}, "activation = relu2, qk_norm = true"),
        ({"qk_norm": True, "mlp_bias": True}, "qk_norm = true, mlp_bias = true"),
        ({"head_dim": 12}, "head_dim = 12"),
        ({"logit_softcap": 2.0}, "logit_softcap = 2"),
        ({"embedding_norm": True, "tied": True}, "embedding_norm with tied"),
        ({"logit_softcap": 2.0, "value_embeddings": 1}, "logit_softcap = 2, value_embeddings = 1"),
    ],
)
def test_what_transformers_does_not_have_is_saved_under_our_names(
    options: dict[str, Any], missing: str, tmp_path: Path
) -> None:
    heads = 3 if "head_dim" in options else 4
    settings = ModelSettings(family="llama", layers=2, heads=heads, hidden=32, context=16, options=options)
    model = initialise(build_model(settings.shape(VOCAB)), 1)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    write_model(tmp_path / "m", dict(model.state_dict()), model.shape, tokenizer)
    assert json.loads((tmp_path / "m/config.json").read_text())["model_type"] == "gpt2train_llama"
    assert "transformers" not in (tmp_path / "m/README.md").read_text()
    assert layout_of("llama").missing_in_transformers(model.shape) == missing
    again = read_model(tmp_path / "m")
    assert again.shape == model.shape
    rows = {"wte.weight", "lm_head.weight", "values.0.weight"}
    for name, tensor in again.state_dict().items():
        stop = VOCAB if name in rows else None
        assert torch.equal(tensor[:stop], model.state_dict()[name][:stop])


@pytest.mark.parametrize("kind", ["qwen3", "mistral"])
def test_a_training_starts_from_a_folder(kind: str, tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    save_peer(kind, tmp_path / "theirs")
    write_tokenizer(tmp_path / "tokenizer", VOCAB)
    options = {"kv_heads": 2, "head_dim": 16, "inner": 72, "rope_theta": 1e5, "norm_eps": 1e-6}
    options["qk_norm"] = kind == "qwen3"
    model = {"family": "llama", "layers": 3, "heads": 4, "hidden": 48, "max_positions": 64, "options": options}
    start = {"steps": 3, "schedule": {"warmup": 1}, "checkpoints": {"init_from": str(tmp_path / "theirs")}}
    config = make(tokens, tmp_path / "run", model=model, **start)
    train(config, alone)
    batch = packed_data(config, "train").batch(range(8))
    logits = read_model(tmp_path / "theirs")(batch.tokens)[..., :VOCAB]
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).item()
    losses = curve(config.output)
    assert losses[0] == pytest.approx(expected, rel=1e-5) and losses[2] < losses[0]
    for change, message in (
        ({"rope_theta": 1e4}, r"another model\.options\.rope_theta \(100000\.0 there, 10000\.0 now\)"),
        ({"kv_heads": 1}, r"another model\.options\.kv_heads \(2 there, 1 now\)"),
        ({"embedding_norm": True}, r"another model\.options\.embedding_norm \(off there, on now\); set it as"),
    ):
        other = make(tokens, tmp_path / "other", model=model | {"options": options | change}, **start)
        with pytest.raises(UserError, match=message):
            train(other, alone)


CONTEXT, ORIGINAL = 64, 16
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


def save_scaled(scaling: dict[str, Any], folder: Path) -> Any:
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
    peer = save_scaled(scaling, tmp_path / "theirs")
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
    peer = save_scaled(SCALINGS[kind], tmp_path)
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


def save_t5(kind: str, folder: Path) -> Any:
    """Write a random model of transformers, with all parameters away from their initial values; return it."""
    torch.manual_seed(1)
    peer = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5_SIZES | T5_KINDS[kind])).eval()
    if "untied" in kind:  # transformers 5 creates every T5 tied, but reads one with a head of its own
        peer.lm_head = torch.nn.Linear(T5_SIZES["d_model"], T5_VOCAB, bias=False)
    stirred(peer)
    folder.mkdir()
    tensors = {name: tensor.clone() for name, tensor in peer.state_dict().items() if "embed_tokens" not in name}
    if "untied" not in kind:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    peer.config.save_pretrained(folder)
    edit(folder, tie_word_embeddings="untied" not in kind)
    return peer


def t5_difference(folder: Path, peer: Any, lengths: torch.Tensor | None = None) -> float:
    """Largest difference of a logit, in standard deviations of the logits."""
    generator = torch.Generator().manual_seed(2)
    tokens, inputs = (torch.randint(T5_VOCAB, (3, length), generator=generator) for length in (50, 33))
    mask = None if lengths is None else (torch.arange(50) < lengths[:, None]).long()
    with torch.no_grad():
        ours = read_model(folder)(tokens, decoder_tokens=inputs, lengths=lengths)[..., :T5_VOCAB]
        theirs = peer(tokens, decoder_input_ids=inputs, attention_mask=mask).logits
    return float((ours - theirs).abs().max() / theirs.std())


@pytest.mark.parametrize("kind", T5_KINDS)
def test_a_folder_of_a_t5_is_read_and_written_back(kind: str, tmp_path: Path) -> None:
    peer = save_t5(kind, tmp_path / "theirs")
    assert t5_difference(tmp_path / "theirs", peer) <= 1e-5
    assert t5_difference(tmp_path / "theirs", peer, torch.tensor([50, 1, 20])) <= 1e-5
    tokenizer = write_tokenizer(tmp_path / "tokenizer", T5_VOCAB)
    save_model(tmp_path / "ours", open_model(tmp_path / "theirs"), tokenizer)
    written, read = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert written.keys() == read.keys()
    assert all(torch.equal(written[name], read[name]) for name in read)
    again, report = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    assert t5_difference(tmp_path / "ours", again) <= 1e-5
    assert t5_difference(tmp_path / "theirs", again) <= 1e-5
    again.save_pretrained(tmp_path / "again")
    assert t5_difference(tmp_path / "again", again) <= 1e-5
    assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")) is type(peer)
    assert open_model(tmp_path / "ours").shape == open_model(tmp_path / "theirs").shape


def test_stored_copies_are_skipped_and_differing_ones_refused(tmp_path: Path) -> None:
    peer = save_t5("relu, tied", tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    tensors = load_file(file)
    shared = tensors["shared.weight"]
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    copies = {f"{stack}.embed_tokens.weight": shared.clone() for stack in ("encoder", "decoder")}
    save_file(tensors | copies | {"lm_head.weight": shared.clone(), unused: torch.ones(8, 4)}, file)
    assert t5_difference(tmp_path / "model", peer) <= 1e-5
    save_file(tensors | {"lm_head.weight": shared + 1}, file)
    with pytest.raises(UserError, match=r"lm_head.weight differs from shared.weight, .*; set tie_word_embeddings to"):
        open_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj is 'gated-silu', but only 'relu' and 'gated-gelu'"),
        ({"d_kv": None}, "the size d_kv is missing"),
        ({"num_layers": 0}, "the size num_layers is 0; expected a whole number"),
        ({"num_heads": 3}, r"SelfAttention.*has the shape|attn.*has the shape|bias.*has the shape"),
        ({"model_type": "bart"}, "model_type is 'bart', but only .* is supported"),
    ],
)
def test_another_model_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_t5("relu, tied", tmp_path / "model")
    edit(tmp_path / "model", **changes)
    with pytest.raises(UserError, match=message):
        open_model(tmp_path / "model")


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])  # written as a tokenizer.json, and as the model
def test_a_text_ends_as_by_the_tokenizer_that_was_read(rule: str, tmp_path: Path) -> None:
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"}
    source = tmp_path / "t5"
    source.mkdir()
    options = {"model_type": "unigram", "vocab_size": 90, "normalization_rule_name": rule, **ids}
    (source / "spiece.model").write_bytes(trained(options))
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    shape = write_random(tmp_path / "ours", source, "t5", {})
    theirs, ours = (transformers.AutoTokenizer.from_pretrained(tmp_path / name) for name in ("t5", "ours"))
    texts = ["the quick fox", "", "a b"]
    assert ours(texts)["input_ids"] == theirs(texts)["input_ids"] == encode_for(shape, load_tokenizer(source), texts)
    prompt = "the" + ours.eos_token  # as the card writes it for every tokenizer
    assert ours(prompt, add_special_tokens=False)["input_ids"] == ours("the")["input_ids"]
    assert (tmp_path / "ours/tokenizer.json").exists() is (rule == "identity")


def test_initial_values_have_the_scales_of_transformers(tmp_path: Path) -> None:
    """Each matrix has the standard deviation of the same matrix in transformers, within a few percent."""
    options = {"head_dim": 32, "inner": 512, "activation": "gated-gelu", "encoder_layers": 1}
    fields = {"family": "t5", "layers": 2, "heads": 8, "hidden": 128, "context": 64, "options": options}
    shape = ModelSettings.model_validate(fields).shape(T5_VOCAB)
    model = initialise(build_model(shape), 5)
    assert isinstance(model, T5)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", T5_VOCAB)
    write_model(tmp_path / "ours", dict(model.named_parameters()), shape, tokenizer)
    config = transformers.T5Config.from_pretrained(tmp_path / "ours")
    theirs = transformers.T5ForConditionalGeneration(config).state_dict()
    ours = load_file(tmp_path / "ours/model.safetensors")
    for name, tensor in ours.items():
        expected = theirs[name].std() if tensor.dim() > 1 else theirs[name].mean()
        found = tensor.std() if tensor.dim() > 1 else tensor.mean()
        assert float(found / expected) == pytest.approx(1, rel=0.15 if tensor.numel() < 1000 else 0.05), name


def test_the_card_is_right_about_a_text_with_sentinels(
    tmp_path: Path, open_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = write_trained(tmp_path / "t", "bpe with sentinels", passages(open_data))
    shape = write_random(tmp_path / "model", tokenizer, "t5", {})
    card = (tmp_path / "model/README.md").read_text()
    assert "trained to predict" not in card and "gpt2train serve" not in card
    code = re.search(r"```python\n(.+?)```", card, re.DOTALL)
    assert code
    capsys.readouterr()
    names: dict[str, Any] = {}
    exec(code[1].replace('"MODEL"', repr(str(tmp_path / "model"))), names)
    printed = capsys.readouterr().out.strip()
    prompt = "The first <extra_id_0> to know"
    ours = load_tokenizer(tmp_path / "model")
    assert "add_special_tokens=False" in code[1]  # T5's own tokenizer puts the end after a text itself
    assert names["ids"].input_ids.tolist() == encode_for(shape, ours, [prompt])
    assert ours.token_to_id("<extra_id_0>") in names["ids"].input_ids[0]
    settings = SamplingSettings(max_new_tokens=40, temperature=0)
    written = generate(read_model(tmp_path / "model"), ours, [prompt], settings)[0]
    assert printed == names["tokenizer"].decode([ours.token_to_id("<pad>"), *written.tokens]).strip()
    padded = names["tokenizer"](["one", "a longer text"], return_tensors="pt", padding=True)
    assert padded.input_ids[0, -1] == ours.token_to_id("<pad>") and padded.attention_mask[0, -1] == 0


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
    tokenizer = write_trained(tmp_path / "t", kind, passages(open_data))
    write_random(tmp_path / "m", tokenizer, "t5", options, layers=layers, context=256)
    export_folder(tmp_path / "m", tmp_path / "m.gguf")
    assert read_gguf(tmp_path / "m.gguf")[0]["general.architecture"] == "t5"
    check_greedy(tmp_path / "m", tmp_path / "m.gguf", kind != "sentencepiece_unigram")
