"""Trackers: metrics reach each selected one, and a resumed run stays one run there."""

import json
import sys
import time
from pathlib import Path

import pytest

from gpt2train.config import RunConfig
from gpt2train.errors import RunError, UserError
from gpt2train.monitoring.metrics import MetricsWriter, read_metrics
from gpt2train.monitoring.trackers import open_trackers
from gpt2train.settings import build
from tests.processes import wait_for


def config(output: Path, **logging: object) -> RunConfig:
    base = {"vocab": 300, "output": str(output), "data": {"train": "t"}, "logging": {"tensorboard": False}}
    output.mkdir(exist_ok=True)
    return build(RunConfig, base, {"logging": logging})


def write_rows(settings: RunConfig, first: int, last: int) -> None:
    writer = MetricsWriter(settings.output, first - 1, open_trackers(settings, first - 1))
    for step in range(first, last + 1):
        writer.write({"step": step, "loss": 1 / step, "odd_norm": float("nan"), "tokens": step * 8})
    writer.close()


def test_tensorboard_gets_finite_values_only(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = config(tmp_path / "run", tensorboard=True)
    write_rows(settings, 1, 3)
    write_rows(settings, 3, 4)  # step 3 again, after a kill
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert board.Tags()["scalars"] == ["loss"]
    assert [(one.step, one.value) for one in board.Scalars("loss")] == [
        (step, pytest.approx(1 / step)) for step in (1, 2, 3, 4)
    ]
    assert [row["step"] for row in read_metrics(settings.output)] == [1, 2, 3, 4]
    assert read_metrics(settings.output)[0]["odd_norm"] is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_is_one_log_line_and_hides_no_other_error(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", tensorboard=True)
    writer = MetricsWriter(settings.output, 0, open_trackers(settings, 0))
    (curves,) = (tmp_path / "run" / "tensorboard").iterdir()
    (tmp_path / "full").symlink_to("/dev/full")
    (tmp_path / "full").replace(curves)  # at once: the writer thread would create the file again
    with pytest.raises(RunError, match=r"no space left while writing .*tensorboard: free some"):
        for step in range(1, 1000):
            writer.write({"step": step, "loss": 1.0})
            time.sleep(0.01)  # a thread writes
    writer.close()


def test_mlflow_continues_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (extra track)")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    settings = config(tmp_path / "run", mlflow="gpt2")
    write_rows(settings, 1, 2)
    write_rows(settings, 3, 4)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("gpt2").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert [one.value for one in client.get_metric_history(run.info.run_id, "loss")] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert run.data.params["model.layers"] == "12" and run.data.params["vocab"] == "300"


@pytest.mark.exhaustive
def test_weights_and_biases_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed (extra track)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = config(tmp_path / "run", wandb="gpt2")
    write_rows(settings, 1, 2)
    identity = json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"]
    write_rows(settings, 3, 3)

    def stored() -> bytes:
        folder = tmp_path / "run" / "wandb"
        return b"".join(path.read_bytes() for path in folder.glob(f"offline-run-*/run-{identity}.wandb"))

    def whole() -> bool:  # values of the first job and of the one that went on
        return all(value in stored() for value in (b"0.5", b"0.3333333333333333"))

    wait_for(whole, 60, "both jobs' values")  # W&B's own process may write a moment after `finish` returned
    assert b"odd_norm" not in stored()  # not a number, so not drawn


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_tracker_is_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"logging.{name} is set, but {name} is not installed; pip install"):
        open_trackers(config(tmp_path / "run", **{name: "p"}), 0)
