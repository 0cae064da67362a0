"""Merge of a trained model and its scores: the last two steps of the flows that end with a scored model."""

from dataclasses import dataclass
from typing import Any

from flows.settings import MergeAndScoreSettings, PretrainFlowSettings
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, read_manifest
from tasks.cloze.step import cloze_file, no_passages_message
from tasks.core.runner import Runner
from tasks.evaluate.step import data_files, evaluate, read_data, read_tasks
from tasks.merge.step import merge, write_card
from tasks.ready_tokens.tokens import ReadyTokens


@dataclass(frozen=True)
class ScoreInputs:
    """Inputs of the merge and of the scores, besides the training."""

    data: Folder
    """Output that holds the tokenizer and the documents; the tokenizer of data in an object store is that beside the
    local copy of the tokens."""
    tokenizer: Manifest | None  # manifest of the tokenizer; None: the run folder has a copy of it
    documents: Manifest | None  # manifest of the shuffled documents; None: no perplexity of held-out documents
    lambada: str | None  # path of the evaluation set; None: no cloze score


def merge_and_score(
    root: Folder, training: Manifest, inputs: ScoreInputs, settings: MergeAndScoreSettings, runner: Runner
) -> tuple[Manifest, Manifest]:
    """Merge the checkpoint, score the merged model and write its model card.

    Returns the manifests of the merge and of the scores.
    """
    data = inputs.data
    model = runner.run_step(merge, root, training, inputs.tokenizer, settings.merge, data=data)
    options: dict[str, Any] = {"wikitext": settings.wikitext, "evals": settings.evals, "data": data}
    options["tasks"] = settings.tasks
    scores = runner.run_step(evaluate, root, model, inputs.lambada, inputs.documents, settings.evaluate, **options)
    if not runner.is_dry_run:
        write_card(root, training, settings.merge, scores)
    return model, scores


def check_data(settings: MergeAndScoreSettings, lambada: str | None = None) -> None:
    """Check the data files of LAMBADA, of WikiText, of `evals` and of `tasks`.

    Raises:
        UserError: a file is missing or malformed, or there is no evaluation or task of a name.
    """
    for name, path in (data_files(lambada, settings.wikitext) | settings.evals).items():
        read_data(name, path)
    read_tasks(settings.tasks, settings.evals)


def scores_after_training(
    settings: PretrainFlowSettings, ready: ReadyTokens | None
) -> tuple[ScoreInputs | None, str | None]:
    """Find the inputs of the scores that follow a pretraining, on token files made elsewhere if there are any.

    Returns:
        The inputs, None if the model is not merged and scored; and one line that says what is left out for lack of
        data, None if nothing is. A training of days is not refused for lack of them.
    """
    if not settings.score:
        given = [name for name in ("lambada", "wikitext", "evals") if getattr(settings, name)]
        given += ["tasks"] if settings.tasks.names else []
        return None, f"--score is not given, so {given[0]} is not used and the model is not scored" if given else None
    if ready is not None:
        if ready.tokenizer is None:
            return None, "the model is not merged and scored: its tokens have no tokenizer; give --tokenizer DIR"
        inputs = ScoreInputs(Folder(settings.output), None, None, settings.lambada)
        if settings.lambada:
            return inputs, None
        return inputs, "no cloze score: token files have no evaluation set of their own; give --lambada FILE"
    data = Folder(settings.data or settings.output)
    lambada, note = settings.lambada, None
    if lambada is None:
        lambada, note = _drawn_set(data)
    return ScoreInputs(data, read_manifest(data / "tokenizer"), read_manifest(data / "shuffled"), lambada), note


def _drawn_set(data: Folder) -> tuple[str | None, str | None]:
    """Return the path of the cloze set that a data flow drew, or the reason for which there is none."""
    drawn = read_manifest(data / "evalset")
    if drawn is None:
        return None, f"no cloze score: {data.url} holds no cloze set of its own; give --lambada FILE"
    found = cloze_file(data, drawn)
    return found, None if found else no_passages_message(drawn)


def scores_text(inputs: ScoreInputs | None, note: str | None) -> str | None:
    """Describe the scores after a pretraining for its plan; None without scores. See `scores_after_training`."""
    if inputs is None:
        return note
    found = [f"cloze set {inputs.lambada}"] if inputs.lambada else []
    found += ["perplexity of held-out documents"] if inputs.documents else []
    return "; ".join([", ".join([*found, "samples"]), *([note] if note else [])])
