"""Plan of a flow before it starts: the output of `--dry-run`, and the plan on the run page.

The list of finished and pending steps comes from the recipe itself, executed by the dry runner. Memory and time come
from the arithmetic of `gpt2train plan`; each figure states its basis.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from flows.dry_run.resources import (
    MissingResourcesError,
    RunEstimate,
    estimate_run,
    token_facts,
    vocabulary_note,
    vocabulary_of,
)
from flows.recipe import PlannedRun
from flows.scores import scores_row
from flows.settings import DataprepSettings, OutputSettings, PretrainSettings, usable_cores
from flows.sources import Sources
from gpt2train.config import TrainSettings
from gpt2train.data.document_split import PARTS
from gpt2train.errors import RunError, UserError, redact
from gpt2train.plan.fit import ResourceEstimate, duration
from gpt2train.settings import Settings
from gpt2train.store.counts import count_of
from gpt2train.store.files import format_bytes
from tasks.cloze.step import no_passages_message
from tasks.core.input_files import InputFile
from tasks.ready_tokens.tokens import ReadyTokens
from tasks.train.launch.launchers import runs_here
from tasks.train.step import validation_remedy, validation_warning

Rows = list[tuple[str, str]]
S = TypeVar("S", bound=Settings)


def dry_run(run: PlannedRun[S], check: Callable[[PlannedRun[S]], object], show: Callable[[str], object]) -> str:
    """Show the plan of a run, and raise the error with which the run would refuse to start.

    The callback `show` gets the plan, also if this machine lacks resources or if an earlier step is not finished.

    Returns:
        The plan.

    Raises:
        UserError: the run would refuse these settings. The plan is shown only if the machine lacks resources.
        RunError: an earlier step that the run needs is not finished.
    """
    problem: UserError | RunError | None = None
    try:
        check(run)
    except (MissingResourcesError, RunError) as error:
        problem = error
    try:
        text = redact(show_dry_run(run))
    except (UserError, RunError) as error:
        raise problem or error from None
    show(text)
    if problem is not None:
        raise problem
    return text


def show_dry_run(run: PlannedRun[Settings]) -> str:
    """Format the whole plan as text: steps, sources, training, disk."""
    estimate = estimate_run(run)
    rows = [*_step_rows(run), *plan_rows(run, estimate)]
    return "\n".join(f"{name:<12}{text}".rstrip() for name, text in rows)


def plan_page(run: PlannedRun[Settings]) -> str:
    """Format the plan as Markdown, without the steps: the run page has an artifact of its own for them."""
    rows = "".join(f"| {name} | {text} |\n" for name, text in plan_rows(run, estimate_run(run)))
    return f"| | |\n|---|---|\n{rows}"


def plan_rows(run: PlannedRun[Settings], estimate: RunEstimate) -> Rows:
    """Return the rows of the plan without the steps: sources, needed resources, missing resources."""
    settings = run.settings
    rows: Rows = _source_rows(settings, run.sources) if isinstance(settings, DataprepSettings) else []
    if run.ready_tokens is not None:
        rows += _ready_rows(run.ready_tokens)
    if isinstance(settings, PretrainSettings) and estimate.fit is not None:
        rows += _training_rows(run, settings, estimate.fit, estimate.trained)
        if note := vocabulary_note(run):
            rows.append(("warning", note))
    if scores := scores_row(run):
        rows.append(("scores", scores))
    if isinstance(settings, OutputSettings):
        rows.append(("disk", _disk_text(settings.output, estimate.needed, estimate.free)))
    return [*rows, ("missing", "; ".join(estimate.missing) or "nothing")]


def _step_rows(run: PlannedRun[Settings]) -> Rows:
    settings = run.settings
    rows: Rows = []
    any_pending = False
    options = {name: getattr(settings, name) for name in ("verify", "environment") if hasattr(settings, name)}
    for name, done in run.cached_steps(**options):
        text = "to run"
        if done is not None:
            outcome = done.outcome
            text = f"cached: {outcome.seen:,} in, {outcome.kept:,} kept" if outcome.seen else "cached"
            if name == "cloze" and not done.outputs:
                text = f"cached: {no_passages_message(done)}"
        elif name == "cloze" and isinstance(settings, DataprepSettings) and not settings.clean.split.test:
            text = "to run; clean.split.test is 0, so it finds no passage and the run has no cloze score"
        elif any_pending:
            text = "to run, unless the steps above give the same output as before"
        any_pending = any_pending or done is None
        rows.append(("" if rows else "steps", f"{name:<14}{text}"))
    return rows


def _source_rows(settings: DataprepSettings, sources: Sources) -> Rows:
    rows: Rows = []
    if not settings.has_source:
        return [("sources", "the embedded demo: some hundred pages of Python's documentation")]
    if settings.urls:
        count = f", {count_of(sources.url_count, 'URL')}" if sources.url_count is not None else ""
        rows.append(("sources", _files_text(sources.urls, "URL list") + count))
    if settings.domains:
        rows.append(
            ("sources", f"{count_of(len(sources.domains), 'domain')}, by {', '.join(settings.discover.methods)}")
        )
    if settings.warcs:
        rows.append(("sources", _files_text(sources.warcs, "web archive")))
    if settings.documents:
        kinds = ((sources.documents.pages, "page"), (sources.documents.texts, "text file"))
        rows += [("sources", _files_text(found, kind)) for found, kind in kinds if found]
    return [(name if not number else "", text) for number, (name, text) in enumerate(rows)]


def _files_text(files: Sequence[InputFile], kind: str) -> str:
    size = sum(item.bytes or 0 for item in files)
    return f"{len(files):,} {kind}{'s' * (len(files) > 1)}, {format_bytes(size)}"


def _ready_rows(tokens: ReadyTokens) -> Rows:
    counts = [(part, tokens.facts[f"{part}_documents"], tokens.facts[f"{part}_tokens"]) for part in PARTS]
    split = "; ".join(
        f"{part} {count_of(documents, 'document')}, {count_of(count, 'token')}" for part, documents, count in counts
    )
    tokenizer = f"tokenizer {tokens.tokenizer}" if tokens.tokenizer else "no tokenizer: merge will need --tokenizer"
    valid = f"; validation {tokens.valid}" if tokens.valid else ""
    return [("files", f"{tokens.name}{valid}; {tokenizer}"), ("split", split)]


def _training_rows(run: PlannedRun[Settings], settings: PretrainSettings, fit: ResourceEstimate, trained: bool) -> Rows:
    train, model, layout = settings.train, settings.train.model, fit.layout
    facts, remedy = token_facts(run), validation_remedy(run.ready_tokens)
    available = facts.get("train_tokens", 0)
    epochs = "number available not known yet"
    if available:
        epochs = f"{available:,} available, {(fit.tokens or 0) / available:,.1f} epochs"
        epochs += f"; {few}" if (few := validation_warning(facts, train, remedy)) else ""
    devices = f"{usable_cores()} CPU cores"
    if fit.on_gpu:
        devices = " + ".join(sorted({gpu.name for gpu in fit.gpus[: fit.gpus_needed]}))
    by = f" (by {settings.launch.launcher}; estimated for this machine)"
    launcher_note = "" if runs_here(settings.launch) else by
    return [
        (
            "model",
            f"{settings.preset}: {fit.parameters:,} parameters, {model.layers} layers, {model.heads} heads, width "
            f"{model.hidden}, context {model.context}, vocabulary {vocabulary_of(run):,}",
        ),
        (
            "layout",
            f"{layout}, ZeRO {train.parallel.zero}; {count_of(layout.global_batch, 'sample')} per step = micro-batch "
            f"{layout.micro_batch} x {layout.accumulation} x {layout.data}",
        ),
        (
            "memory",
            f"{fit.memory:.2f} of {fit.available_memory:.1f} GB per process "
            f"({fit.gpus_needed} on {devices}){launcher_note}",
        ),
        ("tokens", f"{_amount(train, fit)}; {epochs}"),
        ("time", "none: already trained" if trained else _time(fit)),
    ]


def _amount(train: TrainSettings, fit: ResourceEstimate) -> str:
    """Tokens and steps of the training."""
    if fit.steps is None:
        return f"{train.epochs:g} epochs to train on"
    return f"{fit.tokens:,} to train on in {count_of(fit.steps, 'step')}"


def _time(fit: ResourceEstimate) -> str:
    """Expected time of the training and its basis."""
    if fit.hours is None:
        return f"not known before the number of tokens is; by {fit.basis}"
    return f"about {duration(fit.hours)} of training, by {fit.basis}"


def _disk_text(output: str, needed: int, free: int | None) -> str:
    free_text = "free space unknown" if free is None else f"{format_bytes(free)} free"
    return f"{format_bytes(needed)} more in {output}, {free_text}"
