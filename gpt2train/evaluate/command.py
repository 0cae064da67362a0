"""The command `gpt2train evaluate`, which scores models and checkpoints, in one process or under torchrun.

Importing this module loads the plug-ins: each evaluation has a command.
"""

from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated

from cyclopts import App, Parameter

from gpt2train.command_line import HELP_DEBUG, ModelFolders, TokenizerFolder
from gpt2train.convert.detect import find_source, find_tokenizer
from gpt2train.convert.settings import Device
from gpt2train.errors import UserError
from gpt2train.evaluate.curve_table import curve_lines, curve_picture
from gpt2train.evaluate.evaluation import Evaluation, Scorer
from gpt2train.evaluate.files import (
    ONE_MODEL,
    check_output,
    check_run,
    data_fields,
    find_models,
    read_input,
    write_result,
)
from gpt2train.evaluate.metrics import Result
from gpt2train.evaluate.registry import BUILT_IN, EVALUATIONS
from gpt2train.evaluate.scoring_request import BATCH_TOKENS
from gpt2train.evaluate.tables import result_lines
from gpt2train.evaluate.task_command import ONE_PROCESS, Layout, Positive, TaskOptions, score_tasks
from gpt2train.evaluate.tasks.description import read_description
from gpt2train.evaluate.tasks.suite import read_works
from gpt2train.evaluate.torchrun import group, is_rank0, print_once, rank0_progress
from gpt2train.evaluate.wikitext import WikitextSettings
from gpt2train.extras import PIPELINE, needs_extra
from gpt2train.store.files import write_atomic
from gpt2train.store.hub import with_commit

evaluate = App(name="evaluate", help="Score models and checkpoints.", help_epilogue=HELP_DEBUG)

DEFAULTS = TaskOptions()

# Help of an evaluation's command. `{name}`, `{help}` and `{data}` are those of the evaluation.
HELP = """{help}

    Parameters
    ----------
    model
        Model folder, run folder (newest checkpoint, or best one by checkpoints.select) or
        RUN/checkpoints/step-…; several are compared in a table.
    data
        {data}
    output
        Result file of all models. By default each model has its own: MODEL/eval/{name}.json,
        eval/ORG--NAME/{name}.json for one of the hub, or RUN/scores/step-…/{name}.json.
    tokenizer
        Tokenizer folder of a checkpoint; by default `tokenizer` next to the training's tokens.
    batch_tokens
        Tokens per batch, including padding; bounds the memory.
    device
        auto uses a GPU if there is one.
    """


def add_command(name: str, evaluation: Evaluation) -> None:
    """Add the command of an evaluation, which scores each model, prints a table of all, and writes the results."""
    kind = evaluation.settings
    defaults = kind()

    def command(
        *,
        model: ModelFolders,
        data: Path,
        output: Path | None = None,
        tokenizer: TokenizerFolder = None,
        settings: Annotated[kind, Parameter(name="*", parse=bool(kind.model_fields))] = defaults,  # type: ignore[valid-type]
        batch_tokens: Positive = BATCH_TOKENS,
        layout: Layout = ONE_PROCESS,
        device: Device = "auto",
    ) -> None:
        raw = read_input(data)
        content, facts = evaluation.read(raw, str(data)), data_fields(data.name, raw)
        sources = find_models(model, output, [f"{name}.json"], layout, tokenizer)
        from gpt2train.evaluate.eval_model import open_eval_model

        if layout.processes > 1 and group():
            raise UserError(ONE_MODEL)
        results: dict[str, Result] = {}
        files: dict[Path, None] = {}
        try:
            for path, source in zip(model, sources, strict=True):
                with open_eval_model(source, layout, device) as subject, rank0_progress(name) as report:
                    scorer = Scorer(subject.model, subject.tokenizer, batch_tokens, report, group())
                    scores = evaluation.evaluate(scorer, content, settings)
                found = results[str(path)] = {"model": with_commit(path), **facts, **scores}
                if output is not None and len(model) > 1:
                    found = {**facts, "models": list(results.values())}
                file = output or source.scores / f"{name}.json"
                if is_rank0():  # now, so that no failure of a later model loses it
                    write_result(file, found)
                files[file] = None
        finally:
            for line in result_lines(evaluation, results) if results else ():
                print_once(line)
            for file in files:
                print_once(f"scores: {file}")

    command.__doc__ = HELP.format(name=name, help=evaluation.help, data=evaluation.data)
    evaluate.command(command, name=name)


for _name, _evaluation in EVALUATIONS.items():
    add_command(_name, _evaluation)


@evaluate.default
def tasks(
    *task: str,
    model: ModelFolders | None = None,
    options: Annotated[TaskOptions, Parameter(name="*")] = DEFAULTS,
) -> None:
    """Score models on tasks: multiple choice, schemas, greedy matches and perplexity.

    Parameters
    ----------
    task
        Names of tasks that come with the package (hellaswag, blimp, core, …), or paths of TOML files.
    model
        Model folder, run folder (newest checkpoint, or best one by checkpoints.select) or
        RUN/checkpoints/step-…; several are compared in a table.
    """
    if not task:
        if model or options != DEFAULTS:
            raise UserError("evaluate: name a task or an evaluation, as in gpt2train evaluate hellaswag; see --help")
        evaluate.help_print()
        return
    commands = [*EVALUATIONS, "curve"]
    for name in task:
        if name in commands:
            raise UserError(f"{name} has a command of its own: gpt2train evaluate {quote(name)}")
        read_description(name, commands)
    score_tasks(task, model or (), options)


@evaluate.command
def curve(
    run: Path,
    /,
    *,
    data: Path | None = None,
    wikitext: Path | None = None,
    evals: dict[str, Path] | None = None,
    tasks: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    task_data: Path | None = None,
    partial: Annotated[bool, Parameter(negative=())] = False,
    limit: Positive | None = None,
    output: Path | None = None,
    tokenizer: TokenizerFolder = None,
    stride: Positive = 32,
    batch_tokens: Positive = BATCH_TOKENS,
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
    evals
        Data file of any evaluation, as --evals.NAME FILE.
    tasks
        Tasks and suites that come with the package (hellaswag, core, …), or paths of TOML files.
    task_data
        Folder of the data files of --tasks, or the data file of one task.
    partial
        Leave out the tasks of a suite that have no data.
    limit
        Score this many items of each of --tasks.
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
    check_run(run)
    given = {"lambada": data, "wikitext": wikitext}
    if twice := [name for name in given if name in (evals or {})]:
        raise UserError(f"--evals.{twice[0]}: give --{'data' if twice[0] == 'lambada' else twice[0]} instead")
    files = {name: file for name, file in {**given, **(evals or {})}.items() if file is not None}
    raw = {name: read_input(file) for name, file in files.items()}
    if tasks and task_data is None:
        raise UserError(f"--tasks {tasks[0]}: give --task-data, the folder of the data files")
    works = read_works(tasks or (), task_data or Path(), partial, limit, (*BUILT_IN, *(evals or {})))
    folder = output or run / "scores"
    check_output(folder / "curve.json")
    if files or works:
        find_tokenizer(find_source(run), tokenizer)
    from gpt2train.evaluate.curve import curve_measure, score_run, task_measure

    options, pictured = {"wikitext": WikitextSettings(stride=stride)}, find_spec("matplotlib") is not None
    measures = [curve_measure(name, files[name], raw[name], options.get(name)) for name in files]
    measures += [task_measure(work, limit) for work in works]
    with rank0_progress("checkpoints") as report:
        scored = score_run(run, measures, tokenizer, device, group(), report, batch_tokens)
    for line in curve_lines(scored):
        print_once(line)
    if is_rank0():
        write_result(folder / "curve.json", scored)
        if pictured:
            write_atomic(folder / "curve.png", curve_picture(scored))
    if not pictured:
        print_once(f"warning: {needs_extra('curve.png', PIPELINE)}")
    print_once(f"curve: {folder / ('curve.png' if pictured else 'curve.json')}")
