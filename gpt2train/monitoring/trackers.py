"""Experiment trackers that get the metrics of a run: TensorBoard, Weights & Biases, MLflow.

The latter two are imported only if a setting requests them. They are optional: `pip install gpt2train[track]`. They get
the settings and one row per step, from rank 0 only, and never a text or a token.
"""

import contextlib
import importlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpt2train.config import RunConfig
from gpt2train.errors import UserError
from gpt2train.io.files import write_atomic, write_error
from gpt2train.settings import flatten

log = logging.getLogger("gpt2train")

TENSORBOARD = "tensorboard"
IDENTITY = "tracking.json"


class TensorBoard:
    """TensorBoard files in the run folder, shown by `tensorboard --logdir`."""

    def __init__(self, run: Path, step: int) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter  # takes 1 s, which only rank 0 spends

        self._folder = run / TENSORBOARD
        with self._one_line_errors():
            self._board = SummaryWriter(str(self._folder), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with self._one_line_errors():
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        try:
            self._board.close()
        except OSError as error:  # must not hide the reason why the run ends; metrics.jsonl has all rows
            log.warning("the last curves are not in %s: %s", self._folder, error.strerror or error)

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """Convert an error of the writer thread, raised by the next call, to a one-line error."""
        try:
            yield
        except OSError as error:
            raise write_error(self._folder, error, "set logging.tensorboard = false") from error


class WeightsAndBiases:
    """Run in Weights & Biases; `WANDB_MODE=offline` keeps it on disk."""

    def __init__(self, config: RunConfig, project: str) -> None:
        wandb = _load("wandb", "logging.wandb")
        known = _tracked_runs(config.output).get("wandb")
        try:
            self._run = wandb.init(
                project=project,
                dir=config.output,
                name=Path(config.output).name,
                id=known,
                resume="allow" if known else None,
                config=config.model_dump(mode="json"),
                settings=wandb.Settings(console="off"),
            )
        except wandb.errors.Error as error:
            raise UserError(f"logging.wandb: Weights & Biases refused: {error}; log in, or unset it") from error
        _store_id(config.output, "wandb", self._run.id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Run in MLflow; `MLFLOW_TRACKING_URI` names a folder or a server."""

    def __init__(self, config: RunConfig, experiment: str) -> None:
        mlflow = _load("mlflow", "logging.mlflow")
        self._client = mlflow.MlflowClient()
        known = _tracked_runs(config.output).get("mlflow")
        try:
            existing = self._client.get_experiment_by_name(experiment)
            number = existing.experiment_id if existing else self._client.create_experiment(experiment)
            if known is None:
                self._id = self._client.create_run(number, run_name=Path(config.output).name).info.run_id
                for name, value in flatten(config.model_dump(mode="json")).items():
                    self._client.log_param(self._id, name, value)
            else:
                self._id = self._client.get_run(known).info.run_id
                self._client.update_run(self._id, status="RUNNING")
        except mlflow.exceptions.MlflowException as error:
            raise UserError(f"logging.mlflow: MLflow refused: {error}; set MLFLOW_TRACKING_URI, or unset it") from error
        _store_id(config.output, "mlflow", self._id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


Tracker = TensorBoard | WeightsAndBiases | MLflow


def open_trackers(config: RunConfig, step: int) -> list[Tracker]:
    """Open the trackers that the settings request; W&B and MLflow resume the same tracked run from a step.

    Raises:
        UserError: a requested tracker is not installed, or refuses.
    """
    settings = config.logging
    found: list[Tracker] = [TensorBoard(Path(config.output), step)] if settings.tensorboard else []
    found += [] if settings.wandb is None else [WeightsAndBiases(config, settings.wandb)]
    found += [] if settings.mlflow is None else [MLflow(config, settings.mlflow)]
    return found


def _load(package: str, setting: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"{setting} is set, but {package} is not installed; pip install 'gpt2train[track]', or unset it"
        ) from error


def _tracked_runs(run: str) -> dict[str, str]:
    """Ids of this run in the trackers, so that a resumed run stays one curve."""
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
        found = json.loads((Path(run) / IDENTITY).read_bytes())
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
    return {}


def _store_id(run: str, tracker: str, name: str) -> None:
    text = json.dumps(_tracked_runs(run) | {tracker: name}, indent=1) + "\n"
    write_atomic(Path(run) / IDENTITY, text.encode())
