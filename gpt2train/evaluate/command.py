"""`gpt2train evaluate`: score models, and the checkpoints of a run; alone or as the processes of torchrun."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from gpt2train.checkpoint.format import Device
from gpt2train.command import HELP_DEBUG, progress
from gpt2train.errors import UserError
from gpt2train.evaluate.files import about, check_output, decode, read_input, write_result
from gpt2train.evaluate.passages import read_passages
from gpt2train.evaluate.show import curve_lines, lambada_lines, wikitext_lines
from gpt2train.files import write_whole
from gpt2train.parallel.opened import Parts

if TYPE_CHECKING:
    from gpt2train.evaluate.scoring import Report
    from gpt2train.evaluate.subject import Subject

evaluate = App(name="evaluate", help="Score models and checkpoints.", help_epilogue=HELP_DEBUG)

Models = Annotated[list[Path], Parameter(negative=())]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
InParts = Annotated[Parts, Parameter(name="*")]
Result = dict[str, Any]
WHOLE = Parts()


@evaluate.command
def lambada(
    *,
    model: Models,
    data: Path,
    output: Path | None = None,
    tokenizer: Path | None = None,
    batch_tokens: Positive = 4096,
    parts: InParts = WHOLE,
    device: Device = "auto",
) -> None:
    """Score LAMBADA by the three definitions in use, side by side.

    Parameters
    ----------
    model
        Model folder, run folder (its latest checkpoint) or RUN/checkpoints/step-…; several are shown side by side.
    data
        The passages, one {"text": "…"} a line (lambada_test.jsonl).
    output
        Result file of all models. Where not given, each has its own: MODEL/eval/lambada.json, or
        RUN/scores/step-…/lambada.json.
    tokenizer
        Tokenizer folder of a checkpoint; where not given, `tokenizer` beside the training's tokens.
    batch_tokens
        Tokens of a batch, padding included; bounds the memory.
    device
        auto takes a GPU where there is one.
    """
    raw = read_input(data)
    passages = read_passages(raw, str(data))

    def score(subject: "Subject", report: "Report | None") -> Result:
        from gpt2train.evaluate.lambada import evaluate_lambada
        from gpt2train.evaluate.processes import group

        return evaluate_lambada(subject.model, subject.tokenizer, passages, batch_tokens, report, group())

    _evaluate(model, "lambada", about(data.name, raw), score, lambada_lines, output, tokenizer, parts, device)


@evaluate.command
def wikitext(
    *,
    model: Models,
    data: Path,
    output: Path | None = None,
    tokenizer: Path | None = None,
    stride: int = 32,
    batch_tokens: Positive = 4096,
    parts: InParts = WHOLE,
    device: Device = "auto",
) -> None:
    """Perplexity on a WikiText file, adjusted to its words as Megatron-LM does.

    Parameters
    ----------
    model
        Model folder, run folder (its latest checkpoint) or RUN/checkpoints/step-…; several are shown side by side.
    data
        WikiText in its tokenised form (wiki.test.tokens).
    output
        Result file of all models. Where not given, each has its own: MODEL/eval/wikitext.json, or
        RUN/scores/step-…/wikitext.json.
    tokenizer
        Tokenizer folder of a checkpoint; where not given, `tokenizer` beside the training's tokens.
    stride
        Tokens that a window moves on; the model's context is the fastest and gives the worst perplexity.
    batch_tokens
        Tokens of a batch; bounds the memory.
    device
        auto takes a GPU where there is one.
    """
    raw = read_input(data)
    text = decode(raw, str(data))

    def score(subject: "Subject", report: "Report | None") -> Result:
        from gpt2train.evaluate.perplexity import wikitext_perplexity
        from gpt2train.evaluate.processes import group

        return wikitext_perplexity(subject.model, subject.tokenizer, text, stride, batch_tokens, report, group())

    _evaluate(model, "wikitext", about(data.name, raw), score, wikitext_lines, output, tokenizer, parts, device)


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
    """Score every checkpoint that a run has kept: a table, JSON and a picture.

    What was scored before on the same data is not scored again.

    Parameters
    ----------
    run
        Run folder.
    data
        LAMBADA's passages, one {"text": "…"} a line. Without any data the validation losses make the curve.
    wikitext
        WikiText in its tokenised form.
    output
        Folder for curve.json and curve.png; RUN/scores where not given.
    tokenizer
        Tokenizer folder of the training; where not given, `tokenizer` beside the training's tokens.
    stride
        Tokens that a WikiText window moves on.
    batch_tokens
        Tokens of a batch; bounds the memory.
    device
        auto takes a GPU where there is one.
    """
    raw = {path: read_input(path) for path in (data, wikitext) if path is not None}
    place = output or run / "scores"
    check_output(place / "curve.json")
    from gpt2train.evaluate.curve import lambada_measure, score_run, wikitext_measure
    from gpt2train.evaluate.processes import group, is_first, say

    measures = []
    if data is not None:
        measures.append(lambada_measure(decode(raw[data], str(data)), about(data.name, raw[data]), batch_tokens))
    if wikitext is not None:
        text, facts = decode(raw[wikitext], str(wikitext)), about(wikitext.name, raw[wikitext])
        measures.append(wikitext_measure(text, facts, stride, batch_tokens))
    with _shown("checkpoints") as report:
        found = score_run(run, measures, tokenizer, device, group(), report)
    for line in curve_lines(found):
        say(line)
    if is_first():
        from gpt2train.evaluate.picture import curve_picture

        write_result(place / "curve.json", found)
        write_whole(place / "curve.png", curve_picture(found["points"]))
    say(f"curve: {place / 'curve.png'}")


def _evaluate(
    models: list[Path],
    kind: str,
    facts: Mapping[str, str],
    score: Callable[["Subject", "Report | None"], Result],
    lines: Callable[[Mapping[str, Result]], list[str]],
    output: Path | None,
    tokenizer: Path | None,
    parts: Parts,
    device: Device,
) -> None:
    """Score each model, show them side by side, write the results."""
    if len(set(models)) < len(models):
        raise UserError(f"--model: {next(m for m in models if models.count(m) > 1)} is given twice")
    if output is not None:
        check_output(output)
    from gpt2train.evaluate.processes import group, is_first, say
    from gpt2train.evaluate.subject import open_subject

    if parts.processes > 1 and (len(models) > 1 or group()):
        raise UserError("--tp and --pp: give one --model, and start the command without torchrun")

    results: dict[str, Result] = {}
    files = {}
    for path in models:
        with open_subject(path, parts, device, tokenizer) as subject, _shown(kind) as report:
            results[str(path)] = {"model": str(path), **facts, **score(subject, report)}
            files[str(path)] = subject.scores / f"{kind}.json"
    for line in lines(results):
        say(line)
    if output is not None:
        files = {"": output}
        results = {"": {**facts, "models": list(results.values())} if len(models) > 1 else results[str(models[0])]}
    for name, file in files.items():
        if is_first():
            write_result(file, results[name])
        say(f"scores: {file}")


@contextlib.contextmanager
def _shown(label: str) -> Iterator["Report | None"]:
    """A progress bar of the first process."""
    from gpt2train.evaluate.processes import is_first

    with progress(label) if is_first() else contextlib.nullcontext() as report:
        yield report
