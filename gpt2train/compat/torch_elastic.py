"""Private parts of torch's elastic launcher: torchrun's agent, its command line and its rendezvous.

Each is held by tests/gpt2train/compat/test_torch_elastic.py, on the releases of `gpt2train.compat.torch.TORCH`.
"""

import os
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import run
from torch.distributed.elastic.agent.server import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname
from torch.distributed.launcher.api import LaunchConfig

# Classes of a pickled rendezvous state. Break when torch moves them: a job on several machines ends at its rendezvous.
STATE_MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
STATE_CLASS = "_RendezvousState"
STATE_CLASSES = (STATE_CLASS, "_NodeDesc")


class ObservedAgent(LocalElasticAgent):
    """torchrun's agent with a method that sees each result of its watch over the ranks.

    Breaks when `SimpleElasticAgent` no longer calls `_monitor_workers`: `observe` would not be called, and a rank that
    ended by a mistake would be restarted.
    """

    def __init__(self, config: LaunchConfig, spec: WorkerSpec) -> None:
        options: dict[str, Any] = {}
        if hasattr(config, "shutdown_timeout"):  # torch 2.12; 30 s before
            options["shutdown_timeout"] = config.shutdown_timeout
        super().__init__(spec, config.logs_specs or DefaultLogsSpecs(), **options)

    def observe(self, result: RunResult, spec: WorkerSpec) -> None:
        """See a result before the agent acts on it. Raising ends the job; a failure in `result` leads to a restart."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        self.observe(result, worker_group.spec)
        return result


def parse_torchrun(arguments: list[str]) -> Namespace:
    """Parse the arguments of torchrun. Breaks when an option that we fill in is renamed."""
    parser = run.get_args_parser()
    # torch 2.11 has 29500, as if it were given: Slurm's variables would not count, and each machine train alone.
    if "PET_MASTER_PORT" not in os.environ:
        parser.set_defaults(master_port=None)
    return parser.parse_args(arguments)


def processes_per_node(args: Namespace) -> int:
    """Return the number of ranks of this machine, of which torchrun takes `gpu`, `cpu` and `auto` too.

    Breaks with an error at the start of every job.
    """
    return run.determine_local_world_size(args.nproc_per_node)


def launch_config(args: Namespace) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """Return torchrun's configuration, the command of a rank and its arguments.

    Breaks when torchrun composes its configuration elsewhere, with an error at the start of every job.
    """
    return run.config_from_args(args)


def is_machine_host_name(host: str) -> bool:
    """Return True if a name is one of this machine's host names or addresses, as torchrun decides it.

    Breaks with an error at import; the rule decides which machine of a job opens the endpoint.
    """
    return bool(_matches_machine_hostname(host))


def use_store(handler: StaticTCPRendezvous, store: dist.Store) -> None:
    """Make a static rendezvous use a store that is open already, instead of opening one on all interfaces.

    Breaks when the attribute is renamed: torch would open a second store, and fail because the port is taken.
    """
    handler._store = store


def open_rank_stores_by(handler: RendezvousHandler, function: Callable[[str, int], dist.TCPStore]) -> None:
    """Make a dynamic rendezvous open the stores of the ranks by a function from address and port.

    torch's own opens them on all interfaces. Breaks when the method is renamed: the stores would be open to others
    (tests/gpt2train/launch/test_multi_node.py).
    """
    assert hasattr(handler, "_create_tcp_store_server")
    handler._create_tcp_store_server = function
