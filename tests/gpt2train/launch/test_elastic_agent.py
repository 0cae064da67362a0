"""Arguments and variables of the launcher of a machine."""

import os
import tempfile
from pathlib import Path

import pytest

from gpt2train.errors import UserError
from gpt2train.launch.elastic_agent import start

ONE = ["--standalone", "--nproc-per-node", "1", "--no-python"]
TWO_TASKS = {
    **{"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"},
    **{"SLURM_STEP_NODELIST": "gpu1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"},
}
BY_HAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--standalone", "--nproc-per-node", "two"], {}, "Unsupported nproc_per_node value: two"),
        (["--standalone", "--nproc-per-node", "0"], {}, "--nproc-per-node is 0"),
        (["--standalone", "--max-restarts", "-1"], {}, "max_restarts must be >= 0"),
        (["--nnodes", "2:1"], {}, "min_nodes=2, max_nodes=1"),
        (["--nnodes", "two"], {}, "'two'"),
        (["--nnodes", "2", "--rdzv-backend", "foo", "--rdzv-endpoint", "localhost:1"], {}, "'foo' is not registered"),
        (["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:99999"], {}, "'localhost:99999'"),
        (["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "99999"], {}, "'127.0.0.1:99999'"),
        (["--nnodes", "2", "--node-rank", "2", "--master-port", "1"], {}, "--node-rank is 2"),
        ([], TWO_TASKS, "srun's variables are those of 2 launchers on this machine"),
        ([], BY_HAND, "RANK and WORLD_SIZE are those of 2 launchers on this machine"),
        ([], {"WORLD_SIZE": "1"}, "or unset it"),
    ],
)
def test_wrong_arguments_and_variables_are_refused(
    arguments: list[str], variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(UserError) as refused:
        start([*arguments, "--no-python", "true"], variables, lambda: False)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("left", [{"WORLD_SIZE": "1"}, BY_HAND, TWO_TASKS | {"SLURM_STEP_TASKS_PER_NODE": "8"}])
def test_variables_of_another_job_do_not_matter_to_a_job_with_an_endpoint(
    left: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    start([*ONE, "true"], left, lambda: False)
    assert int(os.environ["OMP_NUM_THREADS"]) >= 1


def test_no_folder_is_made_for_logs_that_would_stay_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    start([*ONE, "sh", "-c", f"ls {temporary} > {tmp_path / 'listed'}"], {}, lambda: False)
    assert "torchelastic" not in (tmp_path / "listed").read_text()
