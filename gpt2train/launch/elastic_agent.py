"""Elastic agent of torchrun, one per machine: starts and monitors the ranks, and restarts all if one is lost.

It differs from torch's agent in two ways. A rank that ended by a user's mistake, or after a stop request, is not
restarted; and the root cause of a failure is reported in one line with rank and machine. Everything else is torch's:
the agents agree on the ranks at the rendezvous, for each attempt anew.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping

import psutil
from torch.distributed.elastic.agent.server import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig

from gpt2train.compat.torch_elastic import ObservedAgent, launch_config, parse_torchrun, processes_per_node
from gpt2train.errors import UserError
from gpt2train.launch.exit_codes import LOST_CONTACT, PEER_HUNG, USER_ERROR
from gpt2train.launch.process_env import read_process_env
from gpt2train.launch.rank_logs import quietly
from gpt2train.launch.rank_process import SIGNAL_DEBOUNCE_SECONDS
from gpt2train.launch.rendezvous import rendezvous

STOPPED = 128 + signal.SIGTERM


class Agent(ObservedAgent):
    """Elastic agent that starts, monitors and restarts the ranks of this machine; `stopping()` is True after a stop."""

    def __init__(self, config: LaunchConfig, spec: WorkerSpec, stopping: Callable[[], bool]) -> None:
        super().__init__(config, spec)
        self._stopping = stopping
        self._restarts = 0

    def observe(self, result: RunResult, spec: WorkerSpec) -> None:
        """Report a failure, and end the job if it is final."""
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
            final = USER_ERROR in codes.values() or self._stopping()
            if final or self._restarts == spec.max_restarts:
                raise ChildFailedError(spec.role, result.failures)
            self._restarts += 1
            report_failure(codes)
            count = f"restart {self._restarts} of {spec.max_restarts}"
            quietly(print)(f"warning: restarting all ranks: {count}", flush=True)


def start(arguments: list[str], env: Mapping[str, str], stopping: Callable[[], bool]) -> None:
    """Run the ranks of this machine until the job ends: torchrun's arguments, Slurm's variables, and a stop request.

    Raises:
        UserError: an argument is wrong, or the arguments contradict Slurm's variables.
        ChildFailedError: a rank failed and is not restarted.
    """
    args = _complete(parse_torchrun(arguments), env)
    with _argument_errors():
        processes = processes_per_node(args)
    if processes < 1:
        raise UserError(f"--nproc-per-node is {processes}; a job has at least 1 process on each machine")
    # torchrun by itself sets one thread and prints a warning.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    # torch would make a folder for files that the ranks do not write, and leave it; the filter needs them.
    if args.log_dir is None and not args.local_ranks_filter:
        args.log_dir = os.devnull
    _run(args, stopping)


def _run(args: Namespace, stopping: Callable[[], bool]) -> None:
    with _argument_errors():
        config, command, rest = launch_config(args)
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    fixed = config.rdzv_backend == "static" and config.max_nodes > 1  # the command line gives each node's rank
    if fixed and args.node_rank >= config.max_nodes:
        raise UserError(f"--node-rank is {args.node_rank}, but --nnodes is {args.nnodes}; the first machine has rank 0")
    address, _, port = config.rdzv_endpoint.rpartition(":")
    with contextlib.ExitStack() as stack:
        if config.max_nodes > 1:
            stack.enter_context(_ended_by_a_signal_in_a_wait(stopping))
        with _argument_errors():
            handler = stack.enter_context(rendezvous(parameters))
        spec = WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            entrypoint=command,
            args=tuple(rest),
            rdzv_handler=handler,
            max_restarts=config.max_restarts,
            monitor_interval=config.monitor_interval,
            master_addr=address if fixed else None,
            master_port=int(port) if fixed else None,
            local_addr=config.local_addr,
            numa_options=config.numa_options,
        )
        Agent(config, spec, stopping).run()


@contextlib.contextmanager
def _argument_errors() -> Iterator[None]:
    """Turn torch's errors of wrong arguments into a `UserError`."""
    try:
        yield
    except (ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"torchrun refuses its arguments: {reason}; correct what stands after --") from error


@contextlib.contextmanager
def _ended_by_a_signal_in_a_wait(stopping: Callable[[], bool]) -> Iterator[None]:
    """End a launcher without ranks soon after a signal, also while it waits in torch for other machines.

    There no handler of Python runs until the wait is over, minutes later; the interpreter's own handler writes to a
    pipe, which a thread reads.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while os.read(reader, 1):
            time.sleep(SIGNAL_DEBOUNCE_SECONDS)  # in which the handler runs, unless the launcher waits
            if not stopping() and not psutil.Process().children():
                os._exit(STOPPED)
        os.close(reader)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # ends the thread


def _complete(args: Namespace, variables: Mapping[str, str]) -> Namespace:
    """Fill in the rendezvous endpoint: from Slurm's variables, or on this machine if it is the only one.

    With an endpoint on the command line the variables do not count: a platform or an outer job may have left them.
    """
    chosen = args.standalone or args.rdzv_endpoint or args.master_port is not None or args.nnodes != "1:1"
    env = None if chosen else read_process_env(variables)
    if env is not None and env.world > 1:
        if env.local_world > 1:
            source = "RANK and WORLD_SIZE are" if variables.get("WORLD_SIZE") else "srun's variables are"
            raise UserError(
                f"{source} those of {env.local_world} launchers on this machine, and each starts its own ranks; start "
                "one per machine (srun --ntasks-per-node 1), or python -m gpt2train.train without a launcher; or give "
                "--standalone, for a job of this machine alone"
            )
        args.nnodes, args.rdzv_backend, args.rdzv_id = str(env.world), "c10d", env.job
        args.rdzv_endpoint = f"{env.host}:{env.port}"
        host = f"is_host={str(env.rank == 0).lower()}"
        args.rdzv_conf = f"{args.rdzv_conf},{host}" if args.rdzv_conf else host
    elif args.standalone or not chosen:  # torchrun requires an endpoint, but no port is opened
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    args.master_port = args.master_port or 29500  # torchrun's default
    return args


def report_failure(codes: dict[int, int], stopped: bool = False, lost: int = 1, resumes: str = "") -> int:
    """Report failed ranks by a line on stderr, unless one has printed its own, and return the job's exit code.

    `stopped` is True after a stop request. `lost` is the code if a process was killed by a signal, disconnected or
    hung; `resumes` is then the end of the line.
    """
    if stopped and set(codes.values()) <= {-signal.SIGTERM}:
        quietly(print)("stopped before training started", file=sys.stderr)
        return STOPPED
    # The root cause of several failures comes first: reported errors, signals, then consequences.
    order = {USER_ERROR: 0, 1: 1, PEER_HUNG: 2, -signal.SIGKILL: 3, LOST_CONTACT: 5, -signal.SIGTERM: 6}
    rank, code = min(codes.items(), key=lambda item: (order.get(item[1], 4), item[0]))
    if code in (1, USER_ERROR):
        return code
    if code == PEER_HUNG:
        return lost
    prefix = f"error: rank {rank} on {socket.gethostname()}"
    if code == LOST_CONTACT:
        found = f"lost contact with another process; see logs/rank-{rank}.log{resumes}"
        quietly(print)(f"{prefix} {found}", file=sys.stderr)
        return lost
    elif code < 0:
        hint = " (out of memory?)" if -code == signal.SIGKILL else f"; see logs/rank-{rank}.err"
        quietly(print)(f"{prefix} was killed by {signal.Signals(-code).name}{hint}{resumes}", file=sys.stderr)
        return lost
    quietly(print)(f"{prefix} exited with code {code}; see logs/rank-{rank}.log", file=sys.stderr)
    return 1
