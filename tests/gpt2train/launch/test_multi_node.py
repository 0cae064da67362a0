"""Launchers of two machines, which meet, end together, and open no socket to others."""

import base64
import os
import pickle
import re
import stat
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from gpt2train.checkpoint.manifest import verify
from gpt2train.config import CONFIG_FILE, RunConfig, to_toml
from gpt2train.launch.elastic_agent import STOPPED, report_failure
from gpt2train.launch.exit_codes import LOST_CONTACT, RESUMES
from gpt2train.launch.hang_report import RankState, summary
from gpt2train.launch.process_env import STORE
from gpt2train.launch.rendezvous import FOLDER_PREFIX, check_state, rendezvous
from gpt2train.launch.torchrun import UNFINISHED
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tests.gpt2train.convert.malicious_pickle import CodeOnLoad
from tests.gpt2train.jobs import curve, finish, make, start, wait_for, write, write_tokens
from tests.listening_sockets import renamed_python, sampled
from tests.network_namespaces import networks as networks
from tests.object_stores import free_port
from tests.processes import environment_of

LAUNCH = [sys.executable, "-m", "gpt2train.launch"]
RANKS = Path(__file__).parent.parent / "parity" / "train_runs.py"


def start_machines(arguments: list[list[str]], *job: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gpt2train.launch", "--parent", str(os.getpid()), "--"]
    return [start_process([*command, *own, *job]) for own in arguments]


def start_process(command: list[str], **variables: str) -> subprocess.Popen[str]:
    """Start a process with variables of its own and none of another launcher's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env |= {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def rendezvous_arguments(port: int, processes: int, restarts: int = 0) -> list[str]:
    """torchrun's arguments for one of two machines that meet at a port of this one."""
    return [
        *("--nnodes", "2", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
        *("--local-addr", "127.0.0.1"),
    ]


def finish_all(jobs: list[subprocess.Popen[str]], seconds: float = 240.0) -> list[tuple[int, str, str]]:
    try:
        return [finish(job, seconds) for job in jobs]
    finally:
        for job in jobs:
            job.kill()


def in_its_folder(config: RunConfig) -> RunConfig:
    """Write a run's settings into its folder, where `--complete` reads them."""
    Path(config.output).mkdir()
    Path(config.output, CONFIG_FILE).write_text(to_toml(config))
    return config


@pytest.mark.slow
def test_machines_with_networks_of_their_own_train_together(tmp_path: Path, networks: list[str]) -> None:
    config = in_its_folder(make(write_tokens(tmp_path), tmp_path / "run", steps=6))
    job = ["--nproc-per-node", "1", "-m", "gpt2train.train", "--config", f"{config.output}/config.toml"]
    meet = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.99.0.1:29500", "--rdzv-id", "job"]
    jobs = []
    for number, name in enumerate(networks, 1):
        launcher = ["ip", "netns", "exec", name, *LAUNCH, "--complete", config.output, "--", *meet]
        command = [*launcher, "--local-addr", f"10.99.0.{number}", *job]
        jobs.append(start_process(command, GLOO_SOCKET_IFNAME="cable"))
    done = finish_all(jobs)
    assert [code for code, _, _ in done] == [0, 0], done
    assert curve(config.output, "step") == [1, 2, 3, 4, 5, 6]


@pytest.mark.exhaustive
def test_static_node_ranks_work_without_a_rendezvous(tmp_path: Path) -> None:
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=6)
    where = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--nproc-per-node", "1"]
    done = finish_all(start_machines([[*where, "--node-rank", str(n)] for n in (0, 1)], str(RANKS), write(config)))
    assert [code for code, _, _ in done] == [0, 0], done
    assert curve(config.output, "step") == [1, 2, 3, 4, 5, 6]


@pytest.mark.exhaustive
def test_a_signal_to_one_machine_stops_and_saves_on_all(tmp_path: Path) -> None:
    endless = {"steps": 1_000_000, "checkpoints": {"interval": 1_000_000}}
    config = in_its_folder(make(write_tokens(tmp_path), tmp_path / "run", **endless))
    job = [*LAUNCH, "--complete", config.output, "--", *rendezvous_arguments(free_port(), 1, restarts=2)]
    jobs = [start_process([*job, "-m", "gpt2train.train", "--config", f"{config.output}/config.toml"]) for _ in "ab"]
    wait_for(lambda: len(read_metrics(config.output)) > 3, jobs[0], seconds=240)
    jobs[1].terminate()
    done = finish_all(jobs)
    assert [(code, err) for code, _, err in done] == [(UNFINISHED, "")] * 2, done
    assert all("of 1000000; it resumes from there when it is started again" in out for _, out, _ in done), done
    assert verify(newest_checkpoint(config.output)).position.step == read_metrics(config.output)[-1]["step"] > 3


WITH_DROPOUT: dict[str, Any] = {"model": {"dropout": 0.1}, "steps": 40, "checkpoints": {"interval": 10, "keep": 9}}


def ranks_of(launcher: int) -> list[psutil.Process]:
    return psutil.Process(launcher).children()


def passed(config: RunConfig, step: int) -> bool:
    rows = curve(config.output, "step")
    return bool(rows) and rows[-1] >= step


@pytest.mark.exhaustive
@pytest.mark.parametrize("processes", [1, 2])
def test_two_machines_resume_after_a_rank_is_lost(tokens: Path, tmp_path: Path, processes: int) -> None:
    broken, straight = (make(tokens, tmp_path / name, **WITH_DROPOUT) for name in ("broken", "straight"))
    port = free_port()
    # One job trains both: the first run is disturbed, the second is the undisturbed reference.
    machines = [rendezvous_arguments(port, processes, restarts=2)] * 2
    jobs = start_machines(machines, str(RANKS), write(broken), write(straight))
    wait_for(lambda: passed(broken, 14), jobs[0], pause=0.002, seconds=240)
    lost = ranks_of(jobs[1].pid)[-1]
    lost.kill()
    done = finish_all(jobs)
    assert [code for code, _, _ in done] == [0, 0], done
    assert sum(err.count("was killed by SIGKILL") for _, _, err in done) == 1, done
    assert all("restarting all ranks: restart 1 of 2" in out for _, out, _ in done)
    for key in ("step", "loss", "grad_norm"):
        assert curve(broken.output, key) == curve(straight.output, key), key
    assert verify(newest_checkpoint(broken.output)).position.step == 40


@pytest.mark.exhaustive  # a minute of waiting
def test_a_hanging_rank_is_named_and_restarted(tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run", steps=1_000_000, checkpoints={"interval": 5, "keep": 2})
    command = ["--max-restarts", "1", "-m", "gpt2train.train", "--config", write(config)]
    job = start(*command, "--timeout", "30")  # a busy machine is slow, and not hung
    # A checkpoint is written beside the training: on a busy machine that of step 5 can be on its way at step 7.
    wait_for(lambda: passed(config, 7) and list_checkpoints(config.output), job, seconds=240)
    hanging = ranks_of(job.pid)[1]
    hanging.suspend()
    log = tmp_path / "run" / "logs" / "rank-0.log"
    wait_for(lambda: "attempt 1: resuming from step" in log.read_text(), job, seconds=240)
    assert not psutil.wait_procs([hanging], timeout=60)[1]
    job.terminate()
    code, out, err = finish(job)
    assert re.match(r"error: rank 1 gave no sign of life while rank 0 waited; .*\n$", err), err
    assert "restart 1 of 1" in out and code == 0, out


@pytest.mark.parametrize("codes", [{0: LOST_CONTACT, 1: -9}, {0: -15, 2: LOST_CONTACT}])
def test_a_killed_jobs_line_says_how_to_resume(codes: dict[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(codes, lost=3, resumes=RESUMES) == 3
    line = capsys.readouterr().err
    assert line.startswith("error: rank ") and line.endswith("; the same command resumes from the last checkpoint\n")
    report_failure(codes)  # of a job that saves nothing, such as a server
    assert "resumes" not in capsys.readouterr().err


@pytest.mark.parametrize(("codes", "code"), [({0: -15, 1: -15}, STOPPED), ({0: -15, 1: 1}, 1)])
def test_an_early_stop_is_no_failure(codes: dict[int, int], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(codes, stopped=True) == code
    assert ("stopped before training started" in capsys.readouterr().err) == (code == STOPPED)
    assert report_failure({0: -15}, lost=3) == 3 and "SIGTERM" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_user_error_is_not_retried(tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run", vocab=250)
    job = start("--max-restarts", "3", "-m", "gpt2train.train", "--config", write(config))
    code, out, err = finish(job)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert err.startswith("error: ") and "restarting all ranks" not in out
    for rank in (0, 1):
        text = (tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text()
        assert " ERROR attempt 0: error: " in text and "attempt 1" not in text


PROGRAM = Path(__file__).parent / "hanging_rank.py"
TIMEOUT = 25.0  # of collectives, seconds; starting four ranks takes 10 s on a busy machine


def test_ranks_in_the_same_collective_are_one_part() -> None:
    states = [RankState(f"waits for {n} s in all_reduce at a.py:1 in f", "all_reduce", "") for n in (30, 30, 29)]
    states.append(RankState("is at b.py:2 in g", "", ""))
    assert summary(states) == "ranks 0, 1, 2 wait for 30 s in all_reduce at a.py:1 in f; rank 3 is at b.py:2 in g"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "last", "stack"),
    [
        ("sleep", r"rank 3 is at hanging_rank\.py:\d+ in hang", "time.sleep(600)"),
        ("stop", r"rank 3 does not answer: its process \d+ is stopped", "(none)"),
    ],
)
def test_a_hang_names_rank_and_collective(kind: str, last: str, stack: str, tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run", steps=1000, parallel={"zero": 1})
    job = start(str(PROGRAM), write(config), kind, str(TIMEOUT), processes=4)
    begun = time.monotonic()
    code, out, err = finish(job)
    assert code == 1 and time.monotonic() - begun < 200, out
    assert len(err.splitlines()) == 1, err
    assert err.startswith("error: rank 3 gave no sign of life while rank "), err
    collective = r"wait for 2\d s in all_reduce of float64 \[3\] \(group default of ranks 0, 1, 2, 3; number \d+\)"
    assert re.search(rf"ranks 0, 1, 2 {collective} at engine\.py:\d+ in measure", err), err
    assert re.search(last, err), err
    reports = list((tmp_path / "run" / "logs").glob("hang-*.txt"))
    assert len(reports) == 1 and str(reports[0]) in err
    text = reports[0].read_text()
    assert all(f"stack of rank {rank}:" in text for rank in range(4)), text
    assert stack in text.partition("stack of rank 3:")[2], text


ONE_RANK = ["-m", "gpt2train.launch", "--", "--standalone", "--nproc-per-node"]


@pytest.mark.slow
def test_a_training_on_one_machine_listens_on_loopback_only(tmp_path: Path) -> None:
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=1_000_000)
    job = start_process(renamed_python(*ONE_RANK, "2", "-m", "gpt2train.train", "--config", write(config)))
    with sampled(job.pid) as sockets:
        wait_for(lambda: len(read_metrics(config.output)) > 3, job, seconds=240)
        folders = {environment_of(one).get(STORE) for one in psutil.Process(job.pid).children()}
        seen = sockets.samples
        wait_for(lambda: sockets.samples > seen + 1, job)
        modes = [stat.S_IMODE(Path(folder).stat().st_mode) for folder in folders if folder]
        job.terminate()
        done = finish(job)
    assert done[0] == 0, done
    assert sockets.found, "gloo's own listener, on loopback, must be among those found"
    assert sockets.outside == {}
    assert not any("gpt2train.launch" in command for command in sockets.found.values()), sockets.found
    assert modes == [0o700]
    assert not any(Path(folder).exists() for folder in folders if folder)


def test_the_folder_of_a_killed_launcher_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alone = RendezvousParameters("static", "127.0.0.1:29500", "job", 1, 1)
    monkeypatch.setenv(STORE, "")
    dead, young = (tmp_path / f"{FOLDER_PREFIX}{name}" for name in ("dead", "young"))
    for folder in (dead, young):
        folder.mkdir()
        (folder / "0").touch()
    (tmp_path / f"{FOLDER_PREFIX}link").symlink_to(young)
    with rendezvous(alone):
        kept = Path(os.environ[STORE])
        for folder in (kept, dead):
            os.utime(folder, (1, 1))
        with rendezvous(alone):
            assert kept.exists() and young.exists() and not dead.exists()
    assert not kept.exists()


def test_a_foreign_client_of_the_rendezvous_port_runs_no_code(tmp_path: Path) -> None:
    port, proof = free_port(), tmp_path / "proof"
    [job] = start_machines([rendezvous_arguments(port, 1)], "-m", "gpt2train.train", "--config", "none.toml")
    with sampled(job.pid) as sockets:
        wait_for(lambda: ("127.0.0.1", port) in sockets.found, job, seconds=240)
    stranger = dist.TCPStore("127.0.0.1", port, None, timeout=timedelta(seconds=60), wait_for_workers=False)
    stranger.set("torch.rendezvous.job", base64.b64encode(pickle.dumps(CodeOnLoad(proof))).decode())
    [(code, _, err)] = finish_all([job])
    assert not proof.exists()
    assert code == 1 and "is its port open to other machines than the job's?" in err, err
    assert "Traceback" not in err
    assert sockets.outside == {}, "the port is at the address that the endpoint names, and at no other"


def state_of(**changes: Any) -> bytes:
    """A pickled rendezvous state as torch's launchers write it, with changes."""
    state, node = _RendezvousState(), _NodeDesc("gpu01", 7, 0)
    state.participants[node] = 0
    state.wait_list.add(node)
    state.deadline = state.last_heartbeats[node] = datetime.now().astimezone()
    vars(state).update(changes)
    return pickle.dumps(state)


def test_a_rendezvous_state_of_torch_is_accepted_unchanged() -> None:
    for state in (pickle.dumps(_RendezvousState()), state_of()):
        assert check_state(state) is state


@pytest.mark.parametrize(
    "make_state",
    [
        lambda proof: pickle.dumps(CodeOnLoad(proof)),
        lambda proof: state_of(deadline=CodeOnLoad(proof)),
        lambda proof: state_of(participants={_NodeDesc("gpu01", 7, 0): CodeOnLoad(proof)}),
        lambda proof: state_of(round="1"),
        lambda proof: state_of(participants=[]),
        lambda proof: pickle.dumps({"round": 1}),
        lambda proof: pickle.dumps(eval),
        lambda proof: b"",
        lambda proof: b"\x80\x05\x8a\xff" + b"9" * 300,
        lambda proof: b"cos\nsystem\n(S'touch " + str(proof).encode() + b"'\ntR.",
        lambda proof: b"cgpt2train.errors\nUserError\n(S'x'\ntR.",
        lambda proof: b"(" * 5_000_000,
    ],
)
def test_any_other_state_is_refused_before_it_runs_code(make_state: Any, tmp_path: Path) -> None:
    with pytest.raises(RendezvousStateError, match="was not written by torch's launchers"):
        check_state(make_state(tmp_path / "proof"))
    assert not (tmp_path / "proof").exists()
