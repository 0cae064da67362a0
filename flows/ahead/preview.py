"""What a flow would do, told before anything starts: `--dry-run`, and the plan on a run's page.

The steps and whether they are done come from the recipe itself, gone through by a runner that only looks. Memory and
time are the arithmetic of `gpt2train plan`; each figure says what it rests on.
"""

from collections.abc import Sequence

from flows.ahead.fit import Outlook, outlook, vocabulary_of
from flows.ahead.steps import look_through
from flows.settings import (
    DataprepSettings,
    OutputSettings,
    PretrainSettings,
    usable_cores,
)
from gpt2train.files import size_words
from gpt2train.plan.fit import Fit, duration
from gpt2train.settings import Settings
from tasks.inputs import InputFile
from tasks.steps import read_manifest
from tasks.storage import Folder

Rows = list[tuple[str, str]]


def preview(settings: Settings, ahead: Outlook) -> str:
    """The whole plan, as text: steps, sources, training, disk."""
    rows = [*_step_rows(settings), *plan_rows(settings, ahead)]
    return "\n".join(f"{name:<12}{words}".rstrip() for name, words in rows)


def plan_page(settings: Settings) -> str:
    """The plan without its steps, which have a place of their own on the run page; Markdown."""
    rows = "".join(f"| {name} | {words} |\n" for name, words in plan_rows(settings, outlook(settings)))
    return f"| | |\n|---|---|\n{rows}"


def plan_rows(settings: Settings, ahead: Outlook) -> Rows:
    """The plan without its steps: what goes in, what it takes, what is missing."""
    rows: Rows = _source_rows(settings, ahead) if isinstance(settings, DataprepSettings) else []
    if isinstance(settings, PretrainSettings) and ahead.fit is not None:
        rows += _training_rows(settings, ahead.fit, ahead.trained)
    if isinstance(settings, OutputSettings):
        rows.append(("disk", _disk_words(settings.output, ahead.needed, ahead.free)))
    return [*rows, ("missing", "; ".join(ahead.missing) or "nothing")]


def _step_rows(settings: Settings) -> Rows:
    rows: Rows = []
    above = False
    for name, done in look_through(settings, verify=getattr(settings, "verify", False)):
        words = "to run"
        if done is not None:
            outcome = done.outcome
            words = f"cached: {outcome.seen:,} in, {outcome.kept:,} kept" if outcome.seen else "cached"
        elif above:
            words = "to run, unless the steps above give what they gave before"
        above = above or done is None
        rows.append(("" if rows else "steps", f"{name:<14}{words}"))
    return rows


def _source_rows(settings: DataprepSettings, ahead: Outlook) -> Rows:
    rows: Rows = []
    if not settings.has_source:
        return [("sources", "the embedded demo: some hundred pages of Python's documentation")]
    if settings.urls:
        count = f", {ahead.urls:,} URLs" if ahead.urls is not None else ""
        rows.append(("sources", _files(ahead.lists, "URL list") + count))
    if settings.warcs:
        rows.append(("sources", _files(ahead.archives, "web archive")))
    if settings.documents:
        from flows.sources import find_loose

        loose = find_loose(settings)
        kinds = ((loose.pages, "page"), (loose.texts, "text file"))
        rows += [("sources", _files(found, kind)) for found, kind in kinds if found]
    return [(name if not number else "", words) for number, (name, words) in enumerate(rows)]


def _files(found: Sequence[InputFile], kind: str) -> str:
    size = sum(item.bytes or 0 for item in found)
    return f"{len(found):,} {kind}{'s' * (len(found) > 1)}, {size_words(size)}"


def _training_rows(settings: PretrainSettings, fit: Fit, trained: bool) -> Rows:
    train, model, layout = settings.train, settings.train.model, fit.layout
    tokens = read_manifest(Folder(settings.data or settings.output) / "tokens")
    held = tokens.outcome.facts.get("train_tokens", 0) if tokens else 0
    epochs = "how many there are is not known yet"
    if held:
        epochs = f"{held:,} are there, {fit.tokens / held:,.1f} times over them"
    where = f"{usable_cores()} CPU cores"
    if fit.on_gpu:
        where = " + ".join(sorted({gpu.name for gpu in fit.found[: fit.wanted]}))
    launcher = settings.launch.launcher
    scheduled = "" if launcher == "torchrun" else f" (by {launcher}; reckoned for this machine)"
    return [
        (
            "model",
            f"{settings.preset}: {fit.parameters:,} parameters, {model.layers} layers, {model.heads} heads, width "
            f"{model.hidden}, context {model.context}, vocabulary {vocabulary_of(settings):,}",
        ),
        (
            "layout",
            f"{layout}, ZeRO {train.parallel.zero}; a step is {layout.global_batch} samples = micro-batch "
            f"{layout.micro_batch} x {layout.accumulation} x {layout.data}",
        ),
        ("memory", f"{fit.memory:.2f} GB a process of {fit.room:.1f} GB ({fit.wanted} on {where}){scheduled}"),
        ("tokens", f"{fit.tokens:,} to train on in {train.steps:,} steps; {epochs}"),
        ("time", "none: it is trained" if trained else f"about {duration(fit.hours)} of training, by {fit.basis}"),
    ]


def _disk_words(output: str, needed: int, free: int | None) -> str:
    where = "which tells nothing of its free space" if free is None else f"where {size_words(free)} are free"
    return f"{size_words(needed)} more in {output}, {where}"
