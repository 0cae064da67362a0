"""Read one process's part of a Hugging Face GPT-2 folder: its layers, its heads, its rows of the vocabulary.

Only those bytes are asked of the file: the peak of a process is its own part in float32 and one tensor of it as the
file has it, not the model.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpt2train.checkpoint.huggingface import join_heads, names
from gpt2train.errors import UserError
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.shape import Shape

Slices = Mapping[str, Any]
"""Name -> a tensor of the file that is read where it is indexed."""


def read_part(folder: Path, shape: Shape, layers: range, tp: int, rank: int) -> dict[str, Tensor]:
    """Weights of some layers under our names, float32 on the CPU, cut as `gpt2train.parallel.tensor` does.

    Args:
        folder: a model folder with safetensors.
        shape: of the whole model.
        layers: of this process; the first brings the embeddings along, the last the head.
        tp: processes that share each layer.
        rank: this process's number among them.

    Raises:
        UserError: no safetensors, a damaged file, or a tensor that is missing or of another size.
    """
    with torch.device("meta"):
        whole = GPT2(shape).keep_only(layers)
    theirs = names(shape)
    with _open(folder) as tensors:
        result = {}
        for name, parameter in whole.named_parameters():
            found = tensors.get(theirs[name])
            size = tuple(parameter.shape)
            if name == "wte.weight":
                size = (shape.vocab, shape.hidden)
            elif _is_matrix(name, size):
                size = size[::-1]
            if found is None:
                raise UserError(f"{folder} has no tensor {theirs[name]}; it belongs to another model or is incomplete")
            if tuple(found.get_shape()) != size:
                raise UserError(
                    f"{folder}: {theirs[name]} is {tuple(found.get_shape())}, but config.json's sizes say {size}"
                )
            result[name] = _cut(name, found, shape, tp, rank)
        head = tensors.get("lm_head.weight")
        if head is not None and "wte.weight" in result and whole.ends:
            untied = list(head.get_shape()) != [shape.vocab, shape.hidden] or not torch.equal(
                _cut("wte.weight", head, shape, tp, rank), result["wte.weight"]
            )
            if untied:
                raise UserError(f"{folder}: lm_head.weight differs from wte.weight; only a tied GPT-2 can be read")
    return result


def _cut(name: str, whole: Any, shape: Shape, tp: int, rank: int) -> Tensor:
    """This process's part of a tensor, in our layout; `whole` lies as Hugging Face has it, matrices as [in, out]."""
    if name == "wte.weight":
        rows = shape.padded_vocab // tp
        start, stop = min(rank * rows, shape.vocab), min((rank + 1) * rows, shape.vocab)
        part = torch.zeros(rows, shape.hidden)  # the rows that pad the vocabulary
        if start < stop:
            part[: stop - start] = whole[start:stop]
        return part
    if ".qkv." in name:
        # Columns [q | k | v] with the heads inside: this process's heads lie in three runs.
        width = shape.hidden // tp
        starts = [kind * shape.hidden + rank * width for kind in range(3)]
        runs = torch.cat([whole[..., start : start + width] for start in starts], -1)
        return join_heads(runs.float().t() if runs.ndim == 2 else runs.float(), shape.heads // tp).contiguous()
    if ".up." in name:
        width = 4 * shape.hidden // tp
        part = whole[..., rank * width : (rank + 1) * width].float()
    elif name.endswith(("attn.proj.weight", "down.weight")):
        width = whole.get_shape()[0] // tp
        part = whole[rank * width : (rank + 1) * width].float()
    else:
        part = whole[:].float()
    return (part.t() if _is_matrix(name, tuple(part.shape)) else part).contiguous()


def _is_matrix(name: str, size: tuple[int, ...]) -> bool:
    """Whether Hugging Face holds this parameter of ours transposed (its `Conv1D`)."""
    return len(size) == 2 and name.startswith("blocks.")


@contextlib.contextmanager
def _open(folder: Path) -> Iterator[Slices]:
    """Every tensor of a model folder by its name without the prefix `transformer.`, none of them read yet."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(
            f"{folder} has no model.safetensors, of which each process reads its part; write one with gpt2train convert"
        )
    with contextlib.ExitStack() as cleanup:
        tensors: dict[str, Any] = {}
        for file in files:
            try:
                opened = cleanup.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise UserError(f"cannot read {file}: {error}; copy or merge the model again") from error
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                tensors[name.removeprefix("transformer.")] = opened.get_slice(name)
        yield tensors
