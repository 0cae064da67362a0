"""`gpt2train export`: llama.cpp itself gives the same tokens and continuations; what vLLM and SGLang read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from gpt2train.convert.gguf_tokenizer import PATTERNS
from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.data.template import encode_prompts
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.inference.generate import SamplingSettings, generate
from tests.gpt2train.convert.llama_cpp_peer import ask
from tests.gpt2train.convert.model_folders import (
    GQA,
    PROMPTS,
    check_continuation,
    difference,
    export_folder,
    passages,
    read_gguf,
    write_random,
    write_trained,
)

pytest.importorskip("gguf", reason="needs the extra gguf")

HARD = ["", "\n", " \n", " a", "a  b ", "'Tis we'll she'LL", "x\u00a0y\u3000z", "<|endoftext|> </s>"]
HARD += ["😀👩‍👩‍👧 é e\u0301"]
BIASED = {"attention_bias": "all", "mlp_bias": True}
QKV = {"attention_bias": "qkv"}
QWEN3: dict[str, Any] = GQA | {"qk_norm": True, "head_dim": 32}
ORIGINAL = {"original_max_position_embeddings": 16}  # prompts and continuations are longer
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, **ORIGINAL}
YARN_ALL = {**YARN, "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.0}


def scaled(options: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    return {**options, "rope_theta": 500.0, "rope_scaling": json.dumps(scaling)}


# Model -> tokenizer, family and options.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("bpe", "gpt2", {}),
    "gpt2 without biases, untied": ("bpe", "gpt2", {"bias": False, "tied": False, "inner": 96}),
    "llama": ("sentencepiece_bpe", "llama", GQA),
    "llama with biases": ("bpe", "llama", GQA | BIASED | {"head_dim": 24, "tied": True}),
    "llama, unigram": ("sentencepiece_unigram", "llama", {}),
    "qwen2": ("bpe", "llama", GQA | QKV),
    "qwen2 with wide heads": ("bpe", "llama", GQA | QKV | {"head_dim": 32}),
    "qwen3": ("bpe", "llama", QWEN3 | {"rope_theta": 1e6, "norm_eps": 1e-6}),
    "qwen3 with biases": ("bpe", "llama", {"qk_norm": True, "attention_bias": "qkv"}),
    "arcee": ("bpe", "llama", GQA | {"activation": "relu2"}),
    "llama, linear": ("bpe", "llama", scaled(GQA, LINEAR)),
    "llama, llama3": ("bpe", "llama", scaled(GQA, LLAMA3)),
    "llama, yarn": ("bpe", "llama", scaled(GQA, YARN_ALL)),
    "llama, yarn not rounded": (
        "bpe",
        "llama",
        scaled({}, YARN | {"attention_factor": 0.8, "truncate": False}),
    ),
    "arcee, llama3": ("bpe", "llama", scaled(GQA | {"activation": "relu2"}, LLAMA3)),
    "qwen2, yarn": ("bpe", "llama", scaled(GQA | QKV, YARN)),
    "qwen3, linear": ("bpe", "llama", scaled(QWEN3, LINEAR)),
    "qwen3, yarn": ("bpe", "llama", scaled(QWEN3, YARN | {"attention_factor": 0.8})),
}
FAST = {"gpt2", "llama", "qwen3", "llama, llama3", "qwen3, yarn"}
CASES = [pytest.param(name, marks=() if name in FAST else pytest.mark.exhaustive) for name in MODELS]


@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_continues_as_the_model_does(name: str, tmp_path: Path, open_data: Path) -> None:
    algorithm, family, options = MODELS[name]
    texts = passages(open_data)
    write_random(tmp_path / "m", write_trained(tmp_path / "t", algorithm, texts), family, options)
    notes = export_folder(tmp_path / "m", tmp_path / "m.gguf")
    if "rope_scaling" in options:
        architecture = name.partition(",")[0].replace("qwen2", "llama")
        assert read_gguf(tmp_path / "m.gguf")[0]["general.architecture"] == architecture
    tokenizer = load_tokenizer(tmp_path / "m")
    model = read_model(tmp_path / "m")
    settings = SamplingSettings(max_new_tokens=64, temperature=0)
    ours = generate(model, tokenizer, PROMPTS, settings)
    wanted = [*texts, *PROMPTS, *HARD]
    if algorithm == "sentencepiece_unigram":  # as the note says
        assert "beyond ASCII" in notes[0]
        known = [piece for piece in wanted if not any(_has_bytes(tokenizer, char) for char in piece)]
        wanted = [text for text in known if text.strip(" ")]
        assert len(wanted) > 30
    else:
        assert not notes
    tokens, continued = ask(tmp_path / "m.gguf", wanted, [answer.prompt_tokens for answer in ours])
    assert tokens == [ids if text else [] for text, ids in zip(wanted, encode_prompts(tokenizer, wanted), strict=True)]
    for answer, theirs in zip(ours, continued, strict=True):
        check_continuation(model, answer, theirs)
    assert any(len(set(theirs)) > 4 and len(theirs) == 64 for theirs in continued)


def _has_bytes(tokenizer: Any, char: str) -> bool:
    """True if a character beyond ASCII is spelt in bytes."""
    return not char.isascii() and any(tokenizer.id_to_token(n).startswith("<0x") for n in tokenizer.encode([char])[0])


def check_ids(
    folder: Path, splits: list[Any], whole_words: bool, family: str, texts: list[str], wanted: list[str]
) -> None:
    """Train a byte-level tokenizer on texts, export a model with it, and compare llama.cpp's ids of wanted texts."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator(texts, trainer)
    (folder / "t").mkdir()
    tokenizer.save(str(folder / "t/tokenizer.json"))
    write_random(folder / "m", folder / "t", family, GQA if family == "llama" else {})
    assert export_folder(folder / "m", folder / "m.gguf") == ()
    tokens, _ = ask(folder / "m.gguf", wanted)
    ours = load_tokenizer(folder / "m")
    assert tokens == [ids if text else [] for text, ids in zip(wanted, encode_prompts(ours, wanted), strict=True)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("pattern", "whole_words"), [(key, value[1]) for key, value in PATTERNS.items()])
def test_llama_cpp_splits_by_the_same_pattern(
    pattern: str, whole_words: bool, tmp_path: Path, open_data: Path, real_data: Path
) -> None:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    splits = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    wanted = [*passages(real_data, 400), *PROMPTS, *HARD]
    check_ids(tmp_path, splits, whole_words, "gpt2", passages(open_data), wanted)


def test_llama_cpp_splits_digits_as_smollm2(tmp_path: Path, open_data: Path) -> None:
    splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    texts = passages(open_data)
    wanted = [*texts, *PROMPTS, *HARD, "a 1  23 x4y", "3.14 \u0663\u0664 \u00bd\u2167"]
    check_ids(tmp_path, splits, False, "llama", texts, wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "equal"), [("f16", 0.99), ("bf16", 0.99), ("q8_0", 0.9)])
def test_llama_cpp_reads_the_smaller_types(kind: str, equal: float, tmp_path: Path, open_data: Path) -> None:
    write_random(tmp_path / "m", open_data / "bpe", "gpt2", {})
    export_folder(tmp_path / "m", tmp_path / "full.gguf")
    export_folder(tmp_path / "m", tmp_path / "small.gguf", kind=kind)
    prompts = [[number] for number in range(100, 200)]
    full, small = (ask(tmp_path / f"{name}.gguf", (), prompts, 1)[1] for name in ("full", "small"))
    same = sum(one == other for one, other in zip(full, small, strict=True))
    assert same >= equal * len(prompts)
    assert (tmp_path / "small.gguf").stat().st_size < 0.65 * (tmp_path / "full.gguf").stat().st_size


def test_metadata_and_types_of_the_file(tmp_path: Path, open_data: Path) -> None:
    tokenizer = write_trained(tmp_path / "t", "bpe", passages(open_data))
    shape = write_random(tmp_path / "m", tokenizer, "gpt2", {"inner": 80})
    end = shape.vocab - 3
    (tmp_path / "m/chat_template.jinja").write_text("{{ messages }}")
    export_folder(tmp_path / "m", tmp_path / "a.gguf", kind="q8_0")
    export_folder(tmp_path / "m", tmp_path / "b.gguf", kind="q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    fields, tensors = read_gguf(tmp_path / "a.gguf")
    assert fields["gpt2.context_length"] == 128
    assert fields["gpt2.feed_forward_length"] == 80
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert fields["tokenizer.ggml.eos_token_id"] == fields["tokenizer.ggml.bos_token_id"] == end
    assert fields["tokenizer.ggml.tokens"][end:] == ["<|endoftext|>", f"[PAD{end + 1}]", f"[PAD{end + 2}]"]
    assert fields["tokenizer.ggml.token_type"][end - 1 :] == [1, 3, 5, 5]
    assert fields["tokenizer.chat_template"] == "{{ messages }}"
    types = {name.removeprefix("blk.0."): tensor.tensor_type.name for name, tensor in tensors.items()}
    assert types["token_embd.weight"] == types["ffn_up.weight"] == "Q8_0"
    assert types["ffn_down.weight"] == "F16"  # 80 columns are no multiple of 32
    assert types["position_embd.weight"] == types["attn_norm.weight"] == types["ffn_up.bias"] == "F32"
    assert list(tensors["token_embd.weight"].shape) == [64, shape.vocab]  # without the padding


def test_a_t5_has_its_scale_and_its_start_token(tmp_path: Path, open_data: Path) -> None:
    tokenizer = write_trained(tmp_path / "t", "sentencepiece_unigram", passages(open_data))
    write_random(tmp_path / "m", tokenizer, "t5", {"encoder_layers": 2, "head_dim": 24}, layers=3)
    export_folder(tmp_path / "m", tmp_path / "m.gguf")
    fields, tensors = read_gguf(tmp_path / "m.gguf")
    assert (fields["t5.block_count"], fields["t5.decoder_block_count"]) == (2, 1)
    assert fields["t5.decoder_start_token_id"] == fields["tokenizer.ggml.eos_token_id"] == 2
    assert fields["tokenizer.ggml.add_eos_token"] and not fields["tokenizer.ggml.add_bos_token"]
    norm = read_model(tmp_path / "m").state_dict()["ln_f.weight"]
    torch.testing.assert_close(torch.from_numpy(tensors["dec.output_norm.weight"].data.copy()), norm / 8)
    assert {"enc.blk.1.attn_o.weight", "dec.blk.0.cross_attn_q.weight", "enc.blk.0.attn_rel_b.weight"} <= tensors.keys()
    assert "output.weight" not in tensors
    card = (tmp_path / "m/README.md").read_text()
    assert "AutoModelForSeq2SeqLM" in card and "AutoModelForCausalLM" not in card
    assert "pipeline_tag: text2text-generation" in card


QKV_GQA = GQA | {"attention_bias": "qkv"}
BIASED_GQA = GQA | {"attention_bias": "all", "mlp_bias": True, "head_dim": 24, "tied": True}
# Kind -> tokenizer, family, options, and the architecture in both registries (Arcee: SGLang's; vLLM's is the class of
# transformers itself).
FOLDERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt2": ("bpe", "gpt2", {"inner": 96}, "GPT2LMHeadModel"),
    "llama": ("sentencepiece_bpe", "llama", GQA, "LlamaForCausalLM"),
    "llama with biases": ("bpe", "llama", BIASED_GQA, "LlamaForCausalLM"),
    "llama with biases of queries, keys and values": ("bpe", "llama", QKV_GQA, "LlamaForCausalLM"),
    "qwen2": ("qwen2", "llama", QKV_GQA, "Qwen2ForCausalLM"),
    "qwen3": ("sentencepiece_unigram", "llama", GQA | {"qk_norm": True, "head_dim": 32}, "Qwen3ForCausalLM"),
    "arcee": ("bpe", "llama", GQA | {"activation": "relu2"}, "ArceeForCausalLM"),
}
HIDDEN_ACT = {"ArceeForCausalLM": "relu2"}  # of the others: silu
QWEN_HARD = "We'LL see 1234567 cafe\u0301s:\n\n  d'été\u3000東京"  # Qwen's: contractions in capitals, digits apart, NFC


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_has_what_vllm_and_sglang_read(kind: str, tmp_path: Path, open_data: Path) -> None:
    """By their published code: vLLM 0.33.0, `vllm/model_executor/models/{gpt2,llama,qwen2,qwen3}.py` and `registry.py`;

    SGLang 0.5.23, `sglang/srt/models/{gpt2,llama,qwen2,qwen3,arcee}.py`. Both read `config.json` by `AutoConfig`, the
    tokenizer by `AutoTokenizer`, and every tensor of `*.safetensors`; an unexpected name, or a missing one, is an
    error. The names and shapes are those with which transformers saves the model.
    """
    transformers = pytest.importorskip("transformers", minversion="5")
    algorithm, family, options, architecture = FOLDERS[kind]
    folder, texts = tmp_path / "m", passages(open_data)
    shape = write_random(folder, write_trained(tmp_path / "t", algorithm, texts), family, options)
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
    assert [tokenizer.encode(text) for text in [*texts, QWEN_HARD]] == encode_prompts(
        load_tokenizer(folder), [*texts, QWEN_HARD]
    )
    assert len(tokenizer) <= config.vocab_size and tokenizer.eos_token_id == config.eos_token_id
    assert tokenizer.model_max_length == config.max_position_embeddings == 128
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == config.eos_token_id
