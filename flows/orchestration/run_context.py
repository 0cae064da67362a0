"""Context of a flow run: the locked output folder, the runner of its batches, and the watchdogs."""

import contextlib
from collections.abc import Callable, Iterator

from flows.compat.prefect import started_flow_run
from flows.orchestration import stale_runs, worker_watchdog
from flows.orchestration.cancellation import watch_cancellation
from flows.orchestration.cluster_runner import ClusterRunner, check_cluster
from flows.orchestration.server import has_configured_server
from flows.orchestration.task_runner import PrefectRunner
from flows.settings import DataprepSettings, OutputSettings
from tasks.core.output_lock import locked
from tasks.core.storage import Folder
from tasks.train.launch.settings import LaunchSettings


@contextlib.contextmanager
def run_context(
    settings: OutputSettings, plan: Callable[[], str] | None = None
) -> Iterator[tuple[Folder, PrefectRunner]]:
    """Lock the output folder for this run and yield it with the runner of its batches.

    Args:
        settings: output and execution of the run.
        plan: function that returns the resource estimate for the run page, as `--dry-run` prints it; None for a flow
            that needs few resources.

    Raises:
        UserError: the output cannot be written, or another run works in it.
    """
    launch = getattr(settings, "launch", None) or LaunchSettings()
    worker_watchdog.watch_worker(launch.shutdown_timeout)
    watch_cancellation(has_worker=started_flow_run() is not None)
    root = Folder(settings.output)
    root.check_writable()
    runner = runner_of(settings)
    with locked(root, lost=runner.stop), runner:
        stale_runs.claim_output(root)
        if plan is not None:
            runner.publisher.publish("plan", plan, "resources that the run needs", of_step=False)
        yield root, runner


def runner_of(settings: OutputSettings) -> PrefectRunner:
    """Create the runner of these settings; a cluster is joined only when its first batch runs."""
    limits = settings.limits if isinstance(settings, DataprepSettings) else None
    if settings.runner == "local":
        return PrefectRunner(settings.workers, verify=settings.verify, limits=limits)
    return ClusterRunner(settings.runner, settings.cluster, settings.workers, verify=settings.verify, limits=limits)


def check_output(settings: OutputSettings) -> None:
    """Check the output and the cluster before the flow starts.

    Raises:
        UserError: the output cannot be written, or the runner lacks something.
    """
    root = Folder(settings.output)
    check_cluster(
        settings.runner,
        settings.cluster,
        local_output=root.path() if root.is_local else None,
        shared_disk=settings.shared_disk,
        has_api=has_configured_server(),
    )
    root.check_writable(leave=not settings.dry_run)
