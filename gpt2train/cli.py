"""The command `gpt2train`: what is done with a trained model. torch is loaded only by the command that needs it."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from gpt2train import __version__
from gpt2train.checkpoint.format import MergeSettings
from gpt2train.command import HELP_DEBUG, run_command
from gpt2train.convert.command import convert
from gpt2train.evaluate.command import evaluate
from gpt2train.generate.command import generate
from gpt2train.plan.command import plan
from gpt2train.runs.command import runs
from gpt2train.serve.command import serve

DEFAULT_MERGE = MergeSettings()

app = App(
    name="gpt2train",
    help="Use a GPT-2 that was trained here: merge, score, serve it, let it write, trace what it read, compare runs.",
    help_epilogue=HELP_DEBUG,
    version=__version__,
)
app.command(evaluate)
data = App(name="data", help="Token files.")
app.command(data)
app.command(plan)
app.command(runs)
app.command(generate)
app.command(convert)
app.command(serve)


@app.command
def merge(
    source: Path,
    /,
    *,
    output: Path,
    tokenizer: Path | None = None,
    settings: Annotated[MergeSettings, Parameter(name="*")] = DEFAULT_MERGE,
) -> None:
    """Write a checkpoint as one Hugging Face folder that transformers loads.

    Parameters
    ----------
    source
        A run folder (its latest checkpoint is taken) or a checkpoint, RUN/checkpoints/step-….
    output
        Folder to write; an older model folder there is replaced.
    tokenizer
        Tokenizer folder of the training; where not given, `tokenizer` beside the training's tokens.
    """
    from gpt2train.checkpoint.merge import merge as merge_checkpoint

    checkpoint = merge_checkpoint(source, output, tokenizer, settings.dtype)
    print(f"merged {checkpoint}")
    print(f"model: {output}")


@app.command
def trace(
    *,
    sample: int,
    data: Path | None = None,
    run: Path | None = None,
    split: Literal["train", "valid", "test"] = "train",
    seq_length: Annotated[int | None, Parameter(validator=Number(gte=2))] = None,
    seed: int | None = None,
    excerpt: Annotated[int, Parameter(validator=Number(gte=0))] = 300,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Lead from a training sample back to the documents and pages that it came from.

    Parameters
    ----------
    sample
        Global index of the sample, from 0: step x global batch + place in the batch.
    data
        Output folder of the data steps, which holds tokens/; that of the run where not given.
    run
        Run folder: takes sequence length and seed from it.
    split
        Which tokens.
    seq_length
        Inputs of a sample, where no run is given; 1,024 by default.
    seed
        Of the run's shuffles, where no run is given; a run's default if not said.
    excerpt
        Characters shown of each document's share.
    json_
        Print JSON, with the whole text.
    """
    from gpt2train.trace import trace as trace_sample

    found = trace_sample(data, sample, split=split, run=run, context=seq_length, seed=seed)
    if json_:
        print(json.dumps(asdict(found), ensure_ascii=False, indent=1))
        return
    order = "order of the file" if found.seed is None else f"epoch {found.epoch}, seed {found.seed}"
    print(f"{split} sample {sample:,} ({order}): {found.context} + 1 tokens of {len(found.parts)} documents")
    for part in found.parts:
        print(f"\n{_printable(part.url)}")
        print(f"  id {part.doc_id}, its tokens {part.start:,}-{part.end:,} of {part.tokens:,}")
        if part.text is not None:
            shown = _printable(" ".join(part.text.split()))
            print(f"  | {shown[:excerpt]}{'…' if len(shown) > excerpt else ''}")
        for place in part.found:
            print(f"  {place}")


@app.command
def client(address: str, /) -> None:
    """Talk to a server: type a prompt and a number of tokens, read how the model goes on.

    Ctrl-D ends it. A server that asks for an API key gets that of the variable GPT2TRAIN_API_KEY.

    Parameters
    ----------
    address
        HOST:PORT, or the server's whole address (https://…).
    """
    from gpt2train.serve.client import talk

    talk(address)


@data.command(name="convert")
def convert_data(source: Path, target: Path, /, *, vocab_size: int | None = None) -> None:
    """Write token files of any kind that Megatron made (TNTIDX, MMIDIDX, shards) as one MMIDIDX pair.

    Parameters
    ----------
    source
        Prefix of the files, without .bin and .idx.
    target
        Prefix of the pair to write.
    vocab_size
        Tokens of the vocabulary: below 65,500 the ids take two bytes. They keep their width where not given.
    """
    from gpt2train.data.indexed import token_dtype
    from gpt2train.data.legacy import convert as convert_tokens

    made = convert_tokens(source, target, None if vocab_size is None else token_dtype(vocab_size))
    print(f"{len(made):,} sequences, {len(made.tokens):,} tokens of {made.dtype.itemsize} bytes")
    print(f"tokens: {target}")


def _printable(text: str) -> str:
    """Text of others without what would command the terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run_command(app))
