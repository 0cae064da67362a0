"""Reading and writing of Hugging Face GPT-2 folders.

A model folder has `model.safetensors`, `config.json`, `generation_config.json`, `tokenizer.json`, `vocab.json`,
`merges.txt`, `tokenizer_config.json` and `special_tokens_map.json`, which `AutoModelForCausalLM` and `AutoTokenizer`
load without a network, and the model card `README.md`. Sharded folders, the older `pytorch_model.bin` and OpenAI's
published names can be read too.
"""

import math
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from gpt2train.convert.hf_config import read_shape, write_config
from gpt2train.convert.hf_layout import exported, hf_sizes, imported, join_heads, names, split_heads
from gpt2train.convert.model_card import NO_FACTS, CardFacts, model_card
from gpt2train.convert.settings import CARD, Device, Dtype
from gpt2train.convert.tensor_files import DTYPES, SAFETENSORS, open_tensors, write_tensors
from gpt2train.data.tokenizer import Tokenizer, copy_tokenizer, load_tokenizer, vocab_size
from gpt2train.errors import UserError
from gpt2train.io.files import atomic_folder
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights, check_sizes, empty_model, in_memory, sizes
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

MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # causal masks in old files


def to_huggingface(weights: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert weights to Hugging Face's names and layouts, without the padding of the vocabulary.

    Raises:
        UserError: a tensor is missing or unexpected, or does not fit `shape`.
    """
    check_sizes({name: tuple(tensor.shape) for name, tensor in weights.items()}, sizes(shape), "the checkpoint")
    pairs = names(shape).items()
    return {f"transformer.{theirs}": exported(ours, weights[ours], shape).contiguous() for ours, theirs in pairs}


def from_huggingface(tensors: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """Convert weights to our names and layouts in float32; the last row of the vocabulary is repeated as its padding.

    Raises:
        UserError: a tensor is missing or unexpected, or does not fit `shape`.
    """
    return _imported(in_memory(tensors), shape).read()


def write_model(
    folder: str | PathLike[str],
    weights: Mapping[str, Tensor],
    shape: Shape,
    tokenizer: str | PathLike[str],
    dtype: Dtype = "float32",
) -> None:
    """Write weights in memory as a model folder; see `save_model`."""
    save_model(Path(folder), LazyWeights(shape, in_memory(weights)), Path(tokenizer), dtype)


def save_model(
    folder: Path, weights: LazyWeights, tokenizer: Path, dtype: Dtype = "float32", facts: CardFacts = NO_FACTS
) -> None:
    """Write a model folder atomically; an older model folder at the path is replaced.

    Args:
        folder: folder to write.
        weights: weights of the model.
        tokenizer: tokenizer folder of the model.
        dtype: data type of the stored weights.
        facts: facts for the model card.

    Raises:
        UserError: the tokenizer does not fit the model, or `folder` exists and is not a model folder.
    """
    check_free(folder)
    with atomic_folder(folder) as draft:
        fill_folder(draft, weights, tokenizer, dtype, facts)


def check_free(folder: Path) -> None:
    """Check that a model may be written to a path: it does not exist, is empty, or is an older model folder.

    Raises:
        UserError: the path is something else.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not _is_model_folder(folder):
        raise UserError(f"{folder} already exists and is not a model folder; give another --output")


def fill_folder(
    folder: Path, weights: LazyWeights, tokenizer: Path, dtype: Dtype = "float32", facts: CardFacts = NO_FACTS
) -> None:
    """Write the files of a model into an empty folder; the bytes depend on the arguments only.

    One tensor is in memory at a time: as stored, in `dtype`, and, if transposed, once more.

    Args:
        folder: empty folder.
        weights: weights of the model.
        tokenizer: tokenizer folder of the model.
        dtype: data type of the stored weights.
        facts: facts for the model card.
    """
    shape, tensors, target = weights.shape, weights.tensors, DTYPES[dtype]
    opened = _check_tokenizer(tokenizer, shape)
    check_sizes({name: stored.size for name, stored in tensors.items()}, sizes(shape), "the checkpoint")
    ours = {f"transformer.{theirs}": name for name, theirs in names(shape).items()}
    theirs = hf_sizes(shape)
    write_tensors(
        folder / SAFETENSORS,
        ((name, theirs[ours[name]]) for name in sorted(ours)),
        target,
        lambda name: exported(ours[name], tensors[ours[name]].read(target), shape),
    )
    write_config(folder, shape, opened, dtype)
    copy_tokenizer(tokenizer, folder)
    (folder / CARD).write_text(card_text(shape, dtype, facts), encoding="utf-8")


def card_text(shape: Shape, dtype: Dtype, facts: CardFacts) -> str:
    """Return the model card of a model folder."""
    return model_card(shape, sum(math.prod(size) for size in hf_sizes(shape).values()), dtype, facts)


def open_model(folder: Path) -> LazyWeights:
    """Open a model folder, to be read tensor by tensor.

    Raises:
        UserError: the folder is not a model folder, a file is damaged, or the architecture is not GPT-2.
    """
    shape = read_shape(folder)
    return _imported(open_tensors(folder), shape)


def read_model(folder: str | PathLike[str], device: Device = "cpu") -> GPT2:
    """Read a model folder into a GPT2 in float32, in evaluation mode.

    Args:
        folder: model folder.
        device: device of the model; auto uses a GPU if there is one.

    Raises:
        UserError: the folder is not a model folder, a file is damaged, the architecture is not GPT-2, or `device` is
            cuda and there is no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU on this machine; use --device cpu")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    weights = open_model(Path(folder))
    model = empty_model(weights.shape)
    model.load_state_dict(weights.read(), assign=True)
    return model.requires_grad_(False).eval().to("cuda" if on_gpu else "cpu")


def _imported(tensors: Mapping[str, LazyTensor], shape: Shape) -> LazyWeights:
    """Convert lazy tensors from Hugging Face's names and layouts to ours.

    Names may have the prefix `transformer.` or not (the published files have none). Causal masks are skipped. An
    `lm_head.weight` must equal the token embedding.
    """
    found = {name.removeprefix("transformer."): stored for name, stored in tensors.items()}
    found = {name: stored for name, stored in found.items() if not MASKS.fullmatch(name)}
    head, embedding = found.pop("lm_head.weight", None), found.get("wte.weight")
    if head is not None and not (embedding is not None and _equal(head, embedding)):
        raise UserError(
            "the output embedding lm_head.weight differs from wte.weight; only tied embeddings are supported"
        )
    expected, theirs = hf_sizes(shape), names(shape)
    check_sizes(
        {name: stored.size for name, stored in found.items()},
        {theirs[name]: size for name, size in expected.items()},
        "the model file",
    )
    return LazyWeights(
        shape, {name: _imported_one(name, found[theirs[name]], size, shape) for name, size in sizes(shape).items()}
    )


def _imported_one(name: str, stored: LazyTensor, size: tuple[int, ...], shape: Shape) -> LazyTensor:
    return LazyTensor(size, lambda dtype: imported(name, stored.read(dtype), shape))


def _equal(one: LazyTensor, other: LazyTensor) -> bool:
    return one.size == other.size and torch.equal(one.read(torch.float32), other.read(torch.float32))


def _is_model_folder(folder: Path) -> bool:
    """Return True if the folder has a supported GPT-2; a folder with any other `config.json` is not overwritten."""
    try:
        read_shape(folder)
    except UserError:
        return False
    return True


def _check_tokenizer(folder: Path, shape: Shape) -> Tokenizer:
    """Check that the tokenizer fits the model's vocabulary, and return it."""
    tokenizer = load_tokenizer(folder)
    if (size := vocab_size(tokenizer)) != shape.vocab:
        raise UserError(
            f"the tokenizer {folder} has {size} entries, the model {shape.vocab}; "
            "give the tokenizer that the model was trained with"
        )
    return tokenizer
