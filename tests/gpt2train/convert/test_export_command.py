"""The command `gpt2train export`: what it refuses, in one line and before it writes anything."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from gpt2train.cli import app, run_command
from gpt2train.config.model import ModelSettings
from gpt2train.convert.gguf_model import gguf_model, interleave_halves
from gpt2train.convert.gguf_tokenizer import gguf_tokenizer
from gpt2train.errors import UserError
from gpt2train.model.families import Shape, sizes
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.convert.small_tokenizer import write_tokenizer
from tests.gpt2train.convert.test_huggingface import make_model, weights_of

QWEN3 = {"qk_norm": True}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHAPE = Shape(vocab=130, layers=1, heads=2, hidden=16, context=8)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tokenizer(tmp_path / "bpe", SHAPE.vocab)
    for name in ("hf", "bare"):
        write_model(tmp_path / name, weights_of(make_model(SHAPE)), SHAPE, tmp_path / "bpe")
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (tmp_path / "bare" / name).unlink()
    (tmp_path / "there.gguf").write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run_command(app, ["export", *arguments])
    captured = capsys.readouterr()
    return code, captured.err if code else captured.out


def test_a_file_is_written_where_no_folder_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    code, out = run(capsys, "hf", "--to", "new/m.gguf", "--type", "bf16")
    assert code == 0 and out.startswith("gguf: new/m.gguf (") and out.count("\n") == 1
    assert (here / "new/m.gguf").read_bytes()[:4] == b"GGUF"
    code, out = run(capsys, "bare", "--to", "b.gguf", "--tokenizer", "bpe", "--type", "bf16")
    assert code == 0 and (here / "b.gguf").read_bytes() == (here / "new/m.gguf").read_bytes()


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
def test_mistakes_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    code, error = run(capsys, *arguments)
    assert code == 2 and said in error and error.strip().count("\n") == 0, error
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_the_missing_library_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    code, error = run(capsys, "hf", "--to", "m.gguf")
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
