"""Data preparation flow: URLs, web archives or texts -> token shards. Run it with `python -m flows.dataprep`."""

import logging
from dataclasses import dataclass
from typing import Any

from flows.command import command
from flows.dry_run.plan import plan_page
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import check_output, run_context
from flows.recipe import PlannedRun
from flows.settings import DataprepSettings
from flows.sources import Sources, documents_of
from flows.ui.result import show_result
from gpt2train.evaluate.passages import read_passages
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.blacklist.blocklists import check_blocklists
from tasks.boilerplate.step import boilerplate
from tasks.clean.step import clean
from tasks.cloze.step import cloze, cloze_file, no_passages_message
from tasks.core.input_files import read_any
from tasks.core.runner import Runner
from tasks.data_steps.registry import After, steps_after
from tasks.data_steps.step import function_of
from tasks.decontaminate.eval_sets import check_sets
from tasks.decontaminate.step import decontaminate
from tasks.dedup.step import check_previous, dedup
from tasks.passport.write import leave_passport
from tasks.report.step import REPORT, report
from tasks.shuffle.step import shuffle
from tasks.substrings.step import substrings
from tasks.tokenize.step import tokenize
from tasks.tokenizer.step import check_tokenizer, tokenizer

log = logging.getLogger("gpt2train")


@dataclass(frozen=True)
class PreparedData:
    """Manifests of the data steps."""

    manifests: list[Manifest]  # of all steps that ran, in the order of the report
    shuffle: Manifest
    tokenizer: Manifest
    tokenize: Manifest
    lambada: str | None  # evaluation set: the given file or the drawn cloze set; None if no cloze passage was found


def check(run: PlannedRun[DataprepSettings]) -> None:
    """Check inputs and output before the flow starts.

    Raises:
        UserError: the output cannot be written, or an input is missing.
    """
    settings = run.settings
    check_output(settings)
    run.sources.check()
    check_blocklists(settings.blacklist.domain_lists)
    check_previous(settings.dedup)
    check_sets(settings.decontaminate.against, settings.decontaminate.key)
    check_tokenizer(settings.tokenizer)
    if settings.lambada:
        read_passages(read_any(settings.lambada), settings.lambada)


def recipe(run: PlannedRun[DataprepSettings], runner: Runner) -> tuple[PreparedData, Manifest]:
    """Run all steps of the flow: from the sources to the token shards and their report."""
    data = prepare(run.root, run.settings, run.sources, runner)
    # In a folder of its own: the report of a training on the same data uses the default folder.
    page = runner.run_step(report, run.root, data.manifests, run.settings.report, "data-report")
    return data, page


@settings_flow("dataprep", DataprepSettings, recipe, check)
def dataprep(run: PlannedRun[DataprepSettings]) -> str:
    """Prepare token shards from lists of URLs, web archives or texts. Returns the folder of the tokens."""
    with run_context(run.settings, plan=lambda: plan_page(run)) as (root, runner):
        data, page = recipe(run, runner)
        show_result(runner.publisher, root, [*data.manifests, page])
        leave_passport(root)
        log.info("report: %s", (root / page.folder).path(REPORT))
        return (root / data.tokenize.folder).url


def prepare(root: Folder, settings: DataprepSettings, sources: Sources, runner: Runner) -> PreparedData:
    """Run the steps from the sources to the token shards."""
    # Cleaning and decontamination count tokens with the published tokenizer; one to be trained on these documents does
    # not exist yet. The published one is loaded first, so that a failure shows before a crawl of days.
    published = settings.tokenizer.name != "train"
    bpe = runner.run_step(tokenizer, root, None, settings.tokenizer) if published else None
    documents, found = documents_of(root, settings, sources, runner)

    def with_added(name: After, documents: Manifest) -> Manifest:
        """Run the steps of plug-ins that follow a built-in one, and return the manifest of their documents."""
        found.append(documents)
        for step in steps_after(name):
            group = getattr(settings, step.name)
            documents = runner.run_step(function_of(step), root, documents, group, tokenizer=bpe)
            found.append(documents)
        return documents

    origin = documents
    if settings.boilerplate.enabled:
        documents = runner.run_step(boilerplate, root, documents, settings.boilerplate)
        found.append(documents)
    cleaned = runner.run_step(clean, root, documents, settings.clean, tokenizer=bpe, origin=origin)
    filtered = with_added("clean", cleaned)
    lambada = settings.lambada
    if lambada is None:
        drawn = runner.run_step(cloze, root, filtered, settings.cloze)
        found.append(drawn)
        lambada = cloze_file(root, drawn)
        if lambada is None and not runner.is_dry_run:
            log.warning(no_passages_message(drawn))
    evaluation = [("lambada", lambada)] if lambada else []
    decontaminated = runner.run_step(decontaminate, root, filtered, evaluation, settings.decontaminate, tokenizer=bpe)
    unique = runner.run_step(dedup, root, with_added("decontaminate", decontaminated), settings.dedup)
    unique = with_added("dedup", unique)
    if settings.substrings.enabled:
        options: dict[str, Any] = {"tokenizer": bpe, "min_tokens": settings.clean.min_tokens}
        unique = runner.run_step(substrings, root, unique, settings.substrings, **options)
        found.append(unique)
    shuffled = runner.run_step(shuffle, root, unique, settings.shuffle)
    bpe = bpe or runner.run_step(tokenizer, root, shuffled, settings.tokenizer)
    tokens = runner.run_step(tokenize, root, shuffled, bpe, settings.tokenize)
    return PreparedData([*found, shuffled, bpe, tokens], shuffled, bpe, tokens, lambada)


if __name__ == "__main__":
    command(dataprep, "tokens")
