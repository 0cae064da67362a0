"""torchrun's agent, one on each machine: starts the ranks, watches them, and starts all again when one was lost.

Two things are ours: a rank that ended by a user's mistake, or after a request to stop, is not started again; and the
first cause of a failure is told in one line that names the rank and the machine. The rest is torch's own: the agents
meet at the rendezvous, agree on the ranks, and meet there again for each attempt.
"""

import signal
import socket
import sys
import uuid
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import psutil
from torch.distributed import run
from torch.distributed.elastic.agent.server import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.launcher.api import LaunchConfig

from gpt2train.cluster import Seat
from gpt2train.errors import UserError
from gpt2train.lifeline import LOST_CONTACT, SILENT

USER_ERROR = 2  # exit code of a rank for a user's mistake
ASKED_TO_STOP = 128 + signal.SIGTERM


class Agent(LocalElasticAgent):
    """Starts, watches and restarts the ranks of this machine.

    Args:
        stopping: whether a signal asked the job to end.
    """

    def __init__(self, config: LaunchConfig, spec: WorkerSpec, stopping: Callable[[], bool]) -> None:
        patience: dict[str, Any] = {}
        if hasattr(config, "shutdown_timeout"):  # torch 2.12; 30 s before
            patience["shutdown_timeout"] = config.shutdown_timeout
        super().__init__(spec, config.logs_specs or DefaultLogsSpecs(), **patience)
        self._stopping = stopping
        self._restarts = 0

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        # The part of a SimpleElasticAgent that torch asks users to write. Raising here ends the job: what it returns
        # as failed is restarted as long as there are restarts.
        result = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
            final = USER_ERROR in codes.values() or self._stopping()
            if final or self._restarts == worker_group.spec.max_restarts:
                raise ChildFailedError(worker_group.spec.role, result.failures)
            self._restarts += 1
            tell(codes)
            of = worker_group.spec.max_restarts
            again = f"starting all ranks again, from the last checkpoint: restart {self._restarts} of {of}"
            print(f"warning: {again}", flush=True)
        return result


def start(arguments: list[str], seat: Seat, stopping: Callable[[], bool]) -> None:
    """Run a job to its end on this machine.

    Args:
        arguments: torchrun's.
        seat: place of this launcher among those of the other machines, where Slurm tells it.
        stopping: whether a signal asked the job to end.

    Raises:
        UserError: the arguments do not fit Slurm's variables.
        ChildFailedError: a rank failed and is not started again.
    """
    config, command, rest = run.config_from_args(_complete(run.parse_args(arguments), seat))
    static = config.rdzv_backend == "static"
    address, _, port = config.rdzv_endpoint.rpartition(":")
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=command,
        args=tuple(rest),
        rdzv_handler=get_rendezvous_handler(parameters),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=address if static else None,
        master_port=int(port) if static else None,
        local_addr=config.local_addr,
        numa_options=config.numa_options,
    )
    try:
        Agent(config, spec, stopping).run()
    finally:
        spec.rdzv_handler.shutdown()


def _complete(args: Namespace, seat: Seat) -> Namespace:
    """Fill in where the machines meet: from Slurm, or on this machine where it is the only one."""
    chosen = args.standalone or args.rdzv_endpoint or args.master_port is not None or args.nnodes != "1:1"
    if seat.world > 1 and not chosen:
        if seat.locals > 1:
            raise UserError(
                f"srun started {seat.locals} launchers on this machine, and each starts ranks of its own; start one a "
                "machine (srun --ntasks-per-node 1), or python -m gpt2train.train without a launcher"
            )
        args.nnodes, args.rdzv_backend, args.rdzv_id = str(seat.world), "c10d", seat.job
        args.rdzv_endpoint = f"{seat.host}:{seat.port}"
        _set_host(args, seat.rank == 0)
    elif args.rdzv_backend == "c10d" and args.rdzv_endpoint and "is_host" not in args.rdzv_conf:
        if _opens(args.rdzv_endpoint):
            _set_host(args, True)
    elif args.standalone or not chosen:
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    args.master_port = args.master_port or 29500  # torchrun's own
    return args


def _set_host(args: Namespace, here: bool) -> None:
    host = f"is_host={str(here).lower()}"
    args.rdzv_conf = f"{args.rdzv_conf},{host}" if args.rdzv_conf else host


def _opens(endpoint: str) -> bool:
    """Whether this machine is to open the port at which all meet.

    torch finds out by the machine's name, which need not lead to the address of the network that all share. Loopback
    is left to torch: there several launchers share a machine, and the first opens the port.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        address = socket.gethostbyname(host)
        ours = {one.address for found in psutil.net_if_addrs().values() for one in found}
        if address not in ours or address.startswith("127."):
            return False
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, int(port)))
    except (OSError, ValueError):
        return False
    return True


def tell(codes: dict[int, int], stopped: bool = False, lost: int = 1) -> int:
    """The exit code for ranks that failed, and a line on stderr where no rank could print its own.

    Args:
        codes: exit code of each rank that failed.
        stopped: a signal asked the job to end.
        lost: exit code when a process was lost: ended by a signal, cut off, or hung.
    """
    if stopped and set(codes.values()) <= {-signal.SIGTERM}:
        print("stopped before it began", file=sys.stderr)
        return ASKED_TO_STOP
    rank, code = min(codes.items(), key=lambda item: (_weight(item[1]), item[0]))
    if code in (1, USER_ERROR):
        return code
    if code == SILENT:
        return lost
    what = f"error: rank {rank} on {socket.gethostname()}"
    if code == LOST_CONTACT:
        print(f"{what} lost contact with another process; see logs/rank-{rank}.log", file=sys.stderr)
        return lost
    elif code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else f"; see logs/rank-{rank}.err"
        print(f"{what} was ended by {name}{hint}", file=sys.stderr)
        return lost
    print(f"{what} ended with exit code {code}; see logs/rank-{rank}.log", file=sys.stderr)
    return 1


def _weight(code: int) -> int:
    """Which of several failures is the cause: a told error, a signal, then what follows from another's failure."""
    order = [USER_ERROR, 1, SILENT, -signal.SIGKILL]
    follows = [LOST_CONTACT, -signal.SIGTERM]
    return order.index(code) if code in order else 10 + follows.index(code) if code in follows else 5
