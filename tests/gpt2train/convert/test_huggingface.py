"""The Hugging Face folder: names and layouts both ways, against transformers itself."""

import json
import re
import shutil
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpt2train.convert.hf_layout import layout_of_config
from gpt2train.convert.huggingface import open_model, read_model
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2, Shape
from tests.gpt2train.convert.model_folders import difference, from_huggingface, stirred, to_huggingface, write_model
from tests.gpt2train.models import lively

SHAPE = Shape(vocab=50257, layers=2, heads=4, hidden=32, context=64)
SMALL = Shape(vocab=300, layers=3, heads=2, hidden=16, context=32)
CONFIG = {"model_type": "gpt2", "vocab_size": 300, "n_layer": 3, "n_head": 2, "n_embd": 16, "n_positions": 32}


def make_model(shape: Shape, seed: int = 1) -> GPT2:
    return lively(shape, seed, 0.1)


def weights_of(model: GPT2) -> dict[str, Tensor]:
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, open_data: Path) -> Path:
    path = tmp_path_factory.mktemp("export") / "model"
    write_model(path, weights_of(make_model(SHAPE)), SHAPE, open_data / "bpe")
    return path


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 8), st.sampled_from([1, 127, 128]))
def test_weights_round_trip(layers: int, heads: int, head_dim: int, vocab: int) -> None:
    shape = Shape(vocab=vocab, layers=layers, heads=heads, hidden=heads * head_dim, context=8)
    weights = weights_of(make_model(shape))
    weights["wte.weight"][vocab:] = weights["wte.weight"][vocab - 1]
    back = from_huggingface(to_huggingface(weights, shape), shape)
    assert back.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(back[name], tensor), name


def test_written_bytes_depend_on_the_model_alone(folder: Path, tmp_path: Path, open_data: Path) -> None:
    write_model(tmp_path / "again", dict(reversed(weights_of(make_model(SHAPE)).items())), SHAPE, open_data / "bpe")
    for file in sorted(folder.iterdir()):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_half_precision_is_stored_and_recorded_in_the_config(tmp_path: Path, open_data: Path) -> None:
    write_model(tmp_path / "m", weights_of(make_model(SHAPE)), SHAPE, open_data / "bpe", "bfloat16")
    assert {tensor.dtype for tensor in load_file(tmp_path / "m/model.safetensors").values()} == {torch.bfloat16}
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").dtype == torch.bfloat16
    assert read_model(tmp_path / "m").wte.weight.dtype == torch.float32


def test_config_has_the_fields_of_the_published_gpt2_and_transformers_keeps_them(folder: Path, tmp_path: Path) -> None:
    """llama.cpp's converter reads `n_ctx`. What transformers saves is then stable."""
    transformers = pytest.importorskip("transformers")
    config = json.loads((folder / "config.json").read_text())
    published = {"n_ctx", "n_positions", "n_embd", "n_head", "n_layer", "vocab_size", "attn_pdrop", "embd_pdrop"}
    published |= {"activation_function", "architectures", "bos_token_id", "eos_token_id", "initializer_range"}
    published |= {"layer_norm_epsilon", "model_type", "resid_pdrop", "summary_activation", "summary_first_dropout"}
    assert config.keys() >= published | {"summary_proj_to_labels", "summary_type", "summary_use_proj"}
    assert config["n_ctx"] == config["n_positions"] == 64
    plain = transformers.GPT2Config().to_dict()
    changed = {key for key in config.keys() & plain.keys() if config[key] != plain[key]}
    assert changed <= {"architectures", "n_positions", "n_embd", "n_head", "n_layer", "torch_dtype"}
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "one")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    assert (tmp_path / "one/config.json").read_bytes() == (tmp_path / "two/config.json").read_bytes()
    assert json.loads((tmp_path / "one/config.json").read_text())["n_ctx"] == 64


def test_a_model_folder_is_written_atomically(tmp_path: Path, open_data: Path) -> None:
    weights = weights_of(make_model(SHAPE))
    (tmp_path / "m").mkdir()  # an empty folder is free
    write_model(tmp_path / "m", weights, SHAPE, open_data / "bpe")
    before = (tmp_path / "m/model.safetensors").read_bytes()
    broken = {name: tensor for name, tensor in weights.items() if name != "ln_f.bias"}
    with pytest.raises(UserError, match=r"ln_f\.bias"):
        write_model(tmp_path / "m", broken, SHAPE, open_data / "bpe")
    assert (tmp_path / "m/model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    write_model(tmp_path / "m", weights_of(make_model(SHAPE, seed=2)), SHAPE, open_data / "bpe")
    after = (tmp_path / "m/model.safetensors").read_bytes()
    assert after != before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    for mine in (".git/HEAD", "run.py"):  # of a clone of the hub's repository
        (tmp_path / "m" / mine).parent.mkdir(exist_ok=True)
        (tmp_path / "m" / mine).write_text("mine")
        with pytest.raises(UserError, match=rf"m has {mine.partition('/')[0]} of yours, which would be removed"):
            write_model(tmp_path / "m", weights, SHAPE, open_data / "bpe")
        assert (tmp_path / "m" / mine).read_text() == "mine"
        shutil.move(tmp_path / "m" / mine.partition("/")[0], tmp_path / "elsewhere")
    for name in ("README.md", "generation_config.json", "notes.md"):  # edited by hand, or added
        mine, before = tmp_path / "m" / name, (tmp_path / "m" / name).read_bytes() if name != "notes.md" else b""
        mine.write_bytes(before + b"\n")
        with pytest.raises(UserError, match=r"m has files that were added or changed since it was written, which"):
            write_model(tmp_path / "m", weights, SHAPE, open_data / "bpe")
        assert mine.read_bytes() == before + b"\n"
        mine.write_bytes(before) if before else mine.unlink()
    assert (tmp_path / "m/model.safetensors").read_bytes() == after


@pytest.mark.parametrize("name", ["letter.txt", "config.json"])  # any program has a config.json
def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path, open_data: Path, name: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / name).write_text('{"theme": "dark"}')
    for place, message in (("home", "already exists and is not a model folder"), (f"home/{name}", "already exists")):
        with pytest.raises(UserError, match=message):
            write_model(tmp_path / place, weights_of(make_model(SHAPE)), SHAPE, open_data / "bpe")
    assert (tmp_path / "home" / name).read_text() == '{"theme": "dark"}'
    with pytest.raises(UserError, match="50257 entries, the model 300"):
        write_model(tmp_path / "m", weights_of(make_model(SMALL)), SMALL, open_data / "bpe")


@pytest.mark.parametrize("name", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu"])
def test_activations_are_those_of_transformers_by_each_name(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    peer = stirred(transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG, activation_function=name)))
    peer.save_pretrained(tmp_path)
    assert difference(tmp_path, peer, 32) <= 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "model_type"),
        ({"activation_function": "silu"}, "activation_function"),
        ({"activation_function": None}, "activation_function"),
        ({"tie_word_embeddings": False}, "{folder} has no tensor lm_head.weight"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"n_head": 5}, "n_head"),
        ({"n_layer": "two"}, "size"),
        ({"n_inner": 7}, "expected"),
        ({"n_inner": -7}, "n_inner"),
        ({"n_inner": 2**25}, "n_inner"),
        ({"n_embd": 18}, "expected"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    save_file(to_huggingface(weights_of(make_model(SMALL)), SMALL), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_model(tmp_path).shape == SMALL
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(UserError, match=message.replace("{folder}", re.escape(str(tmp_path)))):
        read_model(tmp_path)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


def test_damage_and_pickles_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no config\.json\); give a folder with config\.json and model"):
        read_model(tmp_path)
    for name, remedy in (("ckpt.pt", "export ckpt.pt as a Hugging Face folder"), ("checkpoints/x", "gpt2train merge")):
        (tmp_path / "other" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "other" / name).touch()
        with pytest.raises(UserError, match=remedy):
            read_model(tmp_path / "other")
    (tmp_path / "adapter_config.json").write_text("{}")
    for content in (None, LFS, json.dumps(CONFIG)):
        if content:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(
            UserError, match="pointer of Git LFS" if content == LFS else "a LoRA adapter .* alone; merge"
        ):
            read_model(tmp_path)
    for name in ("pytorch_model.bin", "model.safetensors"):
        (tmp_path / name).write_text(LFS)
        with pytest.raises(UserError, match=f"{name} is a pointer of Git LFS, not the file itself; fetch it: git lfs"):
            read_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(UserError, match=r"pytorch_model\.bin"):
        read_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        read_model(tmp_path)

    def refused(path: Path, *rest: Any, **more: Any) -> IO[Any]:
        if path.suffix == ".safetensors":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **more)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PermissionError):
        read_model(tmp_path)


FSDP = "._fsdp_wrapped_module."
WRAPPED = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "DDP": lambda name: f"module.{name}",
    "compiled DDP": lambda name: f"_orig_mod.module.{name}",
    "FSDP": lambda name: name.replace(".h.", f"{FSDP}h.").replace(".layers.", f".layers{FSDP}"),
    "checkpointed blocks": lambda name: name.replace(".attn.", "._checkpoint_wrapped_module.attn."),
    "a module": lambda name: f"model.{name}",
    "a module twice": lambda name: f"transformer.transformer.{name}",
    "a base model": lambda name: name.removeprefix("transformer.").removeprefix("model."),
    "a compiled base model in DDP": lambda name: f"module._orig_mod.{name.removeprefix('transformer.')}",
    "a module of one's own": lambda name: f"net.gpt.{name}",
}


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "T5"])
@pytest.mark.parametrize("wrapper", WRAPPED)
def test_names_of_wrapped_models_are_those_of_the_model(tmp_path: Path, kind: str, wrapper: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 300, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}
    sizes |= {"intermediate_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    name = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "T5": "T5ForConditionalGeneration"}[kind]
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    expected = open_model(tmp_path).read()
    file = tmp_path / "model.safetensors"
    save_file({WRAPPED[wrapper](name): tensor for name, tensor in load_file(file).items()}, file)
    found = open_model(tmp_path).read()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


DECODER = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 96, "head_dim": 24}
DECODER |= {"num_attention_heads": 32, "num_key_value_heads": 4}
# Model type -> class of transformers, sizes that are none of its defaults, and further fields.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_inner": 100, "n_positions": 64}, {}),
    "llama": ("LlamaConfig", DECODER, {}),
    "qwen2": ("Qwen2Config", DECODER, {}),
    "qwen3": ("Qwen3Config", DECODER, {}),
    "arcee": ("ArceeConfig", DECODER, {}),
    "mistral": ("MistralConfig", DECODER, {"max_position_embeddings": 2048}),
    "t5": ("T5Config", {"d_model": 48, "num_heads": 4, "num_layers": 2, "d_kv": 12, "d_ff": 80}, {}),
}


def read(config: dict[str, Any]) -> Shape | str:
    try:
        return layout_of_config(config, Path("config.json")).shape(config, Path("config.json"))
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("model_type", KINDS)
@pytest.mark.parametrize("sized", [False, True], ids=["defaults", "sizes"])
def test_a_field_that_is_left_out_has_the_value_of_transformers(model_type: str, sized: bool) -> None:
    """A size may be refused in its place: a model of unknown width cannot be checked against its weights."""
    transformers = pytest.importorskip("transformers", minversion="5")
    name, sizes, fields = KINDS[model_type]
    make = getattr(transformers, name)
    whole = make(**fields, **(sizes if sized else {})).to_dict()
    assert isinstance(read(whole), Shape)
    aliases = {name: alias for alias, name in make.attribute_map.items()}  # that transformers takes too
    assert read({aliases.get(name, name): value for name, value in whole.items()}) == read(whole)
    for key in sorted(whole.keys() - {"model_type", "architectures", "layer_types"}):
        left = {name: value for name, value in whole.items() if name not in (key, "layer_types")}
        theirs = make(**{name: value for name, value in left.items() if name != "model_type"}).to_dict()
        ours = read(left)
        assert ours == read(theirs) or (isinstance(ours, str) and "is missing; expected a whole number" in ours), key
