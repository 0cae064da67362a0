"""`gpt2train convert` and `export`: from each format to each, pytorch_model.bin, refusals in one line."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpt2train.cli import app, run_command
from gpt2train.config.model import ModelSettings
from gpt2train.convert.gguf_model import gguf_model, interleave_halves
from gpt2train.convert.gguf_tokenizer import gguf_tokenizer
from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import save_tokenizer, tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.model.families import sizes
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from gpt2train.model.shape import Shape
from tests.gpt2train.convert.malicious_pickle import CodeOnLoad
from tests.gpt2train.convert.megatron_trees import make_model, write_tree
from tests.gpt2train.convert.model_folders import to_huggingface, write_model, write_tokenizer
from tests.gpt2train.convert.test_huggingface import make_model as make_ours
from tests.gpt2train.convert.test_huggingface import weights_of
from tests.gpt2train.data.test_tokenizer import small_tables

SHAPE = Shape(130, 4, 4, 16, 8)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tokenizer(tmp_path / "bpe", SHAPE.vocab)
    write_model(tmp_path / "hf", weights_of(make_ours(SHAPE)), SHAPE, tmp_path / "bpe")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> tuple[int, str]:
    code = run_command(app, [command, *arguments])
    captured = capsys.readouterr()
    return code, captured.err if code else captured.out


def test_a_model_survives_conversion_through_all_formats(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = ["--tp", "2", "--pp", "4", "--checkpoint-version", "0", "--names", "old"]
    code, out = run(capsys, "convert", "hf", "meg", "--to", "megatron", *layout)
    assert code == 0 and out.splitlines()[-1] == "megatron: meg", out
    assert len(list((here / "meg/release").iterdir())) == 8
    code, out = run(capsys, "convert", "meg", "ckpt", "--from", "megatron", "--to", "gpt2train", "--tokenizer", "bpe")
    assert code == 0 and "4 layers, 4 heads, width 16, context 8, 130 tokens" in out
    code, out = run(capsys, "convert", "ckpt", "back", "--to", "huggingface")  # its tokenizer came along
    assert code == 0 and out.splitlines()[-1] == "huggingface: back" and "note: the optimizer" in out
    for file in (here / "hf").iterdir():
        assert (here / "back" / file.name).read_bytes() == file.read_bytes(), file.name
    assert (
        run(capsys, "convert", "meg", "half", "--to", "huggingface", "--tokenizer", "bpe", "--dtype", "bfloat16")[0]
        == 0
    )
    assert {tensor.dtype for tensor in load_file(here / "half/model.safetensors").values()} == {torch.bfloat16}


def test_parts_left_out_of_a_megatron_checkpoint_are_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(here / "m", make_model(130, 4, 4, 16, 8), 4, optimizer={"state": torch.ones(3)})
    code, out = run(capsys, "convert", "m", "c", "--to", "gpt2train")
    assert code == 2 and "give --heads N" in out
    code, out = run(capsys, "convert", "m", "c", "--to", "gpt2train", "--heads", "4")
    assert code == 2 and "256 embedding rows" in out and "give --tokenizer DIR or --vocab N" in out
    code, out = run(capsys, "convert", "m", "c", "--to", "gpt2train", "--heads", "4", "--vocab", "130")
    assert code == 0 and "note: the optimizer's state" in out and "note: the source has no tokenizer" in out
    code, out = run(capsys, "convert", "m", "h", "--to", "huggingface", "--heads", "4", "--vocab", "130")
    assert code == 2 and "give --tokenizer DIR" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf", "x", "--to", "onnx"], "onnx"),
        (["nowhere", "x", "--to", "megatron"], "no folder nowhere"),
        (["bpe", "x", "--to", "megatron"], "bpe is not a run or checkpoint"),
        (["m.zip", "x", "--to", "huggingface"], "m.zip is an archive, but a folder is needed; unpack it"),
        (["m.tar.gz", "x", "--to", "huggingface"], "m.tar.gz is an archive"),
        (["m.tgz", "x", "--from", "megatron", "--to", "huggingface"], "m.tgz is an archive"),
        (["hf/config.json", "x", "--to", "megatron"], "a folder is needed; give the folder that contains it"),
        (["gpt2", "x", "--to", "megatron"], "hf download gpt2 --local-dir"),
        (["openai-community/gpt2", "x", "--to", "megatron"], "no folder openai-community/gpt2, and cannot ask the hub"),
        (["./no/such/place", "x", "--to", "megatron"], "no folder no/such/place; check the path"),
        (["hf", "x", "--to", "huggingface", "--tokenizer", "m.zip"], "m.zip is an archive"),
        (["hf", "x", "--to", "gpt2train", "--tp", "2"], "--tp is for --to megatron"),
        (["hf", "x", "--to", "gpt2train", "--dtype", "float16"], "--dtype float16"),
        (["hf", "x", "--to", "gpt2train", "--ckpt-format", "torch"], "--ckpt-format is for --to megatron-core only"),
        (["hf", "x", "--to", "megatron", "--transformer-impl", "local"], "impl is for --to megatron-core only"),
        (["hf", "x", "--to", "megatron-core", "--names", "old"], "--names is for --to megatron only"),
        (["hf", "x", "--to", "huggingface", "--weights-only"], "-only is for --to megatron-core or gpt2train only"),
        (["hf", "x", "--to", "megatron-core", "--tp", "3"], "--tp must divide 4 heads"),
        (["hf", "x", "--to", "megatron", "--tp", "3"], "--tp must divide 4 heads"),
        (["hf", "x", "--to", "megatron", "--pp", "0"], "--pp"),
        (["hf", "x", "--to", "megatron", "--pp", "3"], "--pp must divide 4 layers"),
        (["hf", "x", "--from", "megatron", "--to", "gpt2train"], "not a Megatron-LM checkpoint"),
        (["hf", "bpe", "--to", "megatron"], "bpe already exists"),
        (["hf", "bpe", "--to", "gpt2train"], "bpe already exists"),
        (["hf", "bpe", "--to", "huggingface"], "bpe already exists"),
        (["export", "hf", "--to", "bpe"], "ends with .gguf; give bpe/NAME.gguf"),
        (["export", "hf", "--to", "."], "ends with .gguf; give NAME.gguf"),
    ],
)
def test_mistakes_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    for name in ("m.zip", "m.tar.gz", "m.tgz"):
        (here / name).write_bytes(b"PK")
    before = sorted(str(file) for file in here.rglob("*"))
    commands = [arguments if arguments[0] == "export" else ["convert", *arguments]]
    if arguments[0] in ("m.zip", "hf/config.json", "gpt2") and "--tokenizer" not in arguments:  # no model's folder
        commands += [["generate", "--prompt", "a", "--model", arguments[0]], ["serve", "--model", arguments[0]]]
    for command in commands:
        assert run_command(app, command) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert sorted(str(file) for file in here.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "hf", "x", "--to", "huggingface", "--dtype", "float16"],
        ["convert", "hf", "x", "--to", "megatron", "--dtype", "float16"],
        ["convert", "hf", "x", "--to", "megatron-core", "--dtype", "float16", "--transformer-impl", "local"],
        ["export", "hf", "--to", "x.gguf", "--type", "f16"],
        ["generate", "--model", "hf", "--prompt", "a", "--dtype", "float16"],
    ],
)
def test_a_number_that_float16_does_not_have_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    if arguments[0] == "export":
        pytest.importorskip("gguf")
    weights = weights_of(make_ours(SHAPE))
    weights["blocks.1.up.weight"][0, 0] = 7e4
    write_model(here / "hf", weights, SHAPE, here / "bpe")
    before = sorted(here.rglob("*"))
    code = run_command(app, arguments)
    error = capsys.readouterr().err
    assert code == 2 and "numbers above 65,504, the largest of float16; take bfloat16 or float32" in error
    assert error.count("\n") == 1 and sorted(here.rglob("*")) == before


def pickled(folder: Path, tensors: dict[str, torch.Tensor], shards: int, archive: bool) -> None:
    """The same model as older programs store it: `pytorch_model.bin`, in one file or in shards."""
    folder.mkdir()
    config = {"vocab_size": 130, "n_layer": 4, "n_head": 4, "n_embd": 16, "n_ctx": 8}
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    parts = {f"pytorch_model-{n + 1}-of-{shards}.bin": names[n::shards] for n in range(shards)}
    files = {"pytorch_model.bin": names} if shards == 1 else parts
    for file, some in files.items():
        part = {name: tensors[name] for name in some}
        torch.save(part, folder / file, _use_new_zipfile_serialization=archive)
    if shards > 1:
        index = {"weight_map": {name: file for file, some in files.items() for name in some}}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(("shards", "archive"), [(1, True), (1, False), (3, True)])
def test_pickled_weights_are_read(here: Path, shards: int, archive: bool) -> None:
    """With the tied head and the masks of old files; in both of torch's formats."""
    model = make_ours(SHAPE)
    tensors = to_huggingface(weights_of(model), SHAPE)
    tensors |= {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 8, 8).bool() for i in range(4)}
    tensors |= {f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(4)}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    pickled(here / "old", tensors, shards, archive)
    tokens = torch.arange(8).unsqueeze(0)
    assert torch.equal(read_model(here / "old")(tokens)[..., :130], model(tokens)[..., :130])
    pickled(here / "untied", tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1}, shards, archive)
    with pytest.raises(UserError, match="tied"):
        read_model(here / "untied")


def test_a_folder_that_transformers_saved_is_converted_and_served(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers 5 writes tokenizer.json without vocab.json and merges.txt."""
    (here / "bytes").mkdir()
    save_tokenizer(here / "bytes", *small_tables())
    shape = Shape(len(small_tables()[0]), 2, 2, 16, 8)
    write_model(here / "ours", weights_of(make_ours(shape)), shape, here / "bytes")
    AutoModelForCausalLM.from_pretrained(here / "ours").save_pretrained(here / "theirs")
    AutoTokenizer.from_pretrained(here / "ours").save_pretrained(here / "theirs")
    assert not (here / "theirs/vocab.json").exists()
    code, out = run(capsys, "convert", "theirs", "ckpt", "--to", "gpt2train")
    assert code == 0 and "no tokenizer" not in out, out
    code, out = run(capsys, "convert", "theirs", "back", "--to", "huggingface")
    assert code == 0, out
    for name in ("model.safetensors", "vocab.json", "merges.txt", "tokenizer.json", "config.json"):
        assert (here / "back" / name).read_bytes() == (here / "ours" / name).read_bytes(), name
    assert tokenizer_hash(here / "theirs") == tokenizer_hash(here / "ours")
    assert run_command(app, ["generate", "--model", "theirs", "--prompt", "a", "--max-new-tokens", "2"]) == 0


@pytest.mark.parametrize("archive", [True, False])
def test_pickled_code_is_refused_and_not_run(here: Path, archive: bool) -> None:
    tensors: dict[str, Any] = {"wte.weight": CodeOnLoad(here / "mark")}
    pickled(here / "bad", tensors, 1, archive)
    with pytest.raises(UserError, match=r"pytorch_model\.bin is refused, as a pickle can run code: .* posix\.mkdir"):
        read_model(here / "bad")
    assert not (here / "mark").exists()
    torch.load(here / "bad/pytorch_model.bin", weights_only=False)  # to see that it would have run
    assert (here / "mark").exists()


def test_a_missing_shard_is_named(here: Path) -> None:
    pickled(here / "old", to_huggingface(weights_of(make_ours(SHAPE)), SHAPE), 3, True)
    (here / "old/pytorch_model-2-of-3.bin").unlink()
    with pytest.raises(UserError, match=r"pytorch_model-2-of-3\.bin: it does not exist"):
        read_model(here / "old")


QWEN3 = {"qk_norm": True}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.fixture
def given(here: Path) -> Path:
    shutil.copytree(here / "hf", here / "bare")
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (here / "bare" / name).unlink()
    (here / "there.gguf").write_text("mine")
    return here


def test_a_file_is_written_where_no_folder_is(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    code, out = run(capsys, "export", "hf", "--to", "new/m.gguf", "--type", "bf16")
    assert code == 0 and out.startswith("gguf: new/m.gguf (") and out.count("\n") == 1
    assert (given / "new/m.gguf").read_bytes()[:4] == b"GGUF"
    code, out = run(capsys, "export", "bare", "--to", "b.gguf", "--tokenizer", "bpe", "--type", "bf16")
    assert code == 0 and (given / "b.gguf").read_bytes() == (given / "new/m.gguf").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hf", "--to", "m.bin"), "ends with .gguf; give m.gguf"),
        (("hf", "--to", "there.gguf"), "there.gguf already exists"),
        (("bare", "--to", "m.gguf"), "has no tokenizer, and a GGUF file needs one; give --tokenizer DIR"),
        (("bpe", "--to", "m.gguf"), "bpe is not a run or checkpoint"),
        (("nothing", "--to", "m.gguf"), "there is no folder nothing"),
        (("hf", "--to", "there.gguf/m.gguf"), "cannot write there.gguf/m.gguf"),
        (("hf", "--to", "m.gguf", "--type", "q4_0"), "q4_0"),
    ],
)
def test_mistakes_of_an_export_are_one_line(
    given: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    before = {path: path.read_bytes() for path in given.rglob("*") if path.is_file()}
    code, error = run(capsys, "export", *arguments)
    assert code == 2 and said in error and error.strip().count("\n") == 0, error
    assert {path: path.read_bytes() for path in given.rglob("*") if path.is_file()} == before


def test_the_missing_library_is_named(
    given: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    code, error = run(capsys, "export", "hf", "--to", "m.gguf")
    assert code == 2 and "gpt2train export needs the extra \"gguf\": pip install 'gpt2train[gguf]'" in error


@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        ("gpt2", {"activation": "gelu"}, "activation = gelu"),
        ("gpt2", {"activation": "relu"}, "activation = relu"),
        ("gpt2", {"head_dim": 4}, "head_dim = 4"),
        ("llama", {"activation": "relu2", "qk_norm": True}, "activation = relu2 with qk_norm"),
        ("llama", {"activation": "relu2", "mlp_bias": True}, "mlp_bias = true"),
        ("llama", {"qk_norm": True, "attention_bias": "all"}, "attention_bias = all"),
        ("llama", {"logit_softcap": 2.5}, "logit_softcap = 2.5"),
        ("llama", {"rope_scaling": YARN | {"rope_type": "dynamic"}}, "rope_scaling of the kind dynamic"),
        ("llama", QWEN3 | {"rope_scaling": YARN | {"truncate": False}}, "rope_scaling with truncate = false"),
        ("llama", QWEN3 | {"rope_scaling": YARN | {"beta_slow": 2.0}}, "rope_scaling with beta_slow = 2.0"),
        ("llama", QWEN3 | {"rope_scaling": LLAMA3}, "rope_scaling of the kind llama3"),
        ("llama", {"value_embeddings": 1}, "value_embeddings = 1"),
        ("llama", {"embedding_norm": True, "tied": True}, "embedding_norm with tied"),
        ("t5", {"max_distance": 64}, "max_distance = 64"),
        ("t5", {"encoder_layers": 1}, "2 blocks in the decoder and 1 in the encoder"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused(family: str, options: dict[str, Any], said: str) -> None:
    layers = 3 if "encoder_layers" in options else 2
    options = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    fields = {"family": family, "layers": layers, "heads": 2, "hidden": 16, "context": 8, "options": options}
    shape = ModelSettings.model_validate(fields).shape(130)
    weights = LazyWeights(shape, in_memory({name: torch.zeros(size) for name, size in sizes(shape).items()}))
    with pytest.raises(UserError, match=f"the model has {said}, which llama.cpp cannot compute"):
        gguf_model(weights)


def test_halves_of_a_head_become_pairs() -> None:
    rows = torch.arange(12).reshape(12, 1)  # two heads of six rows
    assert interleave_halves(rows, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def saved(folder: Path, change: dict[str, Any]) -> Path:
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "<|endoftext|>": 1}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain = json.loads(tokenizer.to_str())
    model = change.pop("model", {})
    (folder / "tokenizer.json").write_text(json.dumps({**plain, **change, "model": plain["model"] | model}))
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pre_tokenizer": {"type": "Whitespace"}}, "of a kind that llama.cpp does not have"),
        ({"pre_tokenizer": None}, "of a kind that llama.cpp does not have"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}}, "of a kind that llama.cpp does not have"),
        ({"model": {"ignore_merges": True}}, "sets ignore_merges = True"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "sets end_of_word_suffix"),
    ],
)
def test_a_tokenizer_that_llama_cpp_does_not_have_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        gguf_tokenizer(saved(tmp_path / "t", dict(change)), SHAPE)


def test_rows_without_a_token_get_names_of_their_own(tmp_path: Path) -> None:
    vocab = {"a": 0, "<|endoftext|>": 1, "[PAD3]": 2}
    change = {"model": {"vocab": vocab}, "normalizer": {"type": "NFC"}}
    found = gguf_tokenizer(saved(tmp_path / "t", change), SHAPE)
    assert "does not normalise texts (NFC)" in found.notes[0]
    tokens = found.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list) and tokens[:5] == ["a", "<|endoftext|>", "[PAD3]", "[PAD3]_", "[PAD4]"]
    assert len(tokens) == len(set(tokens)) == SHAPE.vocab


def test_a_damaged_chat_template_is_one_line(tmp_path: Path) -> None:
    folder = saved(tmp_path / "t", {})
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match="cannot read the chat template"):
        gguf_tokenizer(folder, SHAPE)
