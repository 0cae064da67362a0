"""Training on two machines, simulated by network namespaces or by ports."""

import sys
from pathlib import Path

import pytest

from gpt2train.checkpoint.manifest import verify
from gpt2train.config import CONFIG_FILE, RunConfig, to_toml
from gpt2train.launch.torchrun import UNFINISHED
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.jobs import curve, make, wait_for, write, write_tokens
from tests.gpt2train.launch.multi_node_jobs import (
    RANKS,
    finish_all,
    free_port,
    rendezvous_arguments,
    start_machines,
    start_process,
)
from tests.network_namespaces import networks as networks

LAUNCH = [sys.executable, "-m", "gpt2train.launch"]


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
