"""Data preparation flow: URLs, web archives or texts -> token shards. Run it with `python -m flows.dataprep`."""

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flows.command import command
from flows.dry_run.plan import Rows, source_rows
from flows.dry_run.resources import RunEstimate
from flows.orchestration.flow import settings_flow
from flows.orchestration.run_context import check_output
from flows.recipe import PlannedRun
from flows.settings import SOURCES, DataprepSettings
from flows.sources import Sources, documents_of
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.result import show_result
from gpt2train.evaluate.passages import read_passages
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, read_manifest
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
from tasks.outputs.passport.write import leave_passport
from tasks.report.step import REPORT, report
from tasks.shuffle.step import shuffle
from tasks.substrings.step import substrings
from tasks.tokenize.step import tokenize
from tasks.tokenizer.step import check_tokenizer, tokenizer

log = logging.getLogger("gpt2train")

BYTES_PER_PAGE = 110_000  # a fetched page and all data derived from it


@dataclass(frozen=True)
class PreparedData:
    """Manifests of the data steps."""

    manifests: list[Manifest]  # of all steps that ran, in the order of the report
    shuffle: Manifest
    tokenizer: Manifest
    tokenize: Manifest
    lambada: str | None  # evaluation set: the given file or the drawn cloze set; None if no cloze passage was found


class Dataprep(PlannedRun[DataprepSettings]):
    """Prepare token shards from lists of URLs, web archives or texts. Returns the folder of the tokens."""

    name, model, result_name = "dataprep", DataprepSettings, "tokens"

    @cached_property
    def sources(self) -> Sources:
        """Input files of the run, found when they are first used."""
        return Sources(self.settings)

    def check(self) -> None:
        settings = self.settings
        check_output(settings)
        self.sources.check()
        check_blocklists(settings.blacklist.domain_lists)
        check_previous(settings.dedup)
        check_sets(settings.decontaminate.against, settings.decontaminate.key)
        check_tokenizer(settings.tokenizer)
        if settings.lambada:
            read_passages(read_any(settings.lambada), settings.lambada)

    def recipe(self, runner: Runner) -> tuple[PreparedData, Manifest]:
        data = prepare(self.root, self.settings, self.sources, runner)
        # In a folder of its own: the report of a training on the same data uses the default folder.
        return data, runner.run_step(report, self.root, data.manifests, self.settings.report, "data-report")

    def conclude(self, made: tuple[PreparedData, Manifest], publisher: ArtifactPublisher) -> str:
        data, page = made
        show_result(publisher, self.root, [*data.manifests, page])
        leave_passport(self.root)
        log.info("report: %s", (self.root / page.folder).location(REPORT))
        return (self.root / data.tokenize.folder).url

    def subject(self) -> list[str]:
        return [*([source for source in SOURCES if getattr(self.settings, source)] or ["demo"]), *super().subject()]

    def data_bytes(self) -> int:
        if read_manifest(self.root / "tokens") is not None:
            return 0
        # The output of archives and texts is about as large as they are, with the same compression.
        archives = sum(item.bytes or 0 for item in self.sources.warcs)
        return BYTES_PER_PAGE * (self.sources.url_count or 0) + archives

    def rows(self, estimate: RunEstimate) -> Rows:
        return [*source_rows(self.settings, self.sources), *super().rows(estimate)]

    def step_notes(self) -> dict[str, str]:
        note = "clean.split.test is 0, so it finds no passage and the run has no cloze score"
        return {} if self.settings.clean.split.test else {"cloze": note}


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


dataprep = settings_flow(Dataprep)

if __name__ == "__main__":
    command(dataprep)
