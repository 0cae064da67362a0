"""Token shards -> checkpoints, by one torchrun job. Run it with `python -m flows.pretrain`."""

from flows.ahead.fit import check_fit
from flows.command import command
from flows.offer import offer
from flows.run.orchestrate import run_step
from flows.run.retry import Retries
from flows.settings import PretrainSettings
from flows.show.result import show_result
from flows.workplace import check_place, workplace
from gpt2train.errors import UserError
from gpt2train.parallel.layout import Layout
from tasks.fetch import on_local_disk
from tasks.launch import check_launcher
from tasks.runner import Runner
from tasks.steps import Manifest, need_manifest, read_manifest
from tasks.storage import Folder
from tasks.train import check_corpora, train


def check(settings: PretrainSettings) -> None:
    """Find before anything starts what would stop the flow later.

    Raises:
        UserError: the output cannot be written or is not local, the batch does not divide over the processes, a
            corpus to mix in is missing, or this machine lacks something for the run.
        RunError: there are no tokens.
    """
    check_local(settings.output)
    Layout.of(settings.train, settings.launch.world)
    check_launcher(settings.launch, Folder(settings.output).path())
    check_corpora(settings.train)
    check_fit(settings)
    check_place(settings)
    if settings.dry_run and read_manifest(Folder(settings.data or settings.output) / "tokens") is None:
        return  # the plan tells it among all that is missing
    for step in ("tokens", "tokenizer"):
        need_manifest(Folder(settings.data or settings.output) / step)


@offer("pretrain", PretrainSettings, check)
def pretrain(settings: PretrainSettings) -> str:
    """From token shards to checkpoints. Returns the run folder."""
    data = Folder(settings.data or settings.output)
    tokens, bpe = need_manifest(data / "tokens"), need_manifest(data / "tokenizer")
    with workplace(settings) as (root, runner):
        data = on_local_disk(data, [tokens, bpe], root)
        training = learn(root, data, tokens, bpe, settings, runner)
        show_result(runner.page, root, [training])
        return (root / training.folder).url


def learn(
    root: Folder, data: Folder, tokens: Manifest, bpe: Manifest, settings: PretrainSettings, runner: Runner
) -> Manifest:
    """The training step."""
    launch = settings.launch
    retries = Retries(launch.retries, launch.retry_delay)
    return run_step(
        train, root, data, tokens, bpe, settings.train, launch, settings.preset, runner=runner, retries=retries
    )


def check_local(output: str) -> None:
    """Training maps tokens into memory and renames checkpoints: it needs a disk.

    Raises:
        UserError: the output is in an object store.
    """
    if not Folder(output).is_local:
        raise UserError(
            f"training writes to a local disk, not to {output}; run flows.dataprep --output {output}, then "
            f"flows.pretrain --data {output} --output FOLDER"
        )


if __name__ == "__main__":
    command(pretrain, "run")
