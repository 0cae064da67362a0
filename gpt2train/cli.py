"""Command `gpt2train`: use trained models, and inspect runs and token files.

torch is imported only by the commands that need it.
"""

import importlib.metadata
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from gpt2train import __version__
from gpt2train.command_line import HELP_DEBUG, TokenizerFolder, run_command
from gpt2train.compare.command import compare_data
from gpt2train.convert.command import convert, export
from gpt2train.convert.settings import MergeSettings
from gpt2train.data.tokenize_options import TokenizeOptions
from gpt2train.errors import UserError
from gpt2train.extras import PIPELINE, is_installed, needs_extra
from gpt2train.inference.chat_command import chat
from gpt2train.inference.command import generate
from gpt2train.plan.command import plan
from gpt2train.plan.devices import usable_cores
from gpt2train.plan.simulate_command import simulate
from gpt2train.quality.command import train_quality
from gpt2train.runs.command import runs
from gpt2train.runs.corpus_command import contamination, index
from gpt2train.runs.trace_command import trace
from gpt2train.serve.command import serve
from gpt2train.store.counts import count_of
from gpt2train.store.hub import TOKENIZER_FILES, local_copy
from gpt2train.store.process import prepare_streams

DEFAULT_MERGE, DEFAULT_TOKENIZE = MergeSettings(), TokenizeOptions()


class _App(App):
    """App whose help page describes the commands that are named by strings and not yet imported too."""

    def help_print(self, *arguments: Any, **options: Any) -> None:
        """Print the help page of a command."""
        for command in [self[name] for name in self]:
            _ = [command[name] for name in command]
        super().help_print(*arguments, **options)


def _command_of(point: importlib.metadata.EntryPoint) -> dict[str, Any]:
    """Return what to register for an entry point: its command, or one that names the extra which is not installed."""
    if is_installed(PIPELINE):
        return {"obj": point.value}
    missing = needs_extra(f"gpt2train {point.name.replace('.', ' ')}", PIPELINE)

    def command(*_: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
        raise missing

    return {"obj": command, "help": f'Not installed: the extra "{PIPELINE}".', "help_flags": [], "version_flags": []}


app = _App(
    name="gpt2train",
    help="Merge, convert, evaluate and serve a trained GPT-2, generate text, trace samples and texts to their "
    "documents and compare runs.",
    help_epilogue=HELP_DEBUG,
    version=__version__,
)
# Imported when it is used: its commands include those of the installed plug-ins.
app.command("gpt2train.evaluate.command:evaluate", name="evaluate", help="Score models and checkpoints.")
data = App(name="data", help="Token files and documents.")
app.command(data)
# Those of the layers above, which this package does not import: each is imported when it is used.
for point in importlib.metadata.entry_points(group="gpt2train.commands"):
    *group, name = point.name.split(".")  # as data.browse
    (app[group[0]] if group else app).command(**_command_of(point), name=name)
for of_data in (train_quality, index, contamination):
    data.command(of_data)
for command in (plan, simulate, runs, compare_data, trace, generate, chat, convert, export, serve):
    app.command(command)
app.command("gpt2train.doctor:doctor", name="doctor", help="Print what a bug report needs to know of this machine.")
app.register_install_completion_command()


@app.command
def merge(
    source: Path,
    /,
    *,
    output: Path,
    tokenizer: TokenizerFolder = None,
    settings: Annotated[MergeSettings, Parameter(name="*")] = DEFAULT_MERGE,
) -> None:
    """Write a checkpoint as a Hugging Face folder that transformers loads.

    Parameters
    ----------
    source
        A run folder (newest checkpoint, or best one by checkpoints.select) or a checkpoint, RUN/checkpoints/step-….
    output
        Folder to write; an older model folder there is replaced.
    tokenizer
        Tokenizer folder of the training; by default `tokenizer` beside the training tokens.
    """
    from gpt2train.convert.detect import find_source
    from gpt2train.convert.hf_config import check_free
    from gpt2train.data.tokenizer import load_tokenizer

    find_source(source)
    check_free(output)
    if tokenizer is not None:
        load_tokenizer(tokenizer)
    from gpt2train.convert.merge import merge as merge_checkpoint  # imports torch (1-2 s)

    checkpoint = merge_checkpoint(source, output, tokenizer, settings.dtype, settings.license)
    print(f"merged {checkpoint}")
    print(f"model: {output}")


@app.command
def config(
    *,
    preset: str | None = None,
    recipe: str | None = None,
    depth: int | None = None,
    budget: str | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    train: str | None = None,
    valid: str | None = None,
    vocab: Annotated[int | None, Parameter(validator=Number(gte=2))] = None,
    output: str | None = None,
) -> None:
    """Print a complete settings file of a training run, each setting under its description: `… > run.toml`.

    Parameters
    ----------
    preset
        Preset that provides the settings; tiny by default.
    recipe
        Recipe in place of a preset: modern, with --depth or --budget.
    depth
        Blocks of the recipe's model.
    budget
        Time on this machine (8h), FLOPs (1e18), or the goal gpt2, in place of --depth.
    from_
        Another system's training, in place of a preset: a shell script, its command line in quotes, DeepSpeed's JSON,
        or a config in Python, YAML or TOML; it is read and not executed (docs/coming-from/names.md).
    train
        Prefix of the token files, without .bin and .idx; out/tokens/train/tokens by default.
    valid
        Prefix of the token files for validation.
    vocab
        Vocabulary size of the tokenizer that made the tokens; 50257 by default.
    output
        Folder of the run; out/runs/PRESET by default.
    """
    from gpt2train.config.commented import commented_run
    from gpt2train.config.presets import preset as read_preset
    from gpt2train.plan.budget import given_recipe, this_machine

    if from_ is not None:
        from gpt2train.config.foreign_run import foreign_run

        if any(value is not None for value in (preset, recipe, depth, budget)):
            raise UserError("--from takes the place of --preset, --recipe, --depth and --budget; leave them out")
        text, count = foreign_run(from_, train, valid, vocab, output)
        print(text, end="")
        print(f"{count_of(count, 'name')} without a counterpart, listed at the top of the file", file=sys.stderr)
        return
    train, vocab = train or "out/tokens/train/tokens", vocab or 50257
    chosen = given_recipe(recipe, preset, depth, budget, this_machine)
    name = chosen.name if chosen else preset or "tiny"
    settings, title = (chosen.settings, f"recipe {name}") if chosen else (read_preset(name), f"preset {name}")
    print(commented_run(title, settings, train, valid, vocab, output or f"out/runs/{name}"), end="")


@app.command
def client(address: str, /) -> None:
    """Query a server interactively: type a prompt and a number of tokens, read the generated text.

    Ctrl-D ends the session. A server that requires an API key gets the one in GPT2TRAIN_API_KEY.

    Parameters
    ----------
    address
        HOST:PORT, or the server's full URL (https://…).
    """
    from gpt2train.serve.client import talk

    talk(address)


@data.command(name="convert")
def convert_data(
    source: Path,
    target: Path,
    /,
    *,
    vocab_size: int | None = None,
    by_sequence: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Convert token files in any format of Megatron or fairseq (TNTIDX, MMIDIDX, shards) to one MMIDIDX pair.

    Parameters
    ----------
    source
        Prefix of the files, without .bin and .idx.
    target
        Prefix of the pair to write.
    vocab_size
        Vocabulary size: below 65,500 an id takes two bytes. By default the ids keep their width.
    by_sequence
        Take each sequence as a document, for a pair whose document index is damaged.
    """
    from gpt2train.data.indexed import token_dtype
    from gpt2train.data.legacy_formats import convert as convert_tokens

    made = convert_tokens(source, target, None if vocab_size is None else token_dtype(vocab_size), by_sequence)
    print(f"{count_of(len(made), 'sequence')}, {count_of(len(made.tokens), 'token')} of {made.dtype.itemsize} bytes")
    print(f"tokens: {target}")


@data.command(name="tokenize")
def tokenize_data(
    inputs: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    output: Path,
    options: Annotated[TokenizeOptions, Parameter(name="*")] = DEFAULT_TOKENIZE,
) -> None:
    """Encode loose texts to one MMIDIDX pair, in their order and unfiltered, as Megatron-LM's preprocess_data.py.

    Parameters
    ----------
    inputs
        JSON lines, .txt files, tar archives of them, packed by gzip, bzip2, xz or zstd, or not; Parquet files; folders.
    output
        Prefix of the pair to write. An interrupted run continues if it is started again.
    """
    from gpt2train.data.documents import END_OF_TEXT
    from gpt2train.data.published_gpt2 import published_files
    from gpt2train.data.tokenize_files import check_inputs, tokenize_files
    from gpt2train.data.tokenizer_reader import read_files

    check_inputs(inputs, options)  # before a download
    if options.tokenizer == "gpt2" and not Path("gpt2").exists():
        files, _ = published_files(None, "give --tokenizer a folder with vocab.json and merges.txt")
    else:
        files = read_files(local_copy(options.tokenizer, TOKENIZER_FILES))
    if find_spec("gigatoken") is None:
        print(f"warning: {needs_extra('encoding at many times this speed', PIPELINE)}", file=sys.stderr)
    options = replace(options, workers=options.workers or usable_cores())
    made = tokenize_files(inputs, output, files, options)
    print(f"{count_of(made.documents, 'document')}, {count_of(made.tokens, 'token')}")
    if made.reasons:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(made.reasons.items()))
        print(f"rejected: {reasons}; see {output}.rejected.jsonl")
    if count := made.notes.get("end_of_text"):
        print(
            f"warning: {count_of(count, '.txt file')} with {END_OF_TEXT} as text; --separator '{END_OF_TEXT}' splits it"
        )
    if options.separator and not made.notes.get("separated"):
        print(f"warning: the separator {options.separator!r} divides no .txt file; each is one document")
    if count := made.notes.get("blank"):
        print(f"warning: {count_of(count, 'document')} of nothing but spaces; python -m flows.dataprep drops those")
    print(f"tokens: {output}")


@data.command(name="export")
def export_data(source: Path, /, *, output: Path, step: str | None = None, license: str | None = None) -> None:
    """Write the documents of a data flow: a dataset folder for a hub (Parquet of each split, a card), or JSON lines.

    Parameters
    ----------
    source
        Output folder of a finished data flow.
    output
        Folder to write, or a file *.jsonl for JSON lines with text, url, title, date; it must not exist.
    step
        Folder in SOURCE of the step whose documents the JSON lines have, such as documents (the extracted pages) or
        clean; shuffled by default.
    license
        Licence of the collection for the card, as hubs write it (mit, cc-by-4.0, odc-by); unknown by default.
    """
    from gpt2train.convert.dataset import STEP, export_dataset, export_lines
    from gpt2train.data.documents import JSON_NAMES

    if output.suffix in JSON_NAMES:
        print(count_of(export_lines(source, output, step or STEP), "document"))
        print(f"documents: {output}")
        return
    if step is not None:
        raise UserError("--step goes with JSON lines; give an --output that ends in .jsonl")
    counts = export_dataset(source, output, license)
    print(", ".join(f"{count:,} {split}" for split, count in counts.documents.items()))
    print(f"dataset: {output}")


def main() -> None:
    """Entry point of the console script."""
    prepare_streams("stderr")
    sys.exit(run_command(app))
