"""Launch settings of all launchers: the common ones, and a group for each launcher that has settings of its own."""

import inspect
from typing import TYPE_CHECKING, Literal

from pydantic import Field, create_model, model_validator

from tasks.train.launch import local, ssh  # noqa: F401 (they register themselves)
from tasks.train.launch.common_settings import CommonLaunchSettings
from tasks.train.launch.registry import launchers
from tasks.train.launch.slurm import run  # noqa: F401


def _check(settings: CommonLaunchSettings) -> CommonLaunchSettings:
    launcher, hosts, nodes = launchers()[settings.launcher], settings.hosts, settings.nodes
    if launcher.on_hosts != bool(hosts):
        takes_hosts = " or ".join(repr(name) for name, item in launchers().items() if item.on_hosts)
        raise ValueError(f"launch.launcher = {takes_hosts} and launch.hosts, the machines to start on, need each other")
    if len(set(hosts)) < len(hosts):
        raise ValueError("launch.hosts names a machine twice; launch.processes is the number for each machine")
    if wrong := [host for host in hosts if not host or host.startswith("-") or set(host) & set(" '\"\\$")]:
        raise ValueError(f"launch.hosts has {wrong[0]!r}, which is not a host name")
    if hosts and nodes not in (1, len(hosts)):
        raise ValueError(f"launch.nodes is {nodes}, but launch.hosts has {len(hosts)}; leave nodes out")
    if launcher.needs_endpoint and nodes > 1 and settings.endpoint is None:
        raise ValueError(f"{nodes} nodes need launch.endpoint, the HOST:PORT of their rendezvous")
    return settings


if TYPE_CHECKING:

    class LaunchSettings(CommonLaunchSettings):
        """Settings of the launcher."""
else:
    common = CommonLaunchSettings.model_fields["launcher"]
    LaunchSettings = create_model(
        "LaunchSettings",
        __base__=CommonLaunchSettings,
        __module__=__name__,
        __doc__=CommonLaunchSettings.__doc__,
        __validators__={"check": model_validator(mode="after")(_check)},
        launcher=(Literal[tuple(launchers())], common.default),
        **{
            name: (item.settings, Field(item.settings(), description=inspect.getdoc(item.settings)))
            for name, item in launchers().items()
            if item.settings is not None
        },
    )
