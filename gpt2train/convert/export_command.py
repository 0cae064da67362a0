"""The command `gpt2train export`, which writes a model for llama.cpp."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpt2train.command_line import ModelFolder, TokenizerFolder
from gpt2train.convert.settings import GGUFType
from gpt2train.errors import UserError
from gpt2train.store.files import format_bytes

SUFFIX = ".gguf"


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
        raise UserError(f"--to {to}: the name of a GGUF file ends with {SUFFIX}; give {to.with_suffix(SUFFIX)}")
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
