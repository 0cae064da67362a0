"""Rank, world size and rendezvous address of a process, read from environment variables.

Two launchers set them: torchrun (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` …) and Slurm's `srun`
(`SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` …). Without either, the process is a job of its own. torchrun's variables take
precedence, so that torchrun works under srun. Inconsistent variables are refused, since otherwise the job would wait
minutes for processes that never start.
"""

import contextlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from gpt2train.errors import UserError

# Slurm sets no port. This range is above the registered services that most clusters run and below Linux's ephemeral
# ports (from 32768 on), which a client connection could use by chance.
FIRST_PORT, PORTS = 12_000, 20_000
LOOPBACK = "127.0.0.1"
# Folder with a store per attempt, set by gpt2train.launch for the ranks of a single-machine job.
STORE = "GPT2TRAIN_STORE"


@dataclass(frozen=True)
class ProcessEnv:
    """Position of a process in its job, and the rendezvous of the job."""

    rank: int = 0  # rank among all processes
    world: int = 1  # world size
    local_rank: int = 0  # local rank, among the processes of this machine
    local_world: int = 1  # number of processes on this machine
    host: str = ""  # address of the rendezvous store; empty for a single process
    port: int = 0  # port of the rendezvous store
    job: str = ""  # name of the job: the same for all of its processes, and different from other jobs on that port
    hosts_store: bool = False  # True if this process opens the port; under torchrun its agent does
    own_gpu: bool = False  # True if the launcher makes only its own GPUs visible to each process
    store: str = ""  # file of the rendezvous store; empty if the store is at `host` and `port`
    one_machine: bool = False  # True if the job has several processes and all are known to run on this machine


def is_loopback(host: str) -> bool:
    """Return True for a loopback address and for the name localhost. Other names are not resolved."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def likely_rank(env: Mapping[str, str]) -> int:
    """Guess the rank from variables that are not validated yet, to report errors in them; 0 if none is set."""
    text = env.get("RANK") or env.get("SLURM_PROCID") or "0"
    return int(text) if text.isdecimal() else 0


def read_process_env(env: Mapping[str, str]) -> ProcessEnv:
    """Read the launcher's variables; UserError names those that are missing or contradict each other."""
    under_slurm = "SLURM_STEP_ID" in env and "SLURM_PROCID" in env  # a batch script itself has no step
    if env.get("RANK") or env.get("WORLD_SIZE"):
        return _of_torchrun(env, under_slurm)
    return _of_slurm(env) if under_slurm else ProcessEnv()


def _of_torchrun(env: Mapping[str, str], under_slurm: bool) -> ProcessEnv:
    folder = env.get(STORE)
    names = ("RANK", "WORLD_SIZE", *(() if folder else ("MASTER_ADDR", "MASTER_PORT")))
    if missing := [name for name in names if not env.get(name)]:
        present = next(name for name in names if env.get(name))
        raise UserError(f"{present} is set, but {', '.join(missing)} not; start with torchrun, set all, or unset it")
    rank, world = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    by_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if under_slurm and "TORCHELASTIC_RUN_ID" not in env and rank != _number(env, "SLURM_PROCID"):
        raise UserError(
            f"RANK is {rank}, but SLURM_PROCID is {env['SLURM_PROCID']}; unset RANK and WORLD_SIZE, which processes "
            "started by srun do not need"
        )
    local_rank, local_world = _number(env, "LOCAL_RANK", rank), _number(env, "LOCAL_WORLD_SIZE", world)
    _check(rank, world, "RANK", "WORLD_SIZE")
    _check(local_rank, local_world, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if local_world > world:
        raise UserError(f"LOCAL_WORLD_SIZE is {local_world}, but WORLD_SIZE is {world}; start with torchrun")
    job = env.get("TORCHELASTIC_RUN_ID", "")
    if folder:  # one file per attempt, since a rank that is killed while writing leaves a damaged one
        store = f"{folder}/{_number(env, 'TORCHELASTIC_RESTART_COUNT', 0)}"
        return ProcessEnv(rank, world, local_rank, local_world, job=job, store=store, one_machine=True)
    host = env["MASTER_ADDR"]
    one_machine = is_loopback(host) or (local_world == world and "LOCAL_WORLD_SIZE" in env)
    if one_machine and not by_agent:
        host = LOOPBACK
    return ProcessEnv(
        rank, world, local_rank, local_world, host, _port(env), job, rank == 0 and not by_agent, one_machine=one_machine
    )


def _of_slurm(env: Mapping[str, str]) -> ProcessEnv:
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    rank, world, local_rank = _number(env, "SLURM_PROCID"), _number(env, tasks, 1), _number(env, "SLURM_LOCALID", 0)
    _check(rank, world, "SLURM_PROCID", tasks)
    if world == 1:
        return ProcessEnv()
    lists = [name for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST") if env.get(name)]
    if not lists:
        raise UserError(f"{tasks} is {world}, but SLURM_JOB_NODELIST is not set; start with srun")
    nodes = expand_nodes(env[lists[0]])
    counts = _tasks_per_node(env, world, nodes)
    node = _number(env, "SLURM_NODEID", 0)
    _check(node, len(nodes), "SLURM_NODEID", lists[0])
    _check(local_rank, counts[node], "SLURM_LOCALID", "the tasks of this node")
    job = f"{env.get('SLURM_JOB_ID', '0')}.{env.get('SLURM_STEP_ID', '0')}"
    # Two jobs on a machine must not use the same port; MASTER_PORT resolves a collision.
    port = _port(env) if env.get("MASTER_PORT") else FIRST_PORT + sum(int(n) for n in re.findall(r"\d+", job)) % PORTS
    visible = env.get("CUDA_VISIBLE_DEVICES", "")
    own = counts[node] > 1 and visible != "" and "," not in visible
    one_machine = counts[node] == world
    host = LOOPBACK if one_machine else env.get("MASTER_ADDR") or nodes[0]
    return ProcessEnv(rank, world, local_rank, counts[node], host, port, job, rank == 0, own, one_machine=one_machine)


def _tasks_per_node(env: Mapping[str, str], world: int, nodes: list[str]) -> list[int]:
    """Parse the number of tasks per node, such as `4(x2),3`; equal on all nodes if the variable is not set."""
    name = next((n for n in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if env.get(n)), None)
    if name is None:
        if world % len(nodes):
            raise UserError(f"{world} Slurm tasks on {len(nodes)} nodes, and SLURM_TASKS_PER_NODE is not set; use srun")
        return [world // len(nodes)] * len(nodes)
    counts: list[int] = []
    for part in env[name].split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not found:
            raise UserError(f"{name} is {env[name]!r}, which is not of the form 4(x2),3; start with srun")
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != len(nodes) or sum(counts) != world:
        raise UserError(
            f"Slurm's variables contradict each other: {name} is {env[name]!r}, for {world} tasks on {len(nodes)} "
            "nodes; start with srun, and do not set them by hand"
        )
    return counts


def expand_nodes(nodelist: str) -> list[str]:
    """Expand a Slurm node list: `a[01-03,7],b` gives a01, a02, a03, a7, b. Several brackets give all combinations.

    Raises:
        UserError: it is not a valid node list.
    """
    wrong = UserError(f"{nodelist!r} is not a list of Slurm nodes like a[01-03,7],b")
    nodes: list[str] = []
    for entry in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[^,]", nodelist):
        parts = []
        for part in re.findall(r"\[[^\]]*\]|[^\[\]]+|.", entry.strip()):
            inside = part[1:-1].split(",") if part.startswith("[") else None
            parts.append([part] if inside is None else [name for one in inside for name in _range(one, wrong)])
        nodes += ["".join(choice) for choice in product(*parts)]
    if not nodes or any(re.search(r"[\[\]\s]", node) for node in nodes):
        raise wrong
    return nodes


def _range(text: str, wrong: UserError) -> list[str]:
    """Expand `08-10` to 08, 09, 10."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise wrong
    return [str(n).zfill(len(found[1])) for n in range(int(found[1]), int(found[2] or found[1]) + 1)]


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise UserError(f"{name} is {text!r}, which is not a number" if text else f"{name} is not set")
    return int(text)


def _port(env: Mapping[str, str]) -> int:
    port = _number(env, "MASTER_PORT")
    if not 0 < port < 65_536:
        raise UserError(f"MASTER_PORT is {port}; a port is between 1 and 65535")
    return port


def _check(number: int, count: int, name: str, of: str) -> None:
    if number >= count:
        raise UserError(f"{name} is {number}, but {of} gives only {count}; the variables belong to different jobs")
