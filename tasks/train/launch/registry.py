"""Registry of the launchers, built-in ones and those of plug-ins (docs/develop/add-a-launcher.md).

The module of a launcher registers it when it is imported. This module imports no launcher and not the settings of all,
so that a plug-in can be imported first.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from gpt2train.errors import UserError
from gpt2train.plugins import Registry
from gpt2train.settings import Settings
from tasks.train.launch.common_settings import CommonLaunchSettings
from tasks.train.launch.job import Job, LogLineSink


@dataclass(frozen=True)
class Launcher:
    """A launcher of training jobs.

    Attributes:
        run: Runs a job to its end, or follows one that an earlier call for the same job left running. The second
            argument is called with each line that the launcher prints, and that ranks print outside their logs:
            `error: …`, `warning: …`, or any other text; lines that ranks log come from their files (`rank_logs.py`).
            Returns the exit code. 0: all ranks succeeded (also after SIGTERM and a saved checkpoint). 2: a user's
            mistake, described by a line `error: …`. `job.LOST` or a negative number: a process was lost, and the job
            can be retried. Any other: a failure. The first `error: …` among the last lines is the cause. On any
            exception (cancellation, Ctrl-C) the whole job gets SIGTERM, on which the engine saves a checkpoint, and
            SIGKILL after `shutdown_timeout` seconds; no process of it is left running.
        check: Checks the settings and the machine before anything starts; the second argument is the output folder of
            the run, a local path. Raises `UserError` if the launcher's commands are missing here, or the job's
            machines cannot reach the output.
        settings: Settings model of the launcher, the group `launch.NAME`; `job.settings.group(model)` returns it.
        on_this_machine: True if the ranks run on this machine. The job then waits for its GPUs (or cores), and does not
            start if the machine lacks what the plan says.
        on_hosts: True if it starts the ranks on `launch.hosts`, which no other launcher takes.
        needs_endpoint: True if `launch.nodes` above 1 need `launch.endpoint`.
    """

    run: Callable[[Job, LogLineSink], int]
    check: Callable[[CommonLaunchSettings, str], None] | None = None
    settings: type[Settings] | None = None
    on_this_machine: bool = False
    on_hosts: bool = False
    needs_endpoint: bool = False


_LAUNCHERS: Registry[Launcher] = Registry("launcher")


def register_launcher(name: str, launcher: Launcher) -> None:
    """Add a launcher under its name in `launch.launcher`.

    Raises:
        UserError: The name is taken or is not one of a setting, or the launch settings exist already.
    """
    if name in CommonLaunchSettings.model_fields:
        raise UserError(f"launcher {name!r}: a launcher has a name that is no setting of `launch`; rename it")
    if launchers.cache_info().currsize:
        raise UserError(f"launcher {name} comes after the launch settings were made; its module must not import them")
    _LAUNCHERS.register(name, launcher)


@functools.cache
def launchers() -> dict[str, Launcher]:
    """All launchers by name, the built-in ones first. No more can be registered afterwards."""
    return dict(_LAUNCHERS.items())
