"""Between this project's weights and a Hugging Face GPT-2 folder, both ways.

A model folder holds `model.safetensors`, `config.json`, `generation_config.json`, `tokenizer.json`, `vocab.json`,
`merges.txt`, `tokenizer_config.json` and `special_tokens_map.json`, which `AutoModelForCausalLM` and `AutoTokenizer`
load without a network. Read are also sharded folders, the older `pytorch_model.bin`, and OpenAI's published names.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gpt2train.checkpoint.format import Device, Dtype
from gpt2train.checkpoint.hf_config import read_shape, write_config
from gpt2train.checkpoint.hf_layout import exported, imported, join_heads, names, split_heads, their_sizes
from gpt2train.checkpoint.tensor_files import SAFETENSORS, open_tensors, write_tensors
from gpt2train.checkpoint.weights import DTYPES, Stored, Weights, check_sizes, empty_model, in_memory, sizes
from gpt2train.data.tokenizer import end_of_text_id, load_tokenizer, read_tables, save_tokenizer
from gpt2train.errors import UserError
from gpt2train.files import folder_whole
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.shape import Shape

__all__ = [
    "fill_folder",
    "from_huggingface",
    "join_heads",
    "open_model",
    "read_model",
    "read_shape",
    "save_model",
    "split_heads",
    "to_huggingface",
    "write_model",
]

MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # causal masks, which old files carry


def to_huggingface(weights: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Weights under Hugging Face's names and in its layouts; the padded rows of the vocabulary are cut off.

    Raises:
        UserError: a tensor is missing, too many, or of another shape than `shape` says.
    """
    check_sizes({name: tuple(tensor.shape) for name, tensor in weights.items()}, sizes(shape), "the checkpoint")
    pairs = names(shape).items()
    return {f"transformer.{theirs}": exported(ours, weights[ours], shape).contiguous() for ours, theirs in pairs}


def from_huggingface(tensors: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Weights under our names and in our layouts, float32; the last row of the vocabulary fills its padding.

    Raises:
        UserError: a tensor is missing, too many, or of another shape than `shape` says.
    """
    return _imported(in_memory(tensors), shape).read()


def write_model(
    folder: Path, weights: Mapping[str, Tensor], shape: Shape, tokenizer: Path, dtype: Dtype = "float32"
) -> None:
    """Write weights that are in memory as a model folder: `save_model`."""
    save_model(folder, Weights(shape, in_memory(weights)), tokenizer, dtype)


def save_model(folder: Path, weights: Weights, tokenizer: Path, dtype: Dtype = "float32") -> None:
    """Write a model folder, whole or not at all; an older model folder of that name is replaced.

    Raises:
        UserError: the tokenizer does not fit the model, or `folder` is there and is no model folder.
    """
    check_free(folder)
    with folder_whole(folder) as draft:
        fill_folder(draft, weights, tokenizer, dtype)


def check_free(folder: Path) -> None:
    """Whether a model may be written here: there is nothing, or an older model folder.

    Raises:
        UserError: there is something else.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not _is_model_folder(folder):
        raise UserError(f"{folder} is there already and is not a model folder; give another --output")


def fill_folder(folder: Path, weights: Weights, tokenizer: Path, dtype: Dtype = "float32") -> None:
    """Write the files of a model into an empty folder. The bytes depend on the arguments alone.

    One tensor is in memory at a time: as it is stored, in `dtype`, and once more where it is transposed.
    """
    shape, tensors, target = weights.shape, weights.tensors, DTYPES[dtype]
    end = _check_tokenizer(tokenizer, shape)
    check_sizes({name: stored.size for name, stored in tensors.items()}, sizes(shape), "the checkpoint")
    ours = {f"transformer.{theirs}": name for name, theirs in names(shape).items()}
    theirs = their_sizes(shape)
    write_tensors(
        folder / SAFETENSORS,
        ((name, theirs[ours[name]]) for name in sorted(ours)),
        target,
        lambda name: exported(ours[name], tensors[ours[name]].read(target), shape),
    )
    write_config(folder, shape, end, dtype)
    save_tokenizer(folder, *read_tables(tokenizer))


def open_model(folder: Path) -> Weights:
    """A model folder, to be read tensor by tensor.

    Raises:
        UserError: no model folder, a damaged file, or another architecture.
    """
    shape = read_shape(folder)
    return _imported(open_tensors(folder), shape)


def read_model(folder: Path, device: Device = "cpu") -> GPT2:
    """Read a model folder into a GPT2 in float32, in evaluation mode.

    Args:
        device: `auto` takes a GPU where there is one.

    Raises:
        UserError: no model folder, no weights, a damaged file, another architecture, or no GPU where one was asked
            for.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but torch finds no GPU here; use --device cpu")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    weights = open_model(folder)
    model = empty_model(weights.shape)
    model.load_state_dict(weights.read(), assign=True)
    return model.requires_grad_(False).eval().to("cuda" if on_gpu else "cpu")


def _imported(tensors: Mapping[str, Stored], shape: Shape) -> Weights:
    """Stored under Hugging Face's names -> stored under ours.

    Takes the names with and without the prefix `transformer.` (the published files have none), passes over causal
    masks, and takes an `lm_head.weight` only where it equals the token embedding.
    """
    found = {name.removeprefix("transformer."): stored for name, stored in tensors.items()}
    found = {name: stored for name, stored in found.items() if not MASKS.fullmatch(name)}
    head, embedding = found.pop("lm_head.weight", None), found.get("wte.weight")
    if head is not None and not (embedding is not None and _same(head, embedding)):
        raise UserError("the output embedding lm_head.weight differs from wte.weight; only a tied GPT-2 can be read")
    expected, theirs = their_sizes(shape), names(shape)
    check_sizes(
        {name: stored.size for name, stored in found.items()},
        {theirs[name]: size for name, size in expected.items()},
        "the model file",
    )
    return Weights(
        shape, {name: _imported_one(name, found[theirs[name]], size, shape) for name, size in sizes(shape).items()}
    )


def _imported_one(name: str, stored: Stored, size: tuple[int, ...], shape: Shape) -> Stored:
    return Stored(size, lambda dtype: imported(name, stored.read(dtype), shape))


def _same(one: Stored, other: Stored) -> bool:
    return one.size == other.size and torch.equal(one.read(torch.float32), other.read(torch.float32))


def _is_model_folder(folder: Path) -> bool:
    """Whether it has a GPT-2 of the kind that is written here; any other `config.json` is somebody's."""
    try:
        read_shape(folder)
    except UserError:
        return False
    return True


def _check_tokenizer(folder: Path, shape: Shape) -> int:
    """The id of `<|endoftext|>`, after a look whether the tokenizer is of the model's size."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.get_vocab_size() != shape.vocab:
        raise UserError(
            f"the tokenizer {folder} has {tokenizer.get_vocab_size()} entries, the model {shape.vocab}; "
            "give the tokenizer it was trained with"
        )
    return end_of_text_id(tokenizer)
