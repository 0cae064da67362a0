"""Training under Slurm's variables: processes without torchrun that find each other."""

import sys
from pathlib import Path

import numpy as np
import pytest

from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.jobs import curve, make, write
from tests.gpt2train.launch.multi_node_jobs import RANKS, finish_all, free_port, start_process


def srun(rank: int, world: int, nodes: str, per_node: str, local: int, node: int, port: int) -> dict[str, str]:
    """The variables of one of srun's tasks; its machines all lie here."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(world),
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "MASTER_PORT": str(port),
    }


@pytest.mark.exhaustive
def test_processes_of_srun_train_like_one(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", batch={"micro_batch": 2, "global_batch": 12}, steps=8)
    command = [sys.executable, "-m", "gpt2train.train", "--config", write(config)]
    port = free_port()
    # Two machines, 127.0.0.1 and 127.0.0.2, with two tasks and one.
    places = [(0, 0, 0), (1, 1, 0), (2, 0, 1)]
    tasks = [srun(rank, 3, "127.0.0.[1-2]", "2,1", local, node, port) for rank, local, node in places]
    done = finish_all([start_process(command, **task) for task in tasks])
    assert [(code, err) for code, _, err in done] == [(0, "")] * 3, done
    assert "3 processes on cpu" in done[0][1] and done[1][1] == done[2][1] == ""
    reference = make(tokens, tmp_path / "alone", batch={"micro_batch": 4, "global_batch": 12}, steps=8)
    train(reference, alone)
    np.testing.assert_allclose(curve(config.output), curve(reference.output), rtol=1e-5)


@pytest.mark.exhaustive
def test_a_missing_rank_is_named(tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run")
    command = [sys.executable, "-m", "gpt2train.train", "--config", write(config), "--timeout", "12"]
    port = free_port()
    tasks = [srun(rank, 3, "127.0.0.1", "3", rank, 0, port) for rank in (0, 1)]
    done = finish_all([start_process(command, **task) for task in tasks])
    code, _, err = done[0]
    assert code == 1 and err.startswith("error: rank 2 of 3 did not join within 12 s"), done
    assert len(err.splitlines()) == 1 and done[1][0] != 0, done


@pytest.mark.exhaustive
def test_contradicting_variables_are_refused_before_anything_starts(tokens: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpt2train.train", "--config", write(make(tokens, tmp_path / "run"))]
    tasks = [srun(rank, 2, "127.0.0.1", "3", rank, 0, 1) for rank in (0, 1)]
    done = finish_all([start_process(command, **task) for task in tasks])
    assert [code for code, _, _ in done] == [2, 2], done
    assert done[0][2].startswith("error: Slurm's variables contradict each other") and done[1][2] == "", done
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_one_launcher_per_machine_works_under_srun(tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run", steps=6)
    launch = [sys.executable, "-m", "gpt2train.launch", "--", "--nproc-per-node", "1", "--local-addr", "127.0.0.1"]
    command = [*launch, str(RANKS), write(config)]
    port = free_port()
    tasks = [srun(node, 2, "127.0.0.[1-2]", "1(x2)", 0, node, port) for node in (0, 1)]
    done = finish_all([start_process(command, **task) for task in tasks])
    assert [code for code, _, _ in done] == [0, 0], done
    assert curve(config.output, "step") == [1, 2, 3, 4, 5, 6]
