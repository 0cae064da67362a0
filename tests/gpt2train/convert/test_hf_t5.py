"""T5 and T5 1.1: folders of transformers read, written and refused; their export as llama.cpp continues it."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt2train.config.model import ModelSettings
from gpt2train.convert.huggingface import open_model, read_model, save_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.errors import UserError
from gpt2train.inference.generate import Generation, SamplingSettings, generate
from gpt2train.inference.prompts import encode_for
from gpt2train.model.causal_lm import CausalLM, build_model
from gpt2train.model.init import initialise
from gpt2train.model.t5 import T5
from gpt2train.model.t5_family import options_of
from tests.gpt2train.convert.export_models import export_folder, passages, read_gguf
from tests.gpt2train.convert.export_models import write_model as write_random
from tests.gpt2train.convert.export_models import write_tokenizer as write_trained
from tests.gpt2train.convert.llama_cpp_t5_peer import ask
from tests.gpt2train.convert.model_folders import edit, stirred, write_model, write_tokenizer
from tests.gpt2train.convert.test_hf_tokenizer import trained

transformers = pytest.importorskip("transformers")

VOCAB = 150
SIZES = {"vocab_size": VOCAB, "d_model": 48, "d_kv": 8, "d_ff": 72, "num_heads": 4, "decoder_start_token_id": 0}
SIZES |= {"num_layers": 2, "num_decoder_layers": 3}
SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
KINDS: dict[str, dict[str, Any]] = {
    "relu, tied": {},
    "gated, untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "relu, untied": {"tie_word_embeddings": False, "num_decoder_layers": 2},
    "gated, tied": {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 32},
}


def save_peer(kind: str, folder: Path) -> Any:
    """Write a random model of transformers, with all parameters away from their initial values; return it."""
    torch.manual_seed(1)
    peer = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES | KINDS[kind])).eval()
    if "untied" in kind:  # transformers 5 creates every T5 tied, but reads one with a head of its own
        peer.lm_head = torch.nn.Linear(SIZES["d_model"], VOCAB, bias=False)
    stirred(peer)
    folder.mkdir()
    tensors = {name: tensor.clone() for name, tensor in peer.state_dict().items() if "embed_tokens" not in name}
    if "untied" not in kind:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    peer.config.save_pretrained(folder)
    edit(folder, tie_word_embeddings="untied" not in kind)
    return peer


def difference(folder: Path, peer: Any, lengths: torch.Tensor | None = None) -> float:
    """Largest difference of a logit, in standard deviations of the logits."""
    generator = torch.Generator().manual_seed(2)
    tokens, inputs = (torch.randint(VOCAB, (3, length), generator=generator) for length in (50, 33))
    mask = None if lengths is None else (torch.arange(50) < lengths[:, None]).long()
    with torch.no_grad():
        ours = read_model(folder)(tokens, decoder_tokens=inputs, lengths=lengths)[..., :VOCAB]
        theirs = peer(tokens, decoder_input_ids=inputs, attention_mask=mask).logits
    return float((ours - theirs).abs().max() / theirs.std())


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_transformers_is_read_and_written_back(kind: str, tmp_path: Path) -> None:
    peer = save_peer(kind, tmp_path / "theirs")
    assert difference(tmp_path / "theirs", peer) <= 1e-5
    assert difference(tmp_path / "theirs", peer, torch.tensor([50, 1, 20])) <= 1e-5
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    save_model(tmp_path / "ours", open_model(tmp_path / "theirs"), tokenizer)
    written, read = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert written.keys() == read.keys()
    assert all(torch.equal(written[name], read[name]) for name in read)
    again, report = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    assert difference(tmp_path / "ours", again) <= 1e-5
    assert difference(tmp_path / "theirs", again) <= 1e-5
    again.save_pretrained(tmp_path / "again")
    assert difference(tmp_path / "again", again) <= 1e-5
    assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")) is type(peer)
    assert open_model(tmp_path / "ours").shape == open_model(tmp_path / "theirs").shape


def test_stored_copies_are_skipped_and_differing_ones_refused(tmp_path: Path) -> None:
    peer = save_peer("relu, tied", tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    tensors = load_file(file)
    shared = tensors["shared.weight"]
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    copies = {f"{stack}.embed_tokens.weight": shared.clone() for stack in ("encoder", "decoder")}
    save_file(tensors | copies | {"lm_head.weight": shared.clone(), unused: torch.ones(8, 4)}, file)
    assert difference(tmp_path / "model", peer) <= 1e-5
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
    save_peer("relu, tied", tmp_path / "model")
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
    shape = ModelSettings.model_validate(fields).shape(VOCAB)
    model = initialise(build_model(shape), 5)
    assert isinstance(model, T5)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
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
    tokenizer = write_trained(tmp_path / "t", kind, passages(open_data))
    write_random(tmp_path / "m", tokenizer, "t5", options, layers=layers, context=256)
    export_folder(tmp_path / "m", tmp_path / "m.gguf")
    assert read_gguf(tmp_path / "m.gguf")[0]["general.architecture"] == "t5"
    check_greedy(tmp_path / "m", tmp_path / "m.gguf", kind != "sentencepiece_unigram")
