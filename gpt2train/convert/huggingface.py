"""Reading and writing of Hugging Face model folders.

A model folder has `model.safetensors`, `config.json`, `generation_config.json`, `tokenizer.json`, `vocab.json`,
`merges.txt`, `tokenizer_config.json` and `special_tokens_map.json`, the model card `README.md`, and, if it was tuned on
conversations, `chat_template.jinja`. If `transformers` knows the model family, `AutoModelForCausalLM` and
`AutoTokenizer` load it without a network. Sharded folders, the older `pytorch_model.bin` and OpenAI's published names
can be read too.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from gpt2train.convert.hf_config import check_free, read_label_names, read_shape, sealed, write_config
from gpt2train.convert.hf_gpt2 import join_heads, split_heads  # noqa: F401 - others take them from here
from gpt2train.convert.hf_layout import layout_of
from gpt2train.convert.model_card import NO_FACTS, CardFacts, model_card
from gpt2train.convert.settings import CARD, Device, Dtype
from gpt2train.convert.tensor_files import DTYPES, SAFETENSORS, open_tensors, unwrapped, write_tensors
from gpt2train.data.chat import open_chat
from gpt2train.data.tokenizer import Tokenizer, copy_tokenizer, kind_of, load_model_tokenizer
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.device import choose_device
from gpt2train.model.families import EMBEDDING, check_language_model, sizes
from gpt2train.model.lazy_weights import LazyTensor, LazyWeights, check_sizes, empty_model
from gpt2train.model.shape import Shape
from gpt2train.store.files import atomic_folder


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
        card = card_text(weights.shape, dtype, fill_folder(draft, weights, tokenizer, dtype), facts)
        (draft / CARD).write_text(sealed(draft, card), encoding="utf-8")


def fill_folder(folder: Path, weights: LazyWeights, tokenizer: Path, dtype: Dtype) -> Tokenizer:
    """Write the files of a model, but for its card, into an empty folder; the bytes depend on the arguments only.

    Returns the tokenizer. One tensor is in memory at a time: as stored, in `dtype`, and, if transposed, once more.

    Args:
        folder: empty folder.
        weights: weights of the model.
        tokenizer: tokenizer folder of the model.
        dtype: data type of the stored weights.
    """
    shape, tensors, target = weights.shape, weights.tensors, DTYPES[dtype]
    opened = load_model_tokenizer(tokenizer, shape.vocab)
    check_sizes({name: stored.size for name, stored in tensors.items()}, sizes(shape), "the checkpoint")
    layout = layout_of(shape.family)
    ours, zeros = {theirs: name for name, theirs in layout.names(shape).items()}, layout.zeros(shape, opened)
    found = layout.sizes(shape)
    theirs = {name: found[own] for name, own in ours.items()} | zeros

    def stored(name: str) -> Tensor:
        if name in zeros:
            return torch.zeros(zeros[name], dtype=target)
        return layout.exported(ours[name], tensors[ours[name]].read_within(ours[name], target), shape)

    write_tensors(folder / SAFETENSORS, ((name, theirs[name]) for name in sorted(theirs)), target, stored)
    chat = None if shape.labels else open_chat(tokenizer, opened)
    with chat or contextlib.nullcontext():
        write_config(folder, shape, opened, dtype, weights.labels, chat)
    copy_tokenizer(tokenizer, folder, shape.vocab)
    return opened


def card_text(shape: Shape, dtype: Dtype, tokenizer: Tokenizer, facts: CardFacts) -> str:
    """Return the model card of a model folder."""
    layout = layout_of(shape.family)
    count = sum(math.prod(size) for size in layout.sizes(shape).values())
    model_type = str(layout.config(shape, tokenizer)["model_type"])
    return model_card(shape, count, dtype, kind_of(tokenizer), facts, model_type)


def open_model(folder: Path) -> LazyWeights:
    """Open a model folder, to be read tensor by tensor.

    Raises:
        UserError: the folder is not a model folder, a file is damaged, or no model family has the architecture.
    """
    shape = read_shape(folder)
    return replace(imported(open_tensors(folder), shape, str(folder)), labels=read_label_names(folder))


def read_model(folder: str | PathLike[str], device: Device = "cpu", *, classifier: bool = False) -> CausalLM:
    """Read a model folder into memory in float32, in evaluation mode.

    Args:
        folder: model folder.
        device: device of the model; auto uses a GPU if there is one.
        classifier: read a sequence classifier, in place of a language model.

    Raises:
        UserError: the folder is not a model folder, a file is damaged, no model family has the architecture, the model
            is of the other kind, or there is no such device.
    """
    chosen = choose_device(device, option="--device")
    if chosen.type == "cuda":
        # torch prefers cuDNN's attention on newer GPUs by itself; in half precision and with fewer than 8 heads of keys
        # and values its texts are wrong on a B200, without an error (pytorch#193893).
        torch.backends.cuda.enable_cudnn_sdp(False)
    weights = open_model(Path(folder))
    if classifier and not weights.shape.labels:
        raise UserError(f"{folder} is a language model, not a classifier; fine-tune it first: python -m flows.finetune")
    if not classifier:
        check_language_model(weights.shape, folder)
    model = empty_model(weights.shape)
    model.load_state_dict(weights.read(), assign=True)
    return model.requires_grad_(False).eval().to(chosen)


def imported(tensors: Mapping[str, LazyTensor], shape: Shape, source: str) -> LazyWeights:
    """Convert lazy tensors from the names and layouts of a weights file to ours; an error names the source."""
    layout = layout_of(shape.family)
    expected, theirs = layout.sizes(shape), layout.names(shape)
    found = layout.found(unwrapped(tensors, theirs[EMBEDDING], source), shape)
    wanted = {theirs[name]: size for name, size in expected.items()}
    check_sizes({name: stored.size for name, stored in found.items()}, wanted, source)

    def lazy(name: str, size: tuple[int, ...]) -> LazyTensor:
        return LazyTensor(size, lambda dtype: layout.imported(name, found[theirs[name]].read(dtype), shape))

    return LazyWeights(shape, {name: lazy(name, size) for name, size in sizes(shape).items()})
