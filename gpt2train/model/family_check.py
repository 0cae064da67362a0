"""Comparison of a model with the specification of its family, made whenever a model is created.

All else relies on the specification alone: what is split, which initial values a parameter gets, what is stored. A
model that differs would train with wrong numbers, or fail far from the cause.
"""

from collections.abc import Mapping

from torch import nn

from gpt2train.errors import UserError
from gpt2train.model.families import EMBEDDING, HEAD, MODELS, Sizes, block_sizes, sizes
from gpt2train.model.shape import Shape


def check_specification(shape: Shape) -> None:
    """Raise a UserError unless there are `wte` and `lm_head`, equal blocks, and ends in `residual` that occur."""
    named, starts = sizes(shape), MODELS[shape.family].first_blocks(shape)
    place = f"model family {shape.family}: `sizes`"
    vocabulary = (shape.padded_vocab, shape.hidden)
    for name in (EMBEDDING, HEAD):
        if named.get(name, vocabulary if name == HEAD else None) != vocabulary:
            found = f"the size {named[name]}" if name in named else "no size"
            raise UserError(f"{place} has {found} for {name}; give (padded_vocab, hidden) = {vocabulary}")
    in_blocks = {name: size for name, size in named.items() if name.startswith("blocks.")}
    expected = {
        f"blocks.{layer}.{name}": size
        for start, end in zip(starts, (*starts[1:], shape.layers), strict=True)
        for layer in range(start, end)
        for name, size in block_sizes(shape, start).items()
    }
    if difference := _difference(in_blocks, expected):
        raise UserError(f"{place} has unequal blocks, or not `layers` = {shape.layers}: {difference}; use `all_blocks`")
    block = {name: size for start in starts for name, size in block_sizes(shape, start).items()}
    residual = MODELS[shape.family].residual
    for end in residual:
        if not any(name.rpartition(".")[0].endswith(end) for name in block):
            raise UserError(
                f"model family {shape.family}: no parameter of a block belongs to {end!r} of residual = {residual!r}; "
                f"the names are {', '.join(block)}"
            )


def check_model(model: nn.Module, shape: Shape) -> None:
    """Compare the parameters of a whole model with the sizes of its family, by name.

    Raises:
        UserError: a parameter is missing, not in the specification or of another size, or there is a buffer; the
            message names the first one in the model's order.
    """
    place, kind = f"model family {shape.family}", type(model).__name__
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if difference := _difference(found, sizes(shape), kind, "`sizes`"):
        raise UserError(f"{place}: {difference}; correct `sizes`, or {kind}")
    for name, _ in model.named_buffers():
        raise UserError(
            f"{place}: {kind} has the buffer {name}, which nothing would fill; compute it in `forward` from the inputs"
        )


def _difference(found: Sizes, expected: Mapping[str, tuple[int, ...]], here: str = "it", there: str = "block 0") -> str:
    """Describe the first difference between named sizes; empty if there is none, whatever their order."""
    for name, size in found.items():
        if name not in expected:
            return f"{here} has a parameter {name} of size {size}, which {there} does not name"
        if size != expected[name]:
            return f"{name} has the size {size} in {here} and {expected[name]} in {there}"
    missing = next((name for name in expected if name not in found), None)
    return f"{there} names {missing}, which {here} does not have" if missing else ""
