"""What every flow stands on: an output folder of its own, checked before anything starts, and a runner."""

import contextlib
from collections.abc import Iterator

from flows.run import holder, worker
from flows.run.cluster import ClusterRunner, check_cluster
from flows.run.orchestrate import PrefectRunner
from flows.server import names_a_server
from flows.settings import DataprepSettings, OutputSettings, PretrainSettings
from tasks.launch.settings import LaunchSettings
from tasks.lock import locked
from tasks.storage import Folder


@contextlib.contextmanager
def workplace(settings: OutputSettings) -> Iterator[tuple[Folder, PrefectRunner]]:
    """The output folder, locked for this run, and the runner of its batches.

    Raises:
        UserError: the output cannot be written, or another run is at work there.
    """
    launch = getattr(settings, "launch", None) or LaunchSettings()
    worker.follow_worker(launch.grace)
    root = Folder(settings.output)
    root.check_writable()
    runner = runner_of(settings)
    with locked(root, lost=runner.stop), runner:
        holder.take_over(root)
        show_plan(settings, runner)
        yield root, runner


def show_plan(settings: OutputSettings, runner: PrefectRunner) -> None:
    """Show on the run page what the run takes, as `--dry-run` tells it."""
    from flows.ahead.preview import plan_page  # which knows the flows, and those this module

    if isinstance(settings, DataprepSettings | PretrainSettings):  # others take next to nothing
        runner.page.put("plan", lambda: plan_page(settings), "what the run takes", of_step=False)


def runner_of(settings: OutputSettings) -> PrefectRunner:
    """The runner that the settings ask for; a cluster is not joined before a batch has to run."""
    limits = settings.limits if isinstance(settings, DataprepSettings) else None
    if settings.runner == "local":
        return PrefectRunner(settings.workers, verify=settings.verify, limits=limits)
    return ClusterRunner(settings.runner, settings.cluster, settings.workers, verify=settings.verify, limits=limits)


def check_place(settings: OutputSettings) -> None:
    """Find before anything starts whether the output and the cluster can be used.

    Raises:
        UserError: the output cannot be written, or the runner lacks something.
    """
    root = Folder(settings.output)
    check_cluster(
        settings.runner,
        settings.cluster,
        local_output=root.path() if root.is_local else None,
        shared_disk=settings.shared_disk,
        has_api=names_a_server(),
    )
    if not settings.dry_run:
        root.check_writable()
