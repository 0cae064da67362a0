"""State of the optimizer in the files of Megatron's ranks, merged over the ranks.

The distributed optimizer has a file of its own, `distrib_optim.pt`, with flat buffers of the weights and moments
(`gpt2train.convert.megatron_buffers`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gpt2train.convert.megatron_args import args_of
from gpt2train.convert.megatron_buffers import buffer_tensors
from gpt2train.convert.megatron_folder import DISTRIBUTED_OPTIMIZER
from gpt2train.convert.megatron_optimizer import MASTER, NotConvertedError, inner_state, progress, rank_moments
from gpt2train.convert.megatron_parts import Tensors, collect_tensors, merged
from gpt2train.convert.optimizer_state import OptimizerState, step_tensor
from gpt2train.convert.safe_pickle import read_pickle
from gpt2train.model.lazy_weights import LazyTensor
from gpt2train.model.shape import Shape
from gpt2train.training.adamw import STATE

States = Mapping[tuple[int, int], Mapping[str, Any]]


def open_optimizer(
    states: States,
    grid: Mapping[tuple[int, int], Path],
    pieces: Sequence[tuple[int, int]],
    chunks: Sequence[Sequence[Tensors]],
    shape: Shape,
    version: int,
) -> tuple[dict[str, LazyTensor], OptimizerState | None]:
    """Open the state of the optimizer, and its float32 copies of the weights if it has any.

    Args:
        states: content of each rank's file, by tensor-parallel rank and pipeline stage.
        grid: files of the ranks.
        pieces: pipeline stage and number in it of each chunk of the model.
        chunks: tensors of each chunk on each tensor-parallel rank, in their order in the file.
        shape: shape of the model.
        version: checkpoint version.

    Raises:
        NotConvertedError: the state is damaged, or has another form.
    """
    if "optimizer" not in states[0, 0]:
        return {}, None
    folder = next(iter(grid.values())).parent.parent
    try:
        place = progress(states[0, 0])
        kinds = _chunk_moments(states, grid, pieces, chunks)
        found: dict[str, dict[str, LazyTensor]] = {}
        for kind, pieces_of_kind in kinds.items():
            parts = collect_tensors(pieces_of_kind, folder)
            found[kind] = {n: merged(n, part, shape, version, kind == MASTER) for n, part in parts.items()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise NotConvertedError(f"it is damaged ({type(error).__name__}: {error})") from error
    masters = found.pop(MASTER, {})
    tensors = {f"{name}.{kind}": tensor for kind, named in found.items() for name, tensor in named.items()}
    tensors |= {f"{name}.step": step_tensor(place.updates) for name in found[STATE[0]]}
    return masters, replace(place, tensors=tensors)


def _chunk_moments(
    states: States,
    grid: Mapping[tuple[int, int], Path],
    pieces: Sequence[tuple[int, int]],
    chunks: Sequence[Sequence[Tensors]],
) -> dict[str, list[list[Tensors]]]:
    """Return the tensors of each kind in the form of `chunks`."""
    found: dict[str, list[list[Tensors]]] = {}
    for (rank, stage), saved in states.items():
        mine = [number for number, (of_stage, _) in enumerate(pieces) if of_stage == stage]
        if inner_state(saved).get("state"):
            values = rank_moments(saved, [tensor for number in mine for tensor in chunks[number][rank].values()])
        else:
            values = _from_buffers(grid[rank, stage], saved, [chunks[number][rank] for number in mine])
        for kind, tensors in values.items():
            rest = iter(tensors)
            by_chunk = found.setdefault(kind, [[{} for _ in ranks] for ranks in chunks])
            for number in mine:
                by_chunk[number][rank] = {name: next(rest) for name in chunks[number][rank]}
    if MASTER in found and any(not part for ranks in found[MASTER] for part in ranks):
        raise NotConvertedError("only some ranks have float32 copies of their weights")
    return found


def _from_buffers(file: Path, saved: Mapping[str, Any], chunks: Sequence[Tensors]) -> dict[str, list[Tensor]]:
    """Read the file of the distributed optimizer of a rank, whose weights are given by chunk of the model."""
    place = file.parent / DISTRIBUTED_OPTIMIZER
    if not place.is_file():
        raise NotConvertedError(f"{file.parent.name} has no {DISTRIBUTED_OPTIMIZER}")
    stored = read_pickle(place)
    values: dict[str, list[Tensor]] = {kind: [] for kind in (*STATE, MASTER)}
    for number, weights in enumerate(chunks):
        (flat,) = stored[number].values()
        for kind, tensors in buffer_tensors(flat, list(weights.values()), args_of(saved)).items():
            values[kind if kind in STATE else MASTER] += tensors
    return values
