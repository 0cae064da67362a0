"""Context of a flow run: the locked output folder, the runner of its batches, and the watchdogs."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from prefect.context import FlowRunContext

from flows.compat.prefect import started_flow_run
from flows.orchestration import run_guard
from flows.orchestration.cluster_runner import ClusterRunner, check_cluster
from flows.orchestration.server import configured_server
from flows.orchestration.task_runner import PrefectRunner
from flows.settings import FlowSettings, OutputSettings
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.lost_files import translate_lost_files
from gpt2train.store.output import check_no_removal
from gpt2train.store.output_lock import locked
from tasks.train.launch.settings import LaunchSettings

log = logging.getLogger("gpt2train")

# For the process of a resumed run to notice it, and to end after a training has saved.
HANDOVER_SECONDS = 60.0


@contextlib.contextmanager
def run_context(settings: FlowSettings, plan: Callable[[], str] | None = None) -> Iterator[PrefectRunner]:
    """Lock the output folder for this run and yield the runner of its batches.

    Args:
        settings: output and execution of the run.
        plan: function that returns the resource estimate for the run page; None for a flow that needs few resources.

    Raises:
        UserError: the output cannot be written, another run works in it, or a part of it was removed during the run.
    """
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    launch = getattr(settings, "launch", None) or LaunchSettings()
    root = Folder(settings.output)
    with contextlib.ExitStack() as stack:
        if flow_run is not None:
            started = started_flow_run()
            # `started` may be the run of a user's flow, which calls this one. A process of `serve()` has no id.
            if started is not None or flow_run.deployment_id is not None:
                run_guard.watch_worker(flow_run, launch.shutdown_timeout)
            stack.enter_context(run_guard.watched(flow_run, has_worker=started is not None))
        root.check_writable()
        patience = 0.0
        if flow_run is not None and run_guard.is_claimed(root, flow_run.id):
            # Resumed or retried: the process that it had before may still save.
            patience = launch.shutdown_timeout + HANDOVER_SECONDS
            log.info("this run was at work in %s before; its process, if it still saves, is waited for", root.url)
        runner = runner_of(settings)
        runner.root = root
        stack.enter_context(translate_lost_files(root))
        stack.enter_context(locked(root, lost=runner.stop, patience=patience))
        stack.enter_context(runner)
        check_no_removal(root)
        if flow_run is not None:
            run_guard.claim_output(root, flow_run.id)
        if plan is not None:
            runner.publisher.publish("plan", plan, "resources that the run needs", of_step=False)
        yield runner


def runner_of(settings: FlowSettings) -> PrefectRunner:
    """Create the runner of these settings; a cluster is joined only when its first batch runs."""
    limits = getattr(settings, "limits", None)  # of the data steps
    options: dict[str, Any] = {"verify": settings.verify, "limits": limits, "environment": settings.environment}
    if isinstance(settings, OutputSettings) and settings.runner != "local":
        return ClusterRunner(settings.runner, settings.cluster, settings.workers, **options)
    return PrefectRunner(settings.workers, **options)


def check_output(settings: OutputSettings) -> None:
    """Check the output and the cluster before the flow starts.

    Raises:
        UserError: the output cannot be written, a removal of pages was interrupted there, or the runner lacks parts.
    """
    check_cluster(settings, has_api=configured_server() is not None)
    root = Folder(settings.output)
    if root.url.startswith("memory:"):
        raise UserError(f"{root.url} is seen by one process alone, and a run has several; give a folder or a store")
    root.check_writable(leave=not settings.dry_run)
    check_no_removal(root)
