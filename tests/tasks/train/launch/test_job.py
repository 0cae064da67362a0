"""Start of a training job: torchrun's arguments from the settings, and errors by exit code."""

from pathlib import Path

import pytest

from gpt2train.errors import RunError, TransientError, UserError
from gpt2train.launch.exit_codes import RESUMES
from gpt2train.settings import build
from tasks.train.launch.job import LOST, Job, job_error, torchrun_arguments
from tasks.train.launch.settings import LaunchSettings

CONFIG = "/data/runs/demo-0123abcd/config.toml"


def test_one_machine_needs_no_rendezvous_address() -> None:
    arguments = torchrun_arguments(Job(CONFIG, LaunchSettings(processes=4, restarts=3, timeout=60)))
    assert arguments[:5] == ["--standalone", "--nproc-per-node", "4", "--max-restarts", "3"]
    assert arguments[5:] == ["-m", "gpt2train.train", "--config", CONFIG, "--timeout", "60.0", "--quiet"]


def test_several_machines_use_the_run_as_rendezvous_id() -> None:
    launch = LaunchSettings(processes=8, nodes=4, endpoint="gpu01:29500")
    arguments = torchrun_arguments(Job(CONFIG, launch))
    assert launch.world == 32
    assert arguments[:6] == ["--nnodes", "4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "gpu01:29500"]
    assert arguments[6:8] == ["--rdzv-id", "demo-0123abcd"] and "--standalone" not in arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"nodes": 2}, "2 nodes need launch.endpoint"), ({"nodes": 2, "endpoint": "gpu01"}, "endpoint")],
)
def test_several_machines_without_a_common_endpoint_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(LaunchSettings, settings)


@pytest.mark.parametrize(
    ("code", "last", "kind", "message"),
    [
        (2, "error: no such file: tokens.bin", UserError, r"^no such file: tokens.bin$"),
        (1, "error: rank 0: OutOfMemoryError: CUDA out of memory", RunError, r"^rank 0: OutOfMemoryError"),
        (1, "error: 10 steps in a row were skipped", RunError, r"saved yet, so the same command begins at step 0$"),
        (1, "Traceback", RunError, r"^the training job ended with exit code 1 "),
        (128 + 15, "stopped before training started", RunError, "exit code 143"),
        (
            LOST,
            f"error: rank 5 on gpu02 was killed by SIGKILL{RESUMES}",
            TransientError,
            r"^rank 5 on gpu02 was killed by SIGKILL \(logs: .*; no checkpoint was saved yet, so the same",
        ),
        (LOST, "error: rank 1 gave no sign of life", TransientError, "no sign of life"),
        (-9, "step 7", TransientError, r"^the training job ended with signal SIGKILL "),
    ],
)
def test_the_exit_code_decides_whether_a_job_is_retried(
    code: int, last: str, kind: type[Exception], message: str
) -> None:
    error = job_error(code, [last], Job(CONFIG, LaunchSettings()))
    assert type(error) is kind
    with pytest.raises(kind, match=message):
        raise error


def test_the_message_says_where_the_same_command_begins(tmp_path: Path) -> None:
    job = Job(str(tmp_path / "config.toml"), LaunchSettings())
    draft = tmp_path / "checkpoints/step-00000004.tmp"
    draft.mkdir(parents=True)
    (draft / "manifest.json").write_text("{}")  # of a job that was killed while it saved
    assert "begins at step 0" in str(job_error(1, [], job))
    draft.rename(tmp_path / "checkpoints/step-00000004")
    assert str(job_error(LOST, [], job)).endswith("; the same command goes on from the last checkpoint")
