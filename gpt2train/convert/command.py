"""The commands `gpt2train convert`, which writes a model in another format, and `gpt2train export`, for llama.cpp."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.command_line import ModelFolder, TokenizerFolder
from gpt2train.convert.settings import CoreFormat, Dtype, Format, GGUFType, Names, Spec, Version
from gpt2train.errors import UserError
from gpt2train.store.files import check_new, format_bytes

if TYPE_CHECKING:
    from gpt2train.convert.opened_source import OpenedSource
    from gpt2train.convert.optimizer_state import OptimizerState

SUFFIX = ".gguf"
ONE_OR_MORE = Parameter(validator=Number(gte=1))


def convert(
    source: ModelFolder,
    target: Path,
    /,
    *,
    to: Format,
    from_: Annotated[Format | None, Parameter(name="--from")] = None,
    tokenizer: TokenizerFolder = None,
    vocab: Annotated[int | None, ONE_OR_MORE] = None,
    heads: Annotated[int | None, ONE_OR_MORE] = None,
    tp: Annotated[int, ONE_OR_MORE] = 1,
    pp: Annotated[int, ONE_OR_MORE] = 1,
    checkpoint_version: Version = 3,
    names: Names = "new",
    ckpt_format: CoreFormat = "torch_dist",
    transformer_impl: Spec = "transformer_engine",
    distributed_optimizer: Annotated[bool, Parameter(negative="")] = False,
    weights_only: Annotated[bool, Parameter(negative="")] = False,
    dtype: Dtype = "float32",
) -> None:
    """Write a model in another format: Hugging Face, Megatron, or a checkpoint to continue training from.

    Parameters
    ----------
    source
        Model folder, checkpoint of Megatron-LM or Megatron-Core, run folder or checkpoint.
    target
        Folder to write; it must not exist. With huggingface, an older model folder is replaced.
    to
        Format to write; megatron-core is that of Megatron-LM today, megatron that of its releases until May 2026.
    from_
        Format of the source; detected by default.
    tokenizer
        Tokenizer folder, if the model's folder has none; huggingface needs one.
    vocab
        Vocabulary size, for a Megatron-LM checkpoint that does not record it.
    heads
        Number of attention heads, for a Megatron-LM checkpoint that does not record it.
    tp
        Tensor-parallel degree of the Megatron checkpoint to write.
    pp
        Pipeline stages of the Megatron checkpoint to write.
    checkpoint_version
        Version of the Megatron-LM checkpoint to write, which defines the row order of its fused QKV projection.
    names
        Tensor names in the Megatron-LM checkpoint to write; old for those used until 2021.
    ckpt_format
        Format of the Megatron-Core checkpoint to write: torch_dist loads on any layout, torch on that of --tp and --pp.
    transformer_impl
        Layers of Megatron-Core that load the checkpoint: Transformer Engine's, or its local ones, without that package.
    distributed_optimizer
        Write the optimizer's state for --use-distributed-optimizer; torch_dist fits it in any case.
    weights_only
        Leave the optimizer's state out.
    dtype
        Data type of the stored weights; a checkpoint to train from has float32.
    """
    _check_flags({"--tp": tp != 1, "--pp": pp != 1}, to, ("megatron", "megatron-core"))
    _check_flags({"--checkpoint-version": checkpoint_version != 3, "--names": names != "new"}, to, ("megatron",))
    core = {"--ckpt-format": ckpt_format != "torch_dist", "--transformer-impl": transformer_impl == "local"}
    _check_flags(core | {"--distributed-optimizer": distributed_optimizer}, to, ("megatron-core",))
    _check_flags({"--weights-only": weights_only}, to, ("megatron-core", "gpt2train"))
    if to == "gpt2train" and dtype != "float32":
        raise UserError(f"--dtype {dtype}: a checkpoint to train from has float32; leave it out")
    from gpt2train.convert.detect import check_source
    from gpt2train.convert.hf_config import check_free
    from gpt2train.convert.megatron_folder import check_shape

    known = check_source(source, from_, tokenizer)
    if known is not None and to in ("megatron", "megatron-core"):
        check_shape(known, tp, pp)
    (check_free if to == "huggingface" else check_new)(target)
    from gpt2train.convert.from_weights import write_checkpoint
    from gpt2train.convert.hf_layout import layout_of
    from gpt2train.convert.huggingface import save_model
    from gpt2train.convert.megatron_core_write import Target, write_megatron_core
    from gpt2train.convert.megatron_write import write_megatron
    from gpt2train.convert.opened_source import open_source  # imports torch (1-2 s)
    from gpt2train.convert.tensor_files import DTYPES

    opened = open_source(source, from_, tokenizer=tokenizer, vocab=vocab, heads=heads)
    weights, shape, tokenizer_folder = opened.weights, opened.weights.shape, tokenizer or opened.tokenizer
    optimizer = None if weights_only or to in ("huggingface", "megatron") else opened.optimizer
    if to == "huggingface":
        if tokenizer_folder is None:
            raise UserError(f"{source} has no tokenizer, and a Hugging Face folder needs one; give --tokenizer DIR")
        if missing := layout_of(shape.family).missing_in_transformers(shape):
            remedy = "gpt2train merge writes a folder for gpt2train alone"
            raise UserError(f"{source} has {missing}, which no class of transformers has; {remedy}")
        save_model(target, weights, tokenizer_folder, dtype, opened.facts)
    elif to == "megatron":
        write_megatron(target, weights, tp=tp, pp=pp, version=checkpoint_version, names=names, dtype=DTYPES[dtype])
    elif to == "megatron-core":
        form = Target(tp, pp, transformer_impl, DTYPES[dtype], distributed_optimizer)
        write_megatron_core(target, weights, optimizer, ckpt_format, form)
    else:
        state = optimizer.tensors if optimizer else None
        write_checkpoint(target, weights, tokenizer_folder, state, opened.facts.base)
    sizes = f"{shape.layers} layers, {shape.heads} heads, width {shape.hidden}, context {shape.context}"
    print(f"{sizes}, {shape.vocab:,} tokens")
    for note in _notes(opened, optimizer, to, tokenizer_folder):
        print(f"note: {note}")
    print(f"{to}: {target}")


def _notes(
    opened: "OpenedSource", optimizer: "OptimizerState | None", to: Format, tokenizer: Path | None
) -> Iterator[str]:
    """Yield what the user should know of the written model."""
    from gpt2train.data.tokenizer import load_tokenizer, vocab_size

    entries, vocab = None if tokenizer is None else vocab_size(load_tokenizer(tokenizer)), opened.weights.shape.vocab
    if entries is not None and entries < vocab:
        yield f"the tokenizer has {entries:,} tokens; the other {vocab - entries:,} stand for no text"
    yield from opened.notes
    if optimizer is not None:
        yield f"with the optimizer's state after {optimizer.updates:,} updates; the order of the data begins anew"
    elif opened.optimizer is not None or opened.is_run:
        yield "the optimizer's state and the training position are not converted"
    if to == "gpt2train" and tokenizer is None:
        yield "the source has no tokenizer, so it cannot be checked that the training data was made with the same"


def _check_flags(flags: dict[str, bool], to: Format, targets: tuple[Format, ...]) -> None:
    for flag, given in flags.items():
        if given and to not in targets:
            raise UserError(f"{flag} is for --to {' or '.join(targets)} only; leave it out")


def export(
    source: ModelFolder,
    /,
    *,
    to: Path,
    type_: Annotated[GGUFType, Parameter(name="--type")] = "f32",
    tokenizer: TokenizerFolder = None,
) -> None:
    """Write a model with its tokenizer as one GGUF file, for llama.cpp and the programs that build on it.

    Parameters
    ----------
    source
        Model folder, run folder (newest checkpoint, or best one by checkpoints.select) or checkpoint.
    to
        File to write, NAME.gguf; it must not exist.
    type_
        Data type of the matrices; f16 and bf16 take half the space of f32, q8_0 about a quarter.
    tokenizer
        Tokenizer folder, if the model's folder has none.
    """
    if to.suffix != SUFFIX:
        name = to / "NAME" if to.is_dir() else to.with_suffix("")
        raise UserError(f"--to {to}: the name of a GGUF file ends with {SUFFIX}; give {name}{SUFFIX}")
    if to.exists():
        raise UserError(f"{to} already exists; give another --to, or remove it")
    from gpt2train.convert.detect import check_source

    check_source(source, tokenizer=tokenizer)
    from gpt2train.convert.gguf_file import write_gguf
    from gpt2train.convert.opened_source import open_source  # imports torch (1-2 s)
    from gpt2train.model.families import check_language_model

    opened = open_source(source, tokenizer=tokenizer)
    check_language_model(opened.weights.shape, source)
    folder = tokenizer or opened.tokenizer
    if folder is None:
        raise UserError(f"{source} has no tokenizer, and a GGUF file needs one; give --tokenizer DIR")
    for note in write_gguf(to, opened.weights, folder, type_):
        print(f"note: {note}")
    print(f"gguf: {to} ({format_bytes(to.stat().st_size)})")
