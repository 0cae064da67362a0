"""Finished and pending steps of a flow, found by running its recipe with the dry runner."""

from flows.settings import DataprepSettings, EvaluateFlowSettings, OutputSettings, PipelineSettings, PretrainSettings
from gpt2train.settings import Settings
from tasks.core.dry_runner import DryRunner
from tasks.core.step import Manifest, read_manifest
from tasks.core.storage import Folder


def cached_steps(settings: Settings, *, verify: bool = False) -> list[tuple[str, Manifest | None]]:
    """Return name and manifest of each step in order; the manifest is None for a step that has to run.

    Args:
        settings: settings of the flow.
        verify: compare the hashes of finished outputs too.
    """
    runner = DryRunner(verify=verify)
    _run_recipe(settings, runner)
    return runner.steps


def _run_recipe(settings: Settings, runner: DryRunner) -> None:
    """Run the recipe of the flow that has these settings."""
    from flows.dataprep import prepare  # here: the flows import the dry run for their commands
    from flows.evaluate import inputs_of, merge_and_score
    from flows.pretrain import train_on_tokens

    if isinstance(settings, EvaluateFlowSettings):
        root, training, bpe, documents, lambada = inputs_of(settings)
        merge_and_score(root, training, bpe, lambada, documents, settings, runner)
        return
    assert isinstance(settings, OutputSettings)
    root = Folder(settings.output)
    if isinstance(settings, DataprepSettings):
        data = prepare(root, settings, runner)
        if isinstance(settings, PipelineSettings):
            training = train_on_tokens(root, root, data.tokenize, data.tokenizer, settings, runner)
            merge_and_score(root, training, data.tokenizer, data.lambada, data.shuffle, settings, runner)
    elif isinstance(settings, PretrainSettings):
        data_folder = Folder(settings.data or settings.output)
        tokens, tokenizer = read_manifest(data_folder / "tokens"), read_manifest(data_folder / "tokenizer")
        if tokens is None or tokenizer is None:
            runner.steps.append(("train", None))
        else:
            train_on_tokens(root, data_folder if data_folder.is_local else root, tokens, tokenizer, settings, runner)
