"""Sockets of training jobs: loopback alone on one machine; on several machines no client can run code.

Where the tests run as root the machine gets an address of its network as its name, as on a machine in a real network:
gloo and torchrun listen at the machine's name unless they are kept from it.
"""

import base64
import os
import pickle
import stat
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from gpt2train.launch.process_env import STORE
from gpt2train.launch.rendezvous import FOLDER_PREFIX, check_state, rendezvous
from gpt2train.monitoring.metrics import read_metrics
from tests.gpt2train.convert.malicious_pickle import CodeOnLoad
from tests.gpt2train.jobs import finish, make, wait_for, write, write_tokens
from tests.gpt2train.launch.multi_node_jobs import (
    finish_all,
    free_port,
    rendezvous_arguments,
    start_machines,
    start_process,
)
from tests.listening_sockets import renamed_python, sampled
from tests.processes import environment_of

LAUNCH = ["-m", "gpt2train.launch", "--", "--standalone", "--nproc-per-node"]


@pytest.mark.slow
def test_a_training_on_one_machine_listens_on_loopback_only(tmp_path: Path) -> None:
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=1_000_000)
    job = start_process(renamed_python(*LAUNCH, "2", "-m", "gpt2train.train", "--config", write(config)))
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
