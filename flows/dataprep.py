"""Data preparation flow: URLs, web archives or texts -> token shards. Run it with `python -m flows.dataprep`."""

import logging
from dataclasses import dataclass, fields

from flows.command import command
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import check_output, run_context
from flows.orchestration.task_runner import run_step
from flows.settings import DataprepSettings
from flows.sources import check_sources, documents_of
from flows.ui.result import show_result
from gpt2train.evaluate.passages import read_passages
from tasks.blacklist.blocklists import check_blocklists
from tasks.clean.step import clean
from tasks.cloze.step import cloze, cloze_file, no_passages_message
from tasks.core.dry_runner import DryRunner
from tasks.core.runner import Runner
from tasks.core.step import Manifest
from tasks.core.storage import Folder, read_any
from tasks.decontaminate.eval_sets import check_sets
from tasks.decontaminate.step import decontaminate
from tasks.dedup.step import check_previous, dedup
from tasks.report.step import REPORT, report
from tasks.shuffle.step import shuffle
from tasks.tokenize.step import tokenize
from tasks.tokenizer.step import check_tokenizer, tokenizer

log = logging.getLogger("gpt2train")


@dataclass(frozen=True)
class DataManifests:
    """Manifests of the data steps, in the order of the recipe."""

    sources: tuple[Manifest, ...]
    """Manifests of the steps that produced the documents; which steps depends on the given sources."""
    clean: Manifest
    cloze: Manifest | None
    decontaminate: Manifest
    dedup: Manifest
    shuffle: Manifest
    tokenizer: Manifest
    tokenize: Manifest
    lambada: str | None
    """Path of the evaluation set: the given file or the drawn cloze set. None if no cloze passage was found."""

    def manifests(self) -> list[Manifest]:
        """Return all manifests in the order of the recipe."""
        values = [getattr(self, field.name) for field in fields(self)]
        return [*self.sources, *(value for value in values if isinstance(value, Manifest))]


def check(settings: DataprepSettings) -> None:
    """Check inputs and output before the flow starts.

    Raises:
        UserError: the output cannot be written, or an input is missing.
    """
    check_output(settings)
    check_sources(settings)
    check_blocklists(settings.blacklist.domain_lists)
    check_previous(settings.dedup)
    check_sets(settings.decontaminate.against, settings.decontaminate.key)
    check_tokenizer(settings.tokenizer)
    if settings.lambada:
        read_passages(read_any(settings.lambada), settings.lambada)


@settings_flow("dataprep", DataprepSettings, check)
def dataprep(settings: DataprepSettings) -> str:
    """Prepare token shards from lists of URLs, web archives or texts. Returns the folder of the tokens."""
    with run_context(settings) as (root, runner):
        prepared = prepare(root, settings, runner)
        # In a folder of its own: the report of a training on the same data uses the default folder.
        report_manifest = run_step(report, root, prepared.manifests(), settings.report, "data-report", runner=runner)
        show_result(runner.publisher, root, [*prepared.manifests(), report_manifest])
        log.info("report: %s", (root / report_manifest.folder).path(REPORT))
        return (root / prepared.tokenize.folder).url


def prepare(root: Folder, settings: DataprepSettings, runner: Runner) -> DataManifests:
    """Run the data recipe: all steps from the sources to the token shards."""
    # Cleaning and decontamination count tokens with the published tokenizer; one to be trained on these documents does
    # not exist yet. The published one is loaded first, so that a failure shows before a crawl of days.
    published = settings.tokenizer.name != "train"
    bpe = run_step(tokenizer, root, None, settings.tokenizer, runner=runner) if published else None
    documents, sources = documents_of(root, settings, runner)
    cleaned = run_step(clean, root, documents, settings.clean, runner=runner, tokenizer=bpe)
    lambada, drawn = settings.lambada, None
    if lambada is None:
        drawn = run_step(cloze, root, cleaned, settings.cloze, runner=runner)
        lambada = cloze_file(root, drawn)
        if lambada is None and not isinstance(runner, DryRunner):
            log.warning(no_passages_message(drawn))
    evaluation = [("lambada", lambada)] if lambada else []
    decontaminated = run_step(
        decontaminate, root, cleaned, evaluation, settings.decontaminate, runner=runner, tokenizer=bpe
    )
    unique = run_step(dedup, root, decontaminated, settings.dedup, runner=runner)
    shuffled = run_step(shuffle, root, unique, settings.shuffle, runner=runner)
    bpe = bpe or run_step(tokenizer, root, shuffled, settings.tokenizer, runner=runner)
    tokens = run_step(tokenize, root, shuffled, bpe, settings.tokenize, runner=runner)
    return DataManifests(
        sources=tuple(sources),
        clean=cleaned,
        cloze=drawn,
        decontaminate=decontaminated,
        dedup=unique,
        shuffle=shuffled,
        tokenizer=bpe,
        tokenize=tokens,
        lambada=lambada,
    )


if __name__ == "__main__":
    command(dataprep, "tokens")
