"""The command `gpt2train evaluate`, which scores models and checkpoints, in one process or under torchrun."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from gpt2train.convert.settings import Device
from gpt2train.errors import UserError
from gpt2train.evaluate.files import about, check_output, decode, read_input, write_result
from gpt2train.evaluate.passages import read_passages
from gpt2train.evaluate.tables import curve_lines, lambada_lines, wikitext_lines
from gpt2train.inference.settings import ServingLayout
from gpt2train.io.command_line import HELP_DEBUG, progress
from gpt2train.io.files import write_atomic

if TYPE_CHECKING:
    from gpt2train.evaluate.eval_model import EvalModel
    from gpt2train.evaluate.scoring import Report

evaluate = App(name="evaluate", help="Score models and checkpoints.", help_epilogue=HELP_DEBUG)

Models = Annotated[list[Path], Parameter(negative=())]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
Layout = Annotated[ServingLayout, Parameter(name="*")]
Result = dict[str, Any]
ONE_PROCESS = ServingLayout()


@evaluate.command
def lambada(
    *,
    model: Models,
    data: Path,
    output: Path | None = None,
    tokenizer: Path | None = None,
    batch_tokens: Positive = 4096,
    layout: Layout = ONE_PROCESS,
    device: Device = "auto",
) -> None:
    """Score models on LAMBADA by its three common definitions.

    Parameters
    ----------
    model
        Model folder, run folder (for its latest checkpoint) or RUN/checkpoints/step-…; several are compared in a table.
    data
        Passages, one JSON object {"text": "…"} per line (lambada_test.jsonl).
    output
        Result file of all models. By default each model has its own: MODEL/eval/lambada.json or
        RUN/scores/step-…/lambada.json.
    tokenizer
        Tokenizer folder of a checkpoint; by default `tokenizer` next to the training's tokens.
    batch_tokens
        Tokens per batch, including padding; bounds the memory.
    device
        auto uses a GPU if there is one.
    """
    raw = read_input(data)
    passages = read_passages(raw, str(data))

    def score(subject: "EvalModel", report: "Report | None") -> Result:
        from gpt2train.evaluate.lambada import evaluate_lambada
        from gpt2train.evaluate.torchrun import group

        return evaluate_lambada(subject.model, subject.tokenizer, passages, batch_tokens, report, group())

    _evaluate(model, "lambada", about(data.name, raw), score, lambada_lines, output, tokenizer, layout, device)


@evaluate.command
def wikitext(
    *,
    model: Models,
    data: Path,
    output: Path | None = None,
    tokenizer: Path | None = None,
    stride: int = 32,
    batch_tokens: Positive = 4096,
    layout: Layout = ONE_PROCESS,
    device: Device = "auto",
) -> None:
    """Score models by perplexity on a WikiText file, adjusted to its words as in Megatron-LM.

    Parameters
    ----------
    model
        Model folder, run folder (for its latest checkpoint) or RUN/checkpoints/step-…; several are compared in a table.
    data
        WikiText in its tokenised form (wiki.test.tokens).
    output
        Result file of all models. By default each model has its own: MODEL/eval/wikitext.json or
        RUN/scores/step-…/wikitext.json.
    tokenizer
        Tokenizer folder of a checkpoint; by default `tokenizer` next to the training's tokens.
    stride
        Tokens by which the window moves; the model's context is fastest and gives the highest perplexity.
    batch_tokens
        Tokens per batch; bounds the memory.
    device
        auto uses a GPU if there is one.
    """
    raw = read_input(data)
    text = decode(raw, str(data))

    def score(subject: "EvalModel", report: "Report | None") -> Result:
        from gpt2train.evaluate.perplexity import wikitext_perplexity
        from gpt2train.evaluate.torchrun import group

        return wikitext_perplexity(subject.model, subject.tokenizer, text, stride, batch_tokens, report, group())

    _evaluate(model, "wikitext", about(data.name, raw), score, wikitext_lines, output, tokenizer, layout, device)


@evaluate.command
def curve(
    run: Path,
    /,
    *,
    data: Path | None = None,
    wikitext: Path | None = None,
    output: Path | None = None,
    tokenizer: Path | None = None,
    stride: Positive = 32,
    batch_tokens: Positive = 4096,
    device: Device = "auto",
) -> None:
    """Score every kept checkpoint of a run; prints a table and writes curve.json and curve.png.

    Results of earlier calls on the same data are reused.

    Parameters
    ----------
    run
        Run folder.
    data
        LAMBADA's passages, one JSON object {"text": "…"} per line. Without data, only validation losses are shown.
    wikitext
        WikiText in its tokenised form.
    output
        Folder for curve.json and curve.png; by default RUN/scores.
    tokenizer
        Tokenizer folder of the training; by default `tokenizer` next to the training's tokens.
    stride
        Tokens by which the WikiText window moves.
    batch_tokens
        Tokens per batch; bounds the memory.
    device
        auto uses a GPU if there is one.
    """
    raw = {path: read_input(path) for path in (data, wikitext) if path is not None}
    folder = output or run / "scores"
    check_output(folder / "curve.json")
    from gpt2train.evaluate.curve import lambada_measure, score_run, wikitext_measure
    from gpt2train.evaluate.torchrun import group, is_rank0, print_once

    measures = []
    if data is not None:
        measures.append(lambada_measure(decode(raw[data], str(data)), about(data.name, raw[data]), batch_tokens))
    if wikitext is not None:
        text, facts = decode(raw[wikitext], str(wikitext)), about(wikitext.name, raw[wikitext])
        measures.append(wikitext_measure(text, facts, stride, batch_tokens))
    with _progress_bar("checkpoints") as report:
        scored = score_run(run, measures, tokenizer, device, group(), report)
    for line in curve_lines(scored):
        print_once(line)
    if is_rank0():
        from gpt2train.evaluate.curve_plot import curve_picture

        write_result(folder / "curve.json", scored)
        write_atomic(folder / "curve.png", curve_picture(scored["points"]))
    print_once(f"curve: {folder / 'curve.png'}")


def _evaluate(
    models: list[Path],
    kind: str,
    facts: Mapping[str, str],
    score: Callable[["EvalModel", "Report | None"], Result],
    lines: Callable[[Mapping[str, Result]], list[str]],
    output: Path | None,
    tokenizer: Path | None,
    layout: ServingLayout,
    device: Device,
) -> None:
    """Score each model, print a table of all, and write the results."""
    if len(set(models)) < len(models):
        raise UserError(f"--model: {next(m for m in models if models.count(m) > 1)} is given twice")
    if output is not None:
        check_output(output)
    from gpt2train.evaluate.eval_model import open_eval_model
    from gpt2train.evaluate.torchrun import group, is_rank0, print_once

    if layout.processes > 1 and (len(models) > 1 or group()):
        raise UserError("--tp and --pp need one --model, in a command started without torchrun")

    results: dict[str, Result] = {}
    files = {}
    for path in models:
        with open_eval_model(path, layout, device, tokenizer) as subject, _progress_bar(kind) as report:
            results[str(path)] = {"model": str(path), **facts, **score(subject, report)}
            files[str(path)] = subject.scores / f"{kind}.json"
    for line in lines(results):
        print_once(line)
    if output is not None:
        files = {"": output}
        results = {"": {**facts, "models": list(results.values())} if len(models) > 1 else results[str(models[0])]}
    for name, file in files.items():
        if is_rank0():
            write_result(file, results[name])
        print_once(f"scores: {file}")


@contextlib.contextmanager
def _progress_bar(label: str) -> Iterator["Report | None"]:
    """Show a progress bar on rank 0."""
    from gpt2train.evaluate.torchrun import is_rank0

    with progress(label) if is_rank0() else contextlib.nullcontext() as report:
        yield report
