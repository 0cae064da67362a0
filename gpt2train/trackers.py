"""Where the rows of a run's metrics go beside metrics.jsonl: TensorBoard, Weights & Biases, MLflow.

The latter two are loaded only when a setting asks for them. Neither is a dependency: `pip install gpt2train[track]`.
They get the settings and one row a step, from the first rank alone, and never a text or a token.
"""

import contextlib
import importlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpt2train.config import LoggingSettings, RunConfig
from gpt2train.errors import UserError
from gpt2train.files import write_error

log = logging.getLogger("gpt2train")

TENSORBOARD = "tensorboard"
IDENTITY = "tracking.json"


class Tracker(Protocol):
    """Takes rows of metrics."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take one row; every value is finite."""

    def close(self) -> None:
        """Flush and close."""


def open_trackers(config: RunConfig, step: int) -> list[Tracker]:
    """The trackers that a run asks for.

    Args:
        step: where the run goes on; the same runs of W&B and MLflow are gone on with.

    Raises:
        UserError: one was asked for and is not installed, or refuses.
    """
    settings: LoggingSettings = config.logging
    found: list[Tracker] = []
    if settings.tensorboard:
        found.append(TensorBoard(Path(config.output), step))
    if settings.wandb is not None:
        found.append(WeightsAndBiases(config, settings.wandb))
    if settings.mlflow is not None:
        found.append(MLflow(config, settings.mlflow))
    return found


class TensorBoard:
    """Files in the run folder that `tensorboard --logdir` draws."""

    def __init__(self, run: Path, step: int) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter  # here: 1 s that only the first rank need spend

        self._folder = run / TENSORBOARD
        with self._clear():
            self._board = SummaryWriter(str(self._folder), purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with self._clear():
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        try:
            self._board.close()
        except OSError as error:  # an ending run has its reason, or has trained; the rows are in metrics.jsonl
            log.warning("the last curves are not in %s: %s", self._folder, error.strerror or error)

    @contextlib.contextmanager
    def _clear(self) -> Iterator[None]:
        """The error of the thread that writes the file, which the next call raises, as one line."""
        try:
            yield
        except OSError as error:
            raise write_error(self._folder, error, "set logging.tensorboard = false") from error


class WeightsAndBiases:
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it on the disk."""

    def __init__(self, config: RunConfig, project: str) -> None:
        wandb = _load("wandb", "logging.wandb")
        known = _identity(config.output).get("wandb")
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
        _remember(config.output, "wandb", self._run.id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow; `MLFLOW_TRACKING_URI` says where, a folder or a server."""

    def __init__(self, config: RunConfig, experiment: str) -> None:
        mlflow = _load("mlflow", "logging.mlflow")
        self._client = mlflow.MlflowClient()
        known = _identity(config.output).get("mlflow")
        try:
            there = self._client.get_experiment_by_name(experiment)
            number = there.experiment_id if there else self._client.create_experiment(experiment)
            if known is None:
                self._id = self._client.create_run(number, run_name=Path(config.output).name).info.run_id
                for name, value in _flat(config.model_dump(mode="json")):
                    self._client.log_param(self._id, name, value)
            else:
                self._id = self._client.get_run(known).info.run_id
                self._client.update_run(self._id, status="RUNNING")
        except mlflow.exceptions.MlflowException as error:
            raise UserError(f"logging.mlflow: MLflow refused: {error}; set MLFLOW_TRACKING_URI, or unset it") from error
        _remember(config.output, "mlflow", self._id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _load(package: str, setting: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"{setting} is set, but {package} is not installed; pip install 'gpt2train[track]', or unset it"
        ) from error


def _identity(run: str) -> dict[str, str]:
    """Names under which the trackers know this run: a run that goes on stays one curve."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        found: dict[str, str] = json.loads((Path(run) / IDENTITY).read_text(encoding="utf-8"))
        return found
    return {}


def _remember(run: str, tracker: str, name: str) -> None:
    path = Path(run) / IDENTITY
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(_identity(run) | {tracker: name}, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def _flat(settings: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Nested settings as dotted names."""
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        found += _flat(value, f"{above}{key}.") if isinstance(value, dict) else [(f"{above}{key}", value)]
    return found
