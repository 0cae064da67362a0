"""Checkpoint -> merged model and scores. Run it with `python -m flows.evaluate --run out/runs/NAME`."""

from pathlib import PurePosixPath

from flows.command import command
from flows.offer import offer
from flows.run.orchestrate import run_step
from flows.settings import JudgeSettings, OutputSettings, ScoreSettings
from flows.show.result import show_result
from flows.workplace import workplace
from gpt2train.errors import UserError
from gpt2train.evaluate.files import decode
from gpt2train.evaluate.passages import read_passages
from tasks.cloze import cloze_file
from tasks.lambada import evaluate
from tasks.merge import merge
from tasks.runner import Runner
from tasks.steps import Manifest, need_manifest, read_manifest
from tasks.storage import Folder, read_any


def check(settings: ScoreSettings) -> None:
    """Find before anything starts what would stop the flow later.

    Raises:
        RunError: the run is not finished or not there.
        UserError: an input is missing or malformed.
    """
    need_manifest(Folder(settings.run))
    if settings.lambada:
        read_passages(read_any(settings.lambada), settings.lambada)
    check_wikitext(settings)


@offer("evaluate", ScoreSettings, check)
def score(settings: ScoreSettings) -> str:
    """From the last checkpoint of a run to a merged model and its scores. Returns the folder of the scores."""
    root, training, bpe, documents, lambada = inputs_of(settings)
    place = OutputSettings(output=root.url, workers=settings.workers, verify=settings.verify)
    with workplace(place) as (root, runner):
        model, scores = judge(root, training, bpe, lambada, documents, settings, runner)
        show_result(runner.page, root, [training, model, scores])
        return (root / scores.folder).url


def inputs_of(settings: ScoreSettings) -> tuple[Folder, Manifest, Manifest, Manifest, str]:
    """The output folder of a run; its training, tokenizer and documents; the evaluation set.

    Raises:
        RunError: the run is not finished.
        UserError: there is no evaluation set.
    """
    run = Folder(settings.run)
    root = Folder(str(PurePosixPath(run.path()).parent.parent))
    training, bpe, documents = (need_manifest(folder) for folder in (run, root / "tokenizer", root / "shuffled"))
    return root, training, bpe, documents, settings.lambada or _drawn(root)


def judge(
    root: Folder,
    training: Manifest,
    bpe: Manifest,
    lambada: str,
    documents: Manifest,
    settings: JudgeSettings,
    runner: Runner,
) -> tuple[Manifest, Manifest]:
    """Merge the checkpoint, then score the merged model; the manifests of both."""
    model = run_step(merge, root, training, bpe, settings.merge, runner=runner)
    scores = run_step(
        evaluate, root, model, lambada, documents, settings.evaluate, runner=runner, wikitext=settings.wikitext
    )
    return model, scores


def _drawn(root: Folder) -> str:
    """The cloze set that the data flow drew.

    Raises:
        UserError: it drew none.
    """
    manifest = read_manifest(root / "evalset")
    if manifest is None:
        raise UserError(f"{root.url} holds no evaluation set of its own; give --lambada FILE")
    return cloze_file(root, manifest)


def check_wikitext(settings: JudgeSettings) -> None:
    """See that WikiText, where it is given, is there and is text.

    Raises:
        UserError: it is not.
    """
    if settings.wikitext:
        decode(read_any(settings.wikitext), settings.wikitext)


if __name__ == "__main__":
    command(score, "scores")
