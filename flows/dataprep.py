"""URLs, archives or texts -> token shards. Run it with `python -m flows.dataprep`; the recipe is `prepare`."""

import logging
from dataclasses import dataclass, fields

from flows.command import command
from flows.offer import offer
from flows.run.orchestrate import run_step
from flows.settings import DataprepSettings
from flows.show.result import show_result
from flows.sources import check_sources, documents_of
from flows.workplace import check_place, workplace
from gpt2train.evaluate.passages import read_passages
from tasks.blacklist.listed import check_listed
from tasks.clean import clean
from tasks.cloze import cloze, cloze_file
from tasks.decontaminate import decontaminate
from tasks.decontaminate.evaluation import check_sets
from tasks.dedup import check_earlier, dedup
from tasks.report import REPORT, report
from tasks.runner import Runner
from tasks.shuffle import shuffle
from tasks.steps import Manifest
from tasks.storage import Folder, read_any
from tasks.tokenize import tokenize
from tasks.tokenizer import tokenizer

log = logging.getLogger("gpt2train")


@dataclass(frozen=True)
class Prepared:
    """The manifests of the data steps, in the order of the recipe."""

    sources: tuple[Manifest, ...]
    """Of the steps that brought the documents, by the sources that were given."""
    clean: Manifest
    cloze: Manifest | None
    decontaminate: Manifest
    dedup: Manifest
    shuffle: Manifest
    tokenizer: Manifest
    tokenize: Manifest
    lambada: str
    """The evaluation set: the given file, or the one drawn from held-out documents."""

    def manifests(self) -> list[Manifest]:
        """All manifests, in the order of the recipe."""
        values = [getattr(self, field.name) for field in fields(self)]
        return [*self.sources, *(value for value in values if isinstance(value, Manifest))]


def check(settings: DataprepSettings) -> None:
    """Find before anything starts what would stop the flow later.

    Raises:
        UserError: the output cannot be written, or an input is not there.
    """
    check_place(settings)
    check_sources(settings)
    check_listed(settings.blacklist.domain_lists)
    check_earlier(settings.dedup)
    check_sets(settings.decontaminate.against, settings.decontaminate.key)
    if settings.lambada:
        read_passages(read_any(settings.lambada), settings.lambada)


@offer("dataprep", DataprepSettings, check)
def dataprep(settings: DataprepSettings) -> str:
    """From lists of URLs, web archives or texts to token shards. Returns the folder of the tokens."""
    with workplace(settings) as (root, runner):
        prepared = prepare(root, settings, runner)
        # Beside the report of a training on the same data, which has a folder of its own.
        page = run_step(report, root, prepared.manifests(), settings.report, "data-report", runner=runner)
        show_result(runner.page, root, [*prepared.manifests(), page])
        log.info("report: %s", (root / page.folder).path(REPORT))
        return (root / prepared.tokenize.folder).url


def prepare(root: Folder, settings: DataprepSettings, runner: Runner) -> Prepared:
    """The recipe of the data, step by step."""
    # The published tokenizer counts a document's tokens; one that has yet to be trained on the documents cannot. It is
    # had first: where it cannot be, that is to be known before a crawl of days and not after it.
    published = settings.tokenizer.name != "train"
    bpe = run_step(tokenizer, root, None, settings.tokenizer, runner=runner) if published else None
    documents, sources = documents_of(root, settings, runner)
    cleaned = run_step(clean, root, documents, settings.clean, runner=runner, tokenizer=bpe)
    lambada, drawn = settings.lambada, None
    if lambada is None:
        drawn = run_step(cloze, root, cleaned, settings.cloze, runner=runner)
        lambada = cloze_file(root, drawn)
    evaluation = [("lambada", lambada)]
    decontaminated = run_step(
        decontaminate, root, cleaned, evaluation, settings.decontaminate, runner=runner, tokenizer=bpe
    )
    unique = run_step(dedup, root, decontaminated, settings.dedup, runner=runner)
    shuffled = run_step(shuffle, root, unique, settings.shuffle, runner=runner)
    bpe = bpe or run_step(tokenizer, root, shuffled, settings.tokenizer, runner=runner)
    tokens = run_step(tokenize, root, shuffled, bpe, settings.tokenize, runner=runner)
    return Prepared(
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
