"""`gpt2train convert`: a model from one format into another."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.checkpoint.format import Dtype, Format, Names, Version
from gpt2train.errors import UserError

ONE_OR_MORE = Parameter(validator=Number(gte=1))


def convert(
    source: Path,
    target: Path,
    /,
    *,
    to: Format,
    from_: Annotated[Format | None, Parameter(name="--from")] = None,
    tokenizer: Path | None = None,
    vocab: Annotated[int | None, ONE_OR_MORE] = None,
    heads: Annotated[int | None, ONE_OR_MORE] = None,
    tp: Annotated[int, ONE_OR_MORE] = 1,
    pp: Annotated[int, ONE_OR_MORE] = 1,
    checkpoint_version: Version = 3,
    names: Names = "new",
    dtype: Dtype = "float32",
) -> None:
    """Write a model in another format: Hugging Face, Megatron-LM, or a checkpoint to train on from.

    Parameters
    ----------
    source
        Model folder, Megatron-LM checkpoint, run folder or checkpoint.
    target
        Folder to write; not there yet, or for huggingface an older model folder, which is replaced.
    to
        Format to write.
    from_
        Format of the source; looked at where not given.
    tokenizer
        Tokenizer folder of the model, where it does not lie with it; huggingface needs one.
    vocab
        Tokens of the tokenizer, for a Megatron-LM checkpoint without one.
    heads
        Attention heads, for a Megatron-LM checkpoint that does not say.
    tp
        Tensor-parallel ranks of the Megatron-LM checkpoint to write.
    pp
        Pipeline stages of the Megatron-LM checkpoint to write.
    checkpoint_version
        Of the Megatron-LM checkpoint to write: the row order of its fused projection.
    names
        Names in the Megatron-LM checkpoint to write; old are those up to 2021.
    dtype
        What the weights are stored as; a checkpoint to train from holds float32.
    """
    for_megatron = {"--tp": tp != 1, "--pp": pp != 1, "--checkpoint-version": checkpoint_version != 3}
    for flag, given in (for_megatron | {"--names": names != "new"}).items():
        if given and to != "megatron":
            raise UserError(f"{flag} is for --to megatron alone; leave it out")
    if to == "gpt2train" and dtype != "float32":
        raise UserError(f"--dtype {dtype}: a checkpoint to train from holds float32; leave it out")
    from gpt2train.checkpoint.formats import open_source  # imports torch (1-2 s)
    from gpt2train.checkpoint.huggingface import save_model
    from gpt2train.checkpoint.megatron_write import write_megatron
    from gpt2train.checkpoint.native import write_checkpoint
    from gpt2train.checkpoint.weights import DTYPES

    opened = open_source(source, from_, tokenizer=tokenizer, vocab=vocab, heads=heads)
    place = tokenizer or opened.tokenizer
    if to == "huggingface":
        if place is None:
            raise UserError(f"no tokenizer lies with {source}, and a Hugging Face folder has one; give --tokenizer DIR")
        save_model(target, opened.weights, place, dtype)
    elif to == "megatron":
        write_megatron(
            target, opened.weights, tp=tp, pp=pp, version=checkpoint_version, names=names, dtype=DTYPES[dtype]
        )
    else:
        write_checkpoint(target, opened.weights, place)
    shape = opened.weights.shape
    print(
        f"{shape.layers} layers, {shape.heads} heads, width {shape.hidden}, context {shape.context}, "
        f"{shape.vocab:,} tokens"
    )
    for note in opened.notes:
        print(f"note: {note}")
    if to == "gpt2train" and place is None:
        print("note: no tokenizer lies with it; whether the training data was made with its own cannot be checked")
    print(f"{to}: {target}")
