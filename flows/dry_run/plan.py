"""Rows of a flow's plan before it starts: the output of `--dry-run`, and the plan on the run page.

Memory and time come from the arithmetic of `gpt2train plan`; each figure states its basis.
"""

from collections.abc import Mapping, Sequence

from flows.dry_run.resources import RunEstimate, TrainingEstimate, vocabulary_note
from flows.settings import DataprepSettings, PretrainSettings
from flows.sources import Sources
from flows.token_source import EarlierTokens
from gpt2train.data.document_split import PARTS
from gpt2train.plan.devices import usable_cores
from gpt2train.plan.fit import duration
from gpt2train.store.counts import count_of
from gpt2train.store.files import format_bytes
from gpt2train.store.manifest import Manifest
from tasks.cloze.step import no_passages_message
from tasks.core.input_files import InputFile
from tasks.ready_tokens.tokens import ReadyTokens
from tasks.train.launch.launchers import runs_here
from tasks.train.step import validation_warning

Rows = list[tuple[str, str]]


def step_rows(steps: Sequence[tuple[str, Manifest | None]], notes: Mapping[str, str]) -> Rows:
    """Return the rows of the steps: cached, or to run, with a note about some of those that are to run."""
    rows: Rows = []
    any_pending = False
    for name, done in steps:
        text = "to run"
        if done is not None:
            outcome = done.outcome
            text = f"cached: {outcome.seen:,} in, {outcome.kept:,} kept" if outcome.seen else "cached"
            if name == "cloze" and not done.outputs:
                text = f"cached: {no_passages_message(done)}"
        elif name in notes:
            text = f"to run; {notes[name]}"
        elif any_pending:
            text = "to run, unless the steps above give the same output as before"
        any_pending = any_pending or done is None
        rows.append(("" if rows else "steps", f"{name:<14}{text}"))
    return rows


def source_rows(settings: DataprepSettings, sources: Sources) -> Rows:
    """Return the rows of the sources of a data flow."""
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


def ready_rows(tokens: ReadyTokens) -> Rows:
    """Return the rows of token files made elsewhere."""
    counts = [(part, tokens.facts[f"{part}_documents"], tokens.facts[f"{part}_tokens"]) for part in PARTS]
    split = "; ".join(
        f"{part} {count_of(documents, 'document')}, {count_of(count, 'token')}" for part, documents, count in counts
    )
    tokenizer = f"tokenizer {tokens.tokenizer}" if tokens.tokenizer else "no tokenizer: merge will need --tokenizer"
    valid = f"; validation {tokens.valid}" if tokens.valid else ""
    return [("files", f"{tokens.name}{valid}; {tokenizer}"), ("split", split)]


def training_rows(settings: PretrainSettings, tokens: EarlierTokens, estimate: TrainingEstimate) -> Rows:
    """Return the rows of a training: model, layout, memory, tokens, time, and a warning about its vocabulary."""
    fit = estimate.fit
    train, model, layout = settings.train, settings.train.model, fit.layout
    facts = tokens.facts
    available = facts.get("train_tokens", 0)
    epochs = "number available not known yet"
    if available:
        epochs = f"{available:,} available, {(fit.tokens or 0) / available:,.1f} epochs"
        epochs += f"; {few}" if (few := validation_warning(facts, train, tokens.ready)) else ""
    devices = f"{usable_cores()} CPU cores"
    if fit.on_gpu:
        devices = " + ".join(sorted({gpu.name for gpu in fit.gpus[: fit.gpus_needed]}))
    by = f" (by {settings.launch.launcher}; estimated for this machine)"
    launcher_note = "" if runs_here(settings.launch) else by
    amount, time = f"{train.epochs:g} epochs to train on", f"not known before the number of tokens is; by {fit.basis}"
    if fit.steps is not None:
        amount = f"{fit.tokens:,} to train on in {count_of(fit.steps, 'step')}"
    if estimate.trained:
        time = "none: already trained"
    elif fit.hours is not None:
        time = f"about {duration(fit.hours)} of training, by {fit.basis}"
    rows = [
        (
            "model",
            f"{settings.preset}: {fit.parameters:,} parameters, {model.layers} layers, {model.heads} heads, width "
            f"{model.hidden}, context {model.context}, vocabulary {tokens.vocabulary:,}",
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
        ("tokens", f"{amount}; {epochs}"),
        ("time", time),
    ]
    note = vocabulary_note(settings, tokens)
    return [*rows, ("warning", note)] if note else rows


def disk_row(output: str, estimate: RunEstimate) -> tuple[str, str]:
    """Return the row of the disk space that a run needs in its output."""
    free = "free space unknown" if estimate.free is None else f"{format_bytes(estimate.free)} free"
    return "disk", f"{format_bytes(estimate.needed)} more in {output}, {free}"
