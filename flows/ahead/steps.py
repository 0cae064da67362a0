"""Which steps of a flow are done: its recipe, gone through by a runner that looks."""

from flows.settings import DataprepSettings, OutputSettings, PipelineSettings, PretrainSettings, ScoreSettings
from gpt2train.settings import Settings
from tasks.looking import Looker
from tasks.steps import Manifest, read_manifest
from tasks.storage import Folder


def look_through(settings: Settings, *, verify: bool = False) -> list[tuple[str, Manifest | None]]:
    """Name and manifest of each step in order, as `Looker.steps` tells them; None for one that is to run.

    Args:
        verify: compare the hashes of finished outputs too.
    """
    looker = Looker(verify=verify)
    _go_through(settings, looker)
    return looker.steps


def _go_through(settings: Settings, looker: Looker) -> None:
    """The recipe of the flow, for a runner that looks."""
    from flows.dataprep import prepare  # here: these modules offer the command that shows this
    from flows.evaluate import inputs_of, judge
    from flows.pretrain import learn

    if isinstance(settings, ScoreSettings):
        root, training, bpe, documents, lambada = inputs_of(settings)
        judge(root, training, bpe, lambada, documents, settings, looker)
        return
    assert isinstance(settings, OutputSettings)
    root = Folder(settings.output)
    if isinstance(settings, DataprepSettings):
        data = prepare(root, settings, looker)
        if isinstance(settings, PipelineSettings):
            training = learn(root, root, data.tokenize, data.tokenizer, settings, looker)
            judge(root, training, data.tokenizer, data.lambada, data.shuffle, settings, looker)
    elif isinstance(settings, PretrainSettings):
        place = Folder(settings.data or settings.output)
        tokens, vocabulary = read_manifest(place / "tokens"), read_manifest(place / "tokenizer")
        if tokens is None or vocabulary is None:
            looker.steps.append(("train", None))
        else:
            learn(root, place if place.is_local else root, tokens, vocabulary, settings, looker)
