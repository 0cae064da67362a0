"""A private Slurm cluster, munged, slurmctld and two slurmd that simulate two machines of four slots; jobs for it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpt2train.config import RunConfig, to_toml
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build
from gpt2train.store.process import die_with_parent
from tasks.train.launch.job import Job
from tasks.train.launch.settings import LaunchSettings
from tests.gpt2train.jobs import make
from tests.processes import wait_for, wait_until_ended

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # Debian's daemons
START_SECONDS = 60.0

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
{more}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=4 RealMemory=1000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=n1,n2 MaxTime=60 PriorityTier=10
"""


@dataclass
class Slurm:
    folder: Path
    machines: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def start(self, node: str) -> None:
        """Start a machine, for the first time or after `lose`."""
        self.machines[node] = _daemon(["slurmd", "-N", node, "-D"])

    def lose(self, node: str) -> None:
        """Simulate a power loss of a machine: kill its daemon and all that it runs at once."""
        self.machines[node].kill()
        self.machines[node].wait()
        ran = [one for one in _processes_under(self.folder) if f"SLURMD_NODENAME={node}" in _variables(one)]
        step_daemons = [one.parent() for one in ran]  # slurmstepd, whose variables do not name its machine
        _kill([*(one for one in step_daemons if one is not None and one.name() == "slurmstepd"), *ran])

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        return self.ask("squeue", "--noheader", "--format=%A").split()


@contextlib.contextmanager
def slurm_cluster(more: str = "") -> Iterator[Slurm]:
    """Start Slurm, and end it with all that it runs. Skips where it is not installed, or we are not root.

    Args:
        more: lines for its configuration.
    """
    if missing := [name for name in DAEMONS if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"no {missing[0]} here (Debian: apt-get install slurm-wlm)")
    if os.geteuid():
        pytest.skip("slurmd starts jobs as root")
    # A short path: that of a socket has 108 letters at most.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder, _started(Path(folder), more) as slurm:
        yield slurm


@contextlib.contextmanager
def _started(folder: Path, more: str) -> Iterator[Slurm]:
    controller, first, second = _free_ports(3)
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)  # munged trusts no folder that others can write
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    ports = {"controller": controller, "first": first, "second": second}
    conf.write_text(CONF.format(folder=folder, host=host, more=more, **ports))
    munged = ["munged", "--force", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--{what}-file={folder}/munged.{what}" for what in ("pid", "seed", "log")]
    slurm = Slurm(folder)
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        patch.setenv("PATH", PATH)
        stack.callback(_end_all, folder)
        stack.callback(_end, _daemon(munged))
        wait_for((folder / "munge.socket").exists, START_SECONDS, "munged")
        stack.callback(_end, _daemon(["slurmctld", "-i", "-D"]))
        for node in ("n1", "n2"):
            slurm.start(node)
            stack.callback(lambda node: _end(slurm.machines[node]), node)

        def idle() -> bool:
            done = subprocess.run(
                ["sinfo", "-hN", "-p", "main", "-o", "%T"], capture_output=True, text=True, timeout=60
            )
            return done.stdout.split() == ["idle", "idle"]

        wait_for(idle, START_SECONDS, f"two idle machines; see {folder}/slurmctld.log")
        yield slurm


def _daemon(command: list[str]) -> "subprocess.Popen[bytes]":
    parent = os.getpid()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent),
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_all(folder: Path) -> None:
    """Kill what a failed test left behind: the processes of its jobs have our Slurm in their environment."""
    left = _processes_under(folder)
    _kill(left)
    wait_until_ended(left)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _processes_under(folder: Path) -> list[psutil.Process]:
    ours = f"SLURM_CONF={folder}/slurm.conf"
    return [one for one in psutil.process_iter() if one.pid != os.getpid() and ours in _variables(one)]


def _variables(process: psutil.Process) -> list[str]:
    # Read here: slurmstepd writes its title over the first variables, at which psutil stops.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return []


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(contextlib.closing(socket.socket())) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


SECONDS = 180.0
STEPS = 600
NO_END = 1_000_000
# The nodes' names lead nowhere: they are this machine.
SETUP = ("export MASTER_ADDR=127.0.0.1",)


def job_of(tokens: Path, run: Path, launch: dict[str, Any] | None = None, **changes: Any) -> Job:
    """A job of two machines with one rank each, its settings in the run folder as the training step writes them."""
    often = {"checkpoints": {"interval": 50, "keep": 100}, "logging": {"interval": 50}, "validation": {"interval": 300}}
    config: RunConfig = make(tokens, run, **{"steps": STEPS} | often | changes)
    run.mkdir()
    (run / "config.toml").write_text(to_toml(config))
    slurm = {"setup": SETUP, "poll": 0.3, "partition": "main"}
    how = {"launcher": "slurm", "processes": 1, "nodes": 2, "slurm": slurm} | (launch or {})
    return Job(str(run / "config.toml"), build(LaunchSettings, how))


def steps_of(job: Job) -> int:
    return len(read_metrics(job.run))


def number_of(job: Job) -> str:
    return str(json.loads((job.run / "slurm.json").read_text())["job"])
