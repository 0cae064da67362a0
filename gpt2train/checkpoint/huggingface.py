"""Between this project's weights and a Hugging Face GPT-2 folder, both ways.

What differs: names; Hugging Face's `Conv1D` holds its matrices as [in, out]; its fused projection has the columns
[q | k | v] with the heads inside, ours the rows [head, (q, k, v), head_dim]; our vocabulary is padded to a multiple of
128 and theirs is not. The output embedding is tied on both sides and stored once.

A model folder holds `model.safetensors`, `config.json`, `generation_config.json`, `tokenizer.json`, `vocab.json`,
`merges.txt`, `tokenizer_config.json` and `special_tokens_map.json`, which `AutoModelForCausalLM` and `AutoTokenizer`
load without a network.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpt2train.checkpoint.format import Device, Dtype
from gpt2train.data.tokenizer import END_OF_TEXT, end_of_text_id, load_tokenizer, read_tables, save_tokenizer
from gpt2train.errors import UserError
from gpt2train.files import folder_whole
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.shape import Shape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

TOP = {"wte.weight": "wte.weight", "wpe.weight": "wpe.weight", "ln_f.weight": "ln_f.weight", "ln_f.bias": "ln_f.bias"}
BLOCK = {"ln_1": "ln_1", "attn.qkv": "attn.c_attn", "attn.proj": "attn.c_proj", "ln_2": "ln_2"} | {
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
# Settings of Hugging Face's GPT-2 that our model has no counterpart of, with the values it stands for.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def names(shape: Shape) -> dict[str, str]:
    """Name of every parameter here -> its name in a Hugging Face GPT-2, without the prefix `transformer.`."""
    pairs = dict(TOP)
    for layer in range(shape.layers):
        for ours, theirs in BLOCK.items():
            for part in ("weight", "bias"):
                pairs[f"blocks.{layer}.{ours}.{part}"] = f"h.{layer}.{theirs}.{part}"
    return pairs


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """Fused projection rows [head, (q, k, v), head_dim] -> [(q, k, v), head, head_dim]; dimension 0 only."""
    return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def join_heads(rows: Tensor, heads: int) -> Tensor:
    """Fused projection rows [(q, k, v), head, head_dim] -> [head, (q, k, v), head_dim]; dimension 0 only."""
    return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)


def to_huggingface(weights: dict[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Weights under Hugging Face's names and in its layouts; the padded rows of the vocabulary are cut off.

    Raises:
        UserError: a tensor is missing, too many, or of another shape than `shape` says.
    """
    _check(weights, {name: tuple(p.shape) for name, p in _empty(shape).named_parameters()}, "the checkpoint")
    result = {}
    for ours, theirs in names(shape).items():
        tensor = weights[ours]
        if ours == "wte.weight":
            tensor = tensor[: shape.vocab]
        if ".qkv." in ours:
            tensor = split_heads(tensor, shape.heads)
        if _is_matrix(ours):
            tensor = tensor.t()
        result[f"transformer.{theirs}"] = tensor.contiguous()
    return result


def from_huggingface(tensors: dict[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Weights under our names and in our layouts, float32; the padded rows of the vocabulary are zero.

    Takes the names with and without the prefix `transformer.` (the published files have none), passes over the causal
    masks that old files carry, and takes an `lm_head.weight` only where it equals the token embedding.

    Raises:
        UserError: a tensor is missing, too many, or of another shape than `shape` says.
    """
    found = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    found = {name: t for name, t in found.items() if not re.fullmatch(r"h\.\d+\.attn\.(masked_)?bias", name)}
    head = found.pop("lm_head.weight", None)
    if head is not None and not ("wte.weight" in found and torch.equal(head, found["wte.weight"])):
        raise UserError("the output embedding lm_head.weight differs from wte.weight; only a tied GPT-2 can be read")
    expected, theirs_of = {}, names(shape)
    for name, parameter in _empty(shape).named_parameters():
        size = tuple(parameter.shape)
        expected[theirs_of[name]] = size[::-1] if _is_matrix(name) else size
    expected["wte.weight"] = (shape.vocab, shape.hidden)
    _check(found, expected, "the model file")
    result = {}
    for ours, theirs in names(shape).items():
        tensor = found[theirs].float()
        if _is_matrix(ours):
            tensor = tensor.t()
        if ".qkv." in ours:
            tensor = join_heads(tensor, shape.heads)
        if ours == "wte.weight":
            padding = tensor.new_zeros(shape.padded_vocab - shape.vocab, shape.hidden)
            tensor = torch.cat((tensor, padding))
        result[ours] = tensor.contiguous()
    return result


def write_model(
    folder: Path, weights: dict[str, Tensor], shape: Shape, tokenizer: Path, dtype: Dtype = "float32"
) -> None:
    """Write a model folder, whole or not at all; an older model folder of that name is replaced.

    Raises:
        UserError: the tokenizer does not fit the model, or `folder` is there and is no model folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (folder / "config.json").is_file():
        raise UserError(f"{folder} is there already and is not a model folder; give another --output")
    with folder_whole(folder) as draft:
        fill_folder(draft, weights, shape, tokenizer, dtype)


def fill_folder(
    folder: Path, weights: dict[str, Tensor], shape: Shape, tokenizer: Path, dtype: Dtype = "float32"
) -> None:
    """Write the files of a model into an empty folder. The bytes depend on the arguments alone."""
    end = _check_tokenizer(tokenizer, shape)
    tensors = {name: tensor.to(DTYPES[dtype]) for name, tensor in sorted(to_huggingface(weights, shape).items())}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        **{key: values[0] for key, values in FIXED.items()},
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": shape.vocab,
        "n_positions": shape.context,
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": None,
        "initializer_range": 0.02,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": dtype,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end})
    special = {f"{role}_token": END_OF_TEXT for role in ("bos", "eos", "unk")}
    _write_json(folder / "special_tokens_map.json", special)
    tokenizer_config = {
        **special,
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    save_tokenizer(folder, *read_tables(tokenizer))


def read_shape(folder: Path) -> Shape:
    """The sizes in a model folder's `config.json`.

    Raises:
        UserError: there is none, or it describes something that is not a plain GPT-2.
    """
    config = _read_config(folder)
    for key, allowed in FIXED.items():
        if config.get(key, allowed[0]) not in allowed:
            raise UserError(f"{folder / 'config.json'}: {key} is {config[key]!r}, but only {allowed[0]!r} can be read")
    try:
        shape = Shape(
            vocab=int(config["vocab_size"]),
            layers=int(config["n_layer"]),
            heads=int(config["n_head"]),
            hidden=int(config["n_embd"]),
            context=int(config["n_positions"] if "n_positions" in config else config["n_ctx"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: a size is missing or is no number ({error})") from error
    if min(shape.vocab, shape.layers, shape.heads, shape.hidden, shape.context) < 1 or shape.hidden % shape.heads:
        raise UserError(f"{folder / 'config.json'}: n_embd {shape.hidden} is not divided by n_head {shape.heads}")
    if config.get("n_inner") not in (None, 4 * shape.hidden):
        raise UserError(f"{folder / 'config.json'}: n_inner is {config['n_inner']}, only 4 x n_embd can be read")
    return shape


def read_model(folder: Path, device: Device = "cpu") -> GPT2:
    """Read a model folder into a GPT2 in float32, in evaluation mode.

    Args:
        device: `auto` takes a GPU where there is one.

    Raises:
        UserError: no model folder, no safetensors, a damaged file, another architecture, or no GPU where one was
            asked for.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch finds no GPU here; use --device cpu")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    shape = read_shape(folder)
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            tensors.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise UserError(f"cannot read {file}: {error}; copy or merge the model again") from error
    model = _empty(shape)
    model.load_state_dict(from_huggingface(tensors, shape), assign=True)
    return model.requires_grad_(False).eval().to("cuda" if on_gpu else "cpu")


def _empty(shape: Shape) -> GPT2:
    """A model without memory behind its parameters."""
    with torch.device("meta"):
        return GPT2(shape)


def _is_matrix(name: str) -> bool:
    """Whether Hugging Face holds this parameter of ours transposed (its `Conv1D`)."""
    return name.startswith("blocks.") and name.endswith(".weight") and ".ln_" not in name


def _check(found: dict[str, Tensor], expected: dict[str, tuple[int, ...]], what: str) -> None:
    """Compare names and shapes; the error names the first difference."""
    for name in sorted(expected.keys() - found.keys()):
        raise UserError(f"{what} has no tensor {name}; it belongs to another model or is incomplete")
    for name in sorted(found.keys() - expected.keys()):
        raise UserError(f"{what} has a tensor {name} that this GPT-2 does not know")
    for name, size in sorted(expected.items()):
        if tuple(found[name].shape) != size:
            raise UserError(f"{what}: {name} is {tuple(found[name].shape)}, but the model's sizes say {size}")


def _check_tokenizer(folder: Path, shape: Shape) -> int:
    """The id of `<|endoftext|>`, after a look whether the tokenizer is of the model's size."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.get_vocab_size() != shape.vocab:
        raise UserError(
            f"the tokenizer {folder} has {tokenizer.get_vocab_size()} entries, the model {shape.vocab}; "
            "give the tokenizer it was trained with"
        )
    return end_of_text_id(tokenizer)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(
            f"{folder} is not a model folder (no config.json); make one: gpt2train merge RUN --output {folder}"
        )
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{file} is not a JSON object")
    return config


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder: one, or those that its index names."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if index.is_file():
        try:
            shards = sorted({Path(name).name for name in json.loads(index.read_bytes())["weight_map"].values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{index} is damaged ({error}); copy the model again") from error
        return [folder / name for name in shards]
    raise UserError(f"{folder} has no model.safetensors; pickled weights are not read")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
